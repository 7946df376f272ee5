// Sources: dl_iterate_phdr(3), madvise(2), and the kernel's Documentation/admin-guide/mm/pagemap.rst.
#include "process/code_pages.h"

#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

namespace poet {
namespace {

// A fault maps 64 KiB around it, unless a piece is smaller: then it maps the piece. Half of a step's code is of no use
// to it with pieces of 64 KiB. The kernel takes some 220 bytes for a piece, so that large libraries have larger ones.
constexpr uintptr_t kPieceBytes = 16 << 10, kPieceBytesOfLarge = 64 << 10, kLargeBytes = 64 << 20;

// Bits of an entry of /proc/self/pagemap, and how many of them are read at once.
constexpr uint64_t kPresent = uint64_t{1} << 63, kSwapped = uint64_t{1} << 62, kOfFile = uint64_t{1} << 61;
constexpr uintptr_t kEntries = 256;

struct Pagemap {
  int file;
  uintptr_t page_bytes;
};

// Whether no page from `begin` to `end` was written to.
bool is_as_in_file(const Pagemap& pagemap, uintptr_t begin, uintptr_t end) {
  uint64_t entries[kEntries];
  const uintptr_t last = end / pagemap.page_bytes;
  for (uintptr_t page = begin / pagemap.page_bytes; page < last; page += kEntries) {
    const size_t count = std::min(kEntries, last - page);
    const auto bytes = static_cast<ssize_t>(count * sizeof(uint64_t));
    if (pread(pagemap.file, entries, count * sizeof(uint64_t), static_cast<off_t>(page * sizeof(uint64_t))) != bytes)
      return false;
    const auto is_own = [](uint64_t entry) { return (entry & (kPresent | kSwapped)) != 0 && (entry & kOfFile) == 0; };
    if (std::any_of(entries, entries + count, is_own)) return false;
  }
  return true;
}

// Cuts a mapping in pieces, for the kernel maps no folio beyond a mapping: two neighbours differ in what a core dump
// has of them, which has no such pages anyway (core(5)).
void cut(uintptr_t begin, uintptr_t end, uintptr_t piece_bytes) {
  for (uintptr_t at = begin / piece_bytes * piece_bytes; at < end; at += 2 * piece_bytes) {
    const uintptr_t first = std::max(at, begin), last = std::min(at + piece_bytes, end);
    if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTDUMP);
  }
}

int release_module(dl_phdr_info* info, size_t, void* data) {
  const Pagemap& pagemap = *static_cast<const Pagemap*>(data);
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    if (header.p_type != PT_LOAD || (header.p_flags & PF_W) != 0) continue;
    const uintptr_t begin = (info->dlpi_addr + header.p_vaddr) & ~(pagemap.page_bytes - 1);
    const uintptr_t end =
        (info->dlpi_addr + header.p_vaddr + header.p_memsz + pagemap.page_bytes - 1) & ~(pagemap.page_bytes - 1);
    const uintptr_t piece_bytes = end - begin > kLargeBytes ? kPieceBytesOfLarge : kPieceBytes;
    if (end - begin <= piece_bytes || !is_as_in_file(pagemap, begin, end)) continue;
    cut(begin, end, piece_bytes);
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  }
  return 0;
}

}  // namespace

void release_code_pages() noexcept {
  Pagemap pagemap{open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC), static_cast<uintptr_t>(sysconf(_SC_PAGESIZE))};
  if (pagemap.file < 0) return;
  dl_iterate_phdr(release_module, &pagemap);
  close(pagemap.file);
}

}  // namespace poet
