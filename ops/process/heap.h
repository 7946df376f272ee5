// What malloc keeps of memory that was freed.
#pragma once

namespace poet {

// Gives freed memory back to the kernel, and lets malloc do so at once from now on, up to small blocks. By itself glibc
// raises the size from which a block is mapped alone to that of the largest one that was freed, up to 32 MiB, and keeps
// twice as much at the end of its heap: blocks that a kernel of ONNX Runtime or a caller takes for a moment then pile
// up between others. Source: mallopt(3), M_MMAP_THRESHOLD and M_TRIM_THRESHOLD; malloc_trim(3).
void give_freed_memory_back() noexcept;

}  // namespace poet
