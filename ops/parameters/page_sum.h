// The 64-bit checksum of a page of a parameter store: XXH3 with a seed, which is twice as quick as XXH64, or XXH64
// itself for so few bytes that XXH3 has other ways. It takes 31 GB/s of a server's core (Xeon, SSE2) where XXH64 takes
// 16. Source: doc/xxhash_spec.md of github.com/Cyan4973/xxHash (Yann Collet), version 0.2.0.
#pragma once

#include <cstddef>
#include <cstdint>

namespace poet {

uint64_t page_sum(const void* data, size_t bytes, uint64_t seed);

}  // namespace poet
