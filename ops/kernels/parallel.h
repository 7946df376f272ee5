// Work of a kernel in blocks, on the threads of its session.
//
// What a block is follows from sizes alone, never from the number of threads, and no block writes what another one
// reads or writes: so results have the same bits with any number of threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "runtime/ort_api.h"

namespace poet {

// About how many floats a block works at: enough that handing it to a thread costs little beside it.
constexpr uint64_t kBlockFloats = 8192;

// Where a kernel runs: its context in the runtime, which knows the session's threads.
struct Workers {
  const Api& api;
  const OrtKernelContext* context;
};

// Calls call(body, index) for every index below `count`, in any order, several at once. When all are done, throws what
// the one of the least index threw, if any did.
void run_blocks(const Workers& workers, uint64_t count, void (*call)(const void* body, uint64_t index),
                const void* body);

template <class Body>
void each_block(const Workers& workers, uint64_t count, const Body& body) {
  run_blocks(workers, count, [](const void* raw, uint64_t index) { (*static_cast<const Body*>(raw))(index); }, &body);
}

// Calls body(first, count) for neighbours among `items` of `floats` each, as many as make a block.
template <class Body>
void each_range(const Workers& workers, uint64_t items, uint64_t floats, const Body& body) {
  const uint64_t most = std::max<uint64_t>(kBlockFloats / std::max<uint64_t>(floats, 1), 1);
  each_block(workers, items / most + (items % most != 0), [&](uint64_t block) {
    const uint64_t first = block * most;
    body(first, std::min(most, items - first));
  });
}

// Calls body(index) for each of `items` of `floats` each.
template <class Body>
void each_item(const Workers& workers, uint64_t items, uint64_t floats, const Body& body) {
  each_range(workers, items, floats, [&](uint64_t first, uint64_t count) {
    for (const uint64_t end = first + count; first < end; ++first) body(first);
  });
}

// Calls body(lane, take) for each lane, several at once; take(&index) gives a lane the next index below `count`, or
// returns false when there are no more. So a kernel has memory of its own for each lane, and not for each index, whose
// result must not depend on the lane.
template <class Body>
void each_lane(const Workers& workers, uint64_t count, uint64_t lanes, const Body& body) {
  std::atomic<uint64_t> taken{0};
  each_block(workers, std::min(lanes, count), [&](uint64_t lane) {
    body(lane, [&](uint64_t* index) {
      *index = taken.fetch_add(1, std::memory_order_relaxed);
      return *index < count;
    });
  });
}

}  // namespace poet
