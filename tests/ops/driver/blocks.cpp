// Work of kernels in blocks, on threads that stand in for ONNX Runtime's.
#include <array>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "harness.h"
#include "kernels/parallel.h"
#include "scenarios.h"

namespace driver {
namespace {

constexpr size_t kThreads = 4, kSlots = 300, kParallelFor = 274;
std::atomic<size_t> calls{0};

OrtStatus* run_on_threads(const OrtKernelContext*, void (*function)(void*, size_t), size_t total, size_t, void* data) {
  ++calls;
  std::atomic<size_t> next{0};
  std::vector<std::thread> threads;
  for (size_t thread = 0; thread < kThreads; ++thread)
    threads.emplace_back([&] {
      for (size_t index = next++; index < total; index = next++) function(data, index);
    });
  for (std::thread& thread : threads) thread.join();
  return nullptr;
}

// A runtime that has nothing but threads.
Api threads_alone() {
  static std::array<void*, kSlots> table{};
  auto* const function = &run_on_threads;
  std::memcpy(&table[kParallelFor], &function, sizeof function);
  return Api(reinterpret_cast<const OrtApi*>(table.data()));
}

}  // namespace

void blocks_of_a_kernel_share_threads() {
  const Api api = threads_alone();
  const Workers workers{api, nullptr};
  constexpr uint64_t kCount = 20 * kBlockFloats + 3;
  std::vector<uint64_t> seen(kCount, 0);
  for (const uint64_t floats : {uint64_t{0}, uint64_t{1}, uint64_t{7}, 2 * kBlockFloats}) {
    calls = 0;
    each_range(workers, kCount, floats, [&](uint64_t first, uint64_t count) {
      for (uint64_t i = first; i < first + count; ++i) ++seen[i];
    });
    REQUIRE(calls == 1);
  }
  for (const uint64_t times : seen) REQUIRE(times == 4);
  calls = 0;
  each_range(workers, 1, kCount, [&](uint64_t, uint64_t) { ++seen[0]; });
  each_range(workers, 0, 1, [&](uint64_t, uint64_t) { ++seen[0]; });
  REQUIRE(calls == 0 && seen[0] == 5);

  std::vector<uint64_t> sums(3, 0), found(1000, 0);
  each_lane(workers, found.size(), sums.size(), [&](uint64_t lane, const auto& take) {
    for (uint64_t index = 0; take(&index);) {
      sums[lane] = index;  // of its own
      found[index] += sums[lane] + 1;
    }
  });
  for (uint64_t index = 0; index < found.size(); ++index) REQUIRE(found[index] == index + 1);
}

void errors_of_blocks_do_not_depend_on_threads() {
  const Api api = threads_alone();
  for (int turn = 0; turn < 20; ++turn) {
    std::atomic<uint64_t> done{0};
    const auto run = [&] {
      each_block({api, nullptr}, 64, [&](uint64_t index) {
        if (index % 3 == 2) throw Error("block " + std::to_string(index) + " fails");
        ++done;
      });
    };
    REQUIRE(fails(run, "block 2 fails"));
    REQUIRE(done == 43);
  }
}

}  // namespace driver
