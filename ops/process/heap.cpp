#include "process/heap.h"

#include <malloc.h>

namespace poet {

void give_freed_memory_back() noexcept {
#if defined(M_MMAP_THRESHOLD) && defined(M_TRIM_THRESHOLD)
  constexpr int kBytes = 128 << 10;  // glibc's own values, as long as nothing was freed
  mallopt(M_MMAP_THRESHOLD, kBytes);
  mallopt(M_TRIM_THRESHOLD, kBytes);
  malloc_trim(0);
#endif
}

}  // namespace poet
