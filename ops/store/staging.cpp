#include "store/staging.h"

#include <cstdlib>

#include "process/error.h"
#include "runtime/allocation_tracker.h"
#include "store/page_file.h"

namespace poet {

Staging::Staging(uint64_t bytes) : bytes_(whole_blocks(bytes)) {
  if (bytes_ == 0) return;
  void* block = nullptr;
  if (posix_memalign(&block, kBlockBytes, bytes_) != 0)
    throw Error("no memory for " + std::to_string(bytes_) + " bytes of staging for pages");
  allocations::count_allocation(bytes_);
  data_ = static_cast<unsigned char*>(block);
}

Staging::~Staging() {
  if (data_ == nullptr) return;
  free(data_);
  allocations::count_release(bytes_);
}

}  // namespace poet
