#include "store/staging.h"

#include <cstdlib>

#include "process/error.h"
#include "runtime/allocation_tracker.h"
#include "store/page_file.h"

namespace poet {

Staging::Staging(uint64_t bytes) : bytes_(whole_blocks(bytes)) {
  if (bytes_ == 0) return;
  if (!allocations::reserve(bytes_))
    throw Error(std::string("no room for staging pages: ") + allocations::refusal_text());
  void* block = nullptr;
  if (posix_memalign(&block, kBlockBytes, bytes_) != 0) {
    allocations::give_back(bytes_);
    throw Error("no memory for " + std::to_string(bytes_) + " bytes of staging for pages");
  }
  data_ = static_cast<unsigned char*>(block);
}

Staging::~Staging() {
  if (data_ == nullptr) return;
  free(data_);
  allocations::give_back(bytes_);
}

}  // namespace poet
