// Functions for the Python face (through ctypes): the allocation tracker, the page stores, the optimizers
// (poet_onnx/runtime) and the packing of a region (poet_onnx/addresses). None of them throws.
#include <algorithm>
#include <cstdio>
#include <new>
#include <vector>

#include "addresses/packing.h"
#include "arena/arenas.h"
#include "parameters/optimizer.h"
#include "process/code_pages.h"
#include "process/memory_left.h"
#include "runtime/allocation_tracker.h"
#include "store/page_directory.h"
#include "store/page_store.h"

#define POET_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// Copies the first `capacity` of the numbers that `make` returns to `out` and returns how many there are; -1 where
// memory is missing.
template <class Number, class Make>
int64_t copy_numbers(Number* out, uint64_t capacity, Make&& make) {
  try {
    const std::vector<Number> numbers = make();
    std::copy_n(numbers.begin(), std::min<uint64_t>(capacity, numbers.size()), out);
    return static_cast<int64_t>(numbers.size());
  } catch (const std::exception&) {
    return -1;
  }
}

}  // namespace

// How many imports of ONNX Runtime's modules were redirected: 0 where its allocations cannot be seen.
POET_EXPORT uint64_t poet_tracked_imports() { return poet::allocations::tracked_imports(); }

// Bytes of live blocks that ONNX Runtime allocated since this library was registered with it.
POET_EXPORT int64_t poet_current_bytes() { return poet::allocations::current_bytes(); }

// Most that poet_current_bytes was since the last poet_reset_peak.
POET_EXPORT int64_t poet_peak_bytes() { return poet::allocations::peak_bytes(); }

// Bytes of all blocks that ONNX Runtime allocated since this library was registered with it, released ones too.
POET_EXPORT int64_t poet_allocated_bytes() { return poet::allocations::allocated_bytes(); }

POET_EXPORT void poet_reset_peak() { poet::allocations::reset_peak(); }

POET_EXPORT void poet_release_code_pages() { poet::release_code_pages(); }

// Copies the numbers of the open page stores to `out`, at most `capacity`, and returns how many there are; -1 where
// memory is missing.
POET_EXPORT int64_t poet_open_stores(uint64_t* out, uint64_t capacity) {
  return copy_numbers(out, capacity, [] {
    std::vector<uint64_t> numbers;
    for (const auto& store : poet::PageStore::all()) numbers.push_back(store->number());
    return numbers;
  });
}

// Writes the directory for a page file to `out`: the one that is given, or else the default one. Returns 0, or 1 where
// no page file may be there: `out` then says why.
POET_EXPORT int poet_page_directory(const char* given, int allows_ram, char* out, uint64_t capacity) {
  try {
    const bool allowed = allows_ram != 0 || poet::environment_allows_ram();
    const std::string directory = *given != '\0' ? given : poet::default_page_directory(allowed);
    if (!allowed) poet::require_storage(directory);
    std::snprintf(out, capacity, "%s", directory.c_str());
    return 0;
  } catch (const std::exception& error) {
    std::snprintf(out, capacity, "%s", error.what());
  }
  return 1;
}

// Reads what a store has moved; number 0: what all stores of the process have, closed ones too. Returns 0, or 1 where
// there is no such store.
POET_EXPORT int poet_statistics(uint64_t number, poet::StatisticsValues* out) {
  if (number == 0) {
    *out = poet::total_statistics().values();
    return 0;
  }
  try {
    for (const auto& store : poet::PageStore::all()) {
      if (store->number() != number) continue;
      *out = store->device().statistics().values();
      return 0;
    }
  } catch (const std::exception&) {
  }
  return 1;
}

// Writes a store's directory, back end, reason for it and bytes of staging memory to `out`, each ended by a line feed.
// Returns 0, or 1 where there is no such store or memory is missing.
POET_EXPORT int poet_describe_store(uint64_t number, char* out, uint64_t capacity) {
  try {
    for (const auto& store : poet::PageStore::all()) {
      if (store->number() != number) continue;
      const poet::DeviceReport report = store->device().report();
      std::snprintf(out, capacity, "%s\n%s\n%s\n%llu\n", store->device().options().directory.c_str(),
                    poet::name_of(report.backend), report.reason.c_str(),
                    static_cast<unsigned long long>(report.staging_bytes));
      return 0;
    }
  } catch (const std::exception&) {
  }
  return 1;
}

// Copies the numbers of the open arenas to `out`, at most `capacity`, and returns how many there are; -1 where memory
// is missing.
POET_EXPORT int64_t poet_open_arenas(uint64_t* out, uint64_t capacity) {
  return copy_numbers(out, capacity, poet::arenas::numbers);
}

// Reads what an arena has served; number 0: what all arenas of the process have, closed ones too. Returns 0, or 1 where
// there is no such arena.
POET_EXPORT int poet_arena_statistics(uint64_t number, poet::ArenaValues* out) {
  return poet::arenas::read(number, out) ? 0 : 1;
}

// Sessions that this thread makes from now on share a region with those of the same group; 0: with none.
POET_EXPORT void poet_share_region(uint64_t group) { poet::arenas::set_group(group); }

// How many more bytes this process may take before the kernel stops it, or takes memory back, and below 0 how many it
// has too many; what sets that goes to `out`. `root` is empty, or where a file system was recorded.
POET_EXPORT int64_t poet_memory_left(char* out, uint64_t capacity, const char* root) {
  try {
    const poet::MemoryLeft left = poet::memory_left(poet::Limits::kSoft, root);
    std::snprintf(out, capacity, "%s", left.limit.c_str());
    if (left.missing_bytes > 0) return -static_cast<int64_t>(std::min<uint64_t>(left.missing_bytes, INT64_MAX));
    return static_cast<int64_t>(std::min<uint64_t>(left.bytes, INT64_MAX));
  } catch (const std::exception&) {
  }
  std::snprintf(out, capacity, "nothing that is known");
  return INT64_MAX;
}

// The updates of the operators, for gradients that are used after the step; see optimizer.h.
POET_EXPORT void poet_update_sgd(const float* gradient, uint64_t count, const float* rates, float* parameter) {
  poet::update_sgd(parameter, gradient, count, rates);
}

POET_EXPORT void poet_update_momentum(const float* gradient, uint64_t count, const float* rates, float* parameter,
                                      float* momentum) {
  poet::update_momentum(parameter, momentum, gradient, count, rates);
}

POET_EXPORT void poet_update_adam(const float* gradient, uint64_t count, const float* rates, float* parameter,
                                  float* first_moment, float* second_moment) {
  poet::update_adam(parameter, first_moment, second_moment, gradient, count, rates);
}

POET_EXPORT void poet_add_squares(const float* gradient, uint64_t count, double* lanes) {
  poet::add_squares(gradient, count, lanes);
}

// Packs slots, see packing.h; `orders` has `order_count` orders of all slots, one after the other. Writes an offset for
// each slot and returns the bytes of the region; -1 where memory is missing.
POET_EXPORT int64_t poet_pack(const poet::Slot* slots, uint64_t count, const uint32_t* orders, uint64_t order_count,
                              int64_t enough_bytes, uint64_t most_looks, int64_t* offsets) {
  try {
    std::vector<poet::SlotOrder> starts;
    for (uint64_t order = 0; order < order_count; ++order)
      starts.emplace_back(orders + order * count, orders + (order + 1) * count);
    const poet::Packing packing = poet::pack({slots, slots + count}, starts, enough_bytes, most_looks);
    std::copy(packing.offsets.begin(), packing.offsets.end(), offsets);
    return packing.region_bytes;
  } catch (const std::exception&) {
    return -1;
  }
}
