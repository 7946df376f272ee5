// An arena under the tracker: runs that keep to their layout and runs that do not, checked by an account of their own.
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

#include <map>
#include <random>
#include <thread>

#include "arena/arenas.h"
#include "arena_plans.h"
#include "harness.h"
#include "process/fork.h"
#include "scenarios.h"

namespace driver {
namespace {

// The one place from which the runtime's allocator asks.
__attribute__((noinline)) void* ask(size_t bytes) {
  void* block = nullptr;
  REQUIRE(allocations::replacement_posix_memalign(&block, 64, bytes) == 0);
  return block;
}

void learn_to_ask() {
  allocations::learn_caller(1);
  allocations::replacement_free(ask(1));
  allocations::learn_caller(0);
}

// Blocks that are alive, by address, each filled with a byte of its own. Knows nothing of arenas but what they count.
class Account {
 public:
  explicit Account(Arena& arena) : arena_(arena), number_(arena.number()) {}

  unsigned char* take(uint64_t bytes) {
    const ArenaValues before = values();
    auto* const block = static_cast<unsigned char*>(ask(bytes));
    const ArenaValues after = values();
    const uint64_t in_region = after.planned - before.planned + after.workspace - before.workspace;
    REQUIRE(in_region + after.unplanned - before.unplanned <= 1);
    if (in_region == 1) {
      lowest_ = std::min(lowest_, block);
      highest_ = std::max(highest_, block + bytes);
      REQUIRE(static_cast<uint64_t>(highest_ - lowest_) <= after.region_bytes);
    }
    const auto next = live_.lower_bound(block);
    REQUIRE(next == live_.end() || block + bytes <= next->first);
    REQUIRE(next == live_.begin() || std::prev(next)->first + std::prev(next)->second.bytes <= block);
    const auto fill = static_cast<unsigned char>(++last_fill_);
    std::memset(block, fill, bytes);
    live_[block] = {bytes, fill};
    return block;
  }

  void release(unsigned char* block) {
    const auto found = live_.find(block);
    REQUIRE(found != live_.end());
    for (uint64_t i = 0; i < found->second.bytes; ++i) REQUIRE(block[i] == found->second.fill);
    live_.erase(found);
    allocations::replacement_free(block);
  }

  void release_all() {
    while (!live_.empty()) release(live_.begin()->first);
  }

  ArenaValues values() {
    ArenaValues values;
    REQUIRE(arena_.read(number_, &values));
    return values;
  }

 private:
  struct Content {
    uint64_t bytes;
    unsigned char fill;
  };
  Arena& arena_;
  const uint64_t number_;
  std::map<unsigned char*, Content> live_;
  unsigned char* lowest_ = reinterpret_cast<unsigned char*>(UINTPTR_MAX);
  unsigned char* highest_ = nullptr;
  unsigned last_fill_ = 0;
};

// How a run is not as planned: one in so many events, 0: none.
struct Deviations {
  uint64_t strays = 0;
  uint64_t failures = 0;
};

// Runs a plan once, until it fails. Returns how many blocks it asked for, besides outputs.
uint64_t run(const Plan& plan, Account& account, Random& random, const Deviations& deviations, bool is_bound,
             std::vector<unsigned char*>* outputs) {
  std::vector<std::pair<unsigned char*, size_t>> live;  // and the step in which they die
  const auto strays_now = [&] { return deviations.strays != 0 && one_in(random, deviations.strays); };
  const auto release_dead = [&](size_t end) {
    std::shuffle(live.begin(), live.end(), random);
    const auto stays = [&](const auto& each) { return each.second >= end && !strays_now(); };
    const auto first_dead = std::stable_partition(live.begin(), live.end(), stays);
    for (auto dead = first_dead; dead != live.end(); ++dead) account.release(dead->first);
    live.erase(first_dead, live.end());
  };
  const auto tell = [&](size_t before) {
    const auto marked = plan.marks.find(before);
    if (marked != plan.marks.end()) arenas::reach(static_cast<uint32_t>(marked->second));
  };
  uint64_t asked = 0;
  for (size_t number = 0; number < plan.steps.size(); ++number) {
    tell(number);
    std::vector<PlannedBlock> step = plan.steps[number];
    if (strays_now()) std::shuffle(step.begin(), step.end(), random);
    if (strays_now()) step.push_back({1 + below(random, 600), number, number + below(random, 3), false, false, -1});
    std::vector<unsigned char*> workspace;
    for (const PlannedBlock& block : step) {
      if (deviations.failures != 0 && one_in(random, deviations.failures)) {
        account.release_all();
        return asked;
      }
      if ((block.is_output && is_bound) || strays_now()) continue;
      if (block.is_workspace && one_in(random, 4)) continue;  // a kernel may do with less than its rule says
      if (!block.is_output) ++asked;
      unsigned char* const made = account.take(strays_now() ? 1 + below(random, 600) : block.bytes);
      if (block.is_output)
        outputs->push_back(made);
      else if (block.is_workspace)
        workspace.push_back(made);
      else
        live.emplace_back(made, strays_now() ? below(random, plan.steps.size()) : block.dies);
    }
    // A kernel releases its workspace before it ends, and only then its inputs go.
    for (unsigned char* block : workspace) account.release(block);
    release_dead(number + 1);
  }
  tell(plan.steps.size());
  release_dead(SIZE_MAX);
  return asked;
}

}  // namespace

#if defined(__SANITIZE_ADDRESS__)
// What lies between the blocks of a region, and what was released, may not be touched.
void gaps_of_a_region_are_poisoned() {
  learn_to_ask();
  Arena& arena = arenas::open(ArenaLayout(256, {0, 0, 1, 64, 60, 0}));
  arenas::enter(arena);
  auto* const block = static_cast<unsigned char*>(ask(60));
  REQUIRE(__asan_region_is_poisoned(block, 60) == nullptr);
  for (const int at : {-1, 60, 64}) REQUIRE(__asan_address_is_poisoned(block + at));
  allocations::replacement_free(block);
  REQUIRE(__asan_address_is_poisoned(block));
  arena.close();
}
#else
void gaps_of_a_region_are_poisoned() {}
#endif

// Every run of a plan is served as planned, the first too and whatever failed before it: sizes may repeat, as a run
// tells where they do not say which step has begun.
void runs_that_keep_to_their_layout_need_no_malloc() {
  learn_to_ask();
  Random random(1);
  const int64_t base = allocations::current_bytes();
  for (int trace = 0; trace < 300; ++trace) {
    const Plan plan = make_plan(random, trace % 2 == 1);
    Arena& arena = arenas::open(ArenaLayout(plan.region_bytes, plan.numbers));
    Account account(arena);
    const bool is_bound = one_in(random, 2);
    for (int turn = 0; turn < 4; ++turn) {
      std::vector<unsigned char*> outputs;
      if (turn != 0) {
        arenas::enter(arena);
        run(plan, account, random, {0, turn % 2 == 1 ? uint64_t{10} : 0}, is_bound, &outputs);
        account.release_all();
      }
      arenas::enter(arena);
      const ArenaValues before = account.values();
      const uint64_t asked = run(plan, account, random, {}, is_bound, &outputs);
      const ArenaValues after = account.values();
      REQUIRE(after.unplanned == before.unplanned);
      REQUIRE(after.planned + after.workspace - before.planned - before.workspace == asked);
    }
    account.release_all();
    arena.close();
    REQUIRE(allocations::current_bytes() == base && arena_totals().values().region_bytes == 0);
  }
}

// Plans with blocks of one size, and runs with other blocks, sizes, orders and ends than planned: no two live blocks
// overlap, what was written stays, and the counts add up.
void any_run_is_served_rightly() {
  learn_to_ask();
  Random random(2);
  const int64_t base = allocations::current_bytes();
  for (int trace = 0; trace < 1000; ++trace) {
    const Plan plan = make_plan(random, one_in(random, 2));
    Arena& arena = arenas::open(ArenaLayout(plan.region_bytes, plan.numbers));
    Account account(arena);
    for (int turn = 0; turn < 6; ++turn) {
      std::vector<unsigned char*> outputs;
      arenas::enter(arena);
      const Deviations deviations = turn == 5 ? Deviations{} : Deviations{2 + below(random, 60), 1 + below(random, 90)};
      run(plan, account, random, deviations, one_in(random, 2), &outputs);
      if (!one_in(random, 4)) account.release_all();  // else the caller keeps the outputs for a while
    }
    if (one_in(random, 2)) arena.close();
    account.release_all();
    arena.close();
    REQUIRE(allocations::current_bytes() == base);
    REQUIRE(arena_totals().values().region_bytes == 0);
  }
}

// Runs of one session side by side: one has the region, the others malloc. Sessions of their own do not meet.
void threads_share_an_arena_or_not() {
  learn_to_ask();
  Random random(3);
  const Plan plan = make_plan(random, false);
  Arena& shared = arenas::open(ArenaLayout(plan.region_bytes, plan.numbers));
  const auto work = [&](bool has_own, unsigned seed) {
    Random own_random(seed);
    Arena& arena = has_own ? arenas::open(ArenaLayout(plan.region_bytes, plan.numbers)) : shared;
    for (int turn = 0; turn < 100; ++turn) {
      std::vector<unsigned char*> blocks;
      arenas::enter(arena);
      for (const auto& step : plan.steps)
        for (const PlannedBlock& block : step) {
          blocks.push_back(static_cast<unsigned char*>(ask(block.bytes)));
          std::memset(blocks.back(), static_cast<int>(seed), block.bytes);
        }
      size_t next = 0;
      for (const auto& step : plan.steps)
        for (const PlannedBlock& block : step) {
          for (uint64_t i = 0; i < block.bytes; ++i) REQUIRE(blocks[next][i] == seed);
          allocations::replacement_free(blocks[next++]);
        }
    }
    ArenaValues values;
    REQUIRE(arena.read(arena.number(), &values));
    REQUIRE(has_own ? values.refused_steps == 0 && values.steps == 100 : values.steps > 0);
    if (has_own) arena.close();
  };
  std::vector<std::thread> threads;
  for (unsigned seed = 1; seed <= 6; ++seed) threads.emplace_back(work, seed % 2 == 0, seed);
  for (auto& thread : threads) thread.join();
  ArenaValues values;
  REQUIRE(shared.read(shared.number(), &values) && values.steps + values.refused_steps == 300);
  shared.close();
  REQUIRE(arena_totals().values().region_bytes == 0);
}

void layouts_of_a_region_are_checked() {
  const auto is_refused = [](int64_t bytes, const std::vector<int64_t>& numbers, const char* word) {
    return fails([&] { ArenaLayout(bytes, numbers); }, word);
  };
  REQUIRE(is_refused(63, {}, "'region_bytes' is 63, but must be a multiple of 64"));
  REQUIRE(is_refused(-64, {}, "'region_bytes' is -64"));
  REQUIRE(is_refused(int64_t{1} << 62, {}, "2^46"));
  REQUIRE(is_refused(128, {0, 0}, "ends within a step, after 2 numbers"));
  REQUIRE(is_refused(128, {64, 65, 0}, "step 0 a workspace of 65 bytes at 64"));
  REQUIRE(is_refused(128, {0, -1, 0}, "a workspace of -1 bytes"));
  REQUIRE(is_refused(128, {0, 0, 1, 0, 8}, "has 1 blocks in step 0, but 2 numbers follow"));
  REQUIRE(is_refused(128, {0, 0, -1}, "has -1 blocks"));
  REQUIRE(is_refused(128, {0, 0, int64_t{1} << 62}, "blocks in step 0"));
  REQUIRE(is_refused(128, {0, 0, 1, 32, 8, 0}, "a block of 8 bytes at 32"));
  REQUIRE(is_refused(128, {0, 0, 1, -2, 8, 0}, "a block of 8 bytes at -2"));
  REQUIRE(is_refused(128, {0, 0, 1, 64, 65, 0}, "a block of 65 bytes at 64"));
  REQUIRE(is_refused(128, {0, 0, 1, 0, 0, 0}, "a block of 0 bytes"));
  REQUIRE(is_refused(128, {0, 0, 1, 0, INT64_MAX, 0}, "bytes at 0"));
  REQUIRE(is_refused(128, {0, 0, 0, 0, 0, 1, 0, 8, 0}, "in step 1 a block that dies in step 0"));
  REQUIRE(is_refused(128, {0, 0, 1, 0, 8, 1}, "dies in step 1, but 1 steps"));
  REQUIRE(fails([] { arenas::open(ArenaLayout(int64_t{1} << 46, {})); },
                "needs a region of 70368744177664 bytes, but the system has "));
}

// The region may be refused; then nothing is left of it. A list of live blocks that cannot grow is no failure.
void faults_of_an_arena_are_harmless() {
  learn_to_ask();
  const ArenaLayout layout(64, {0, 0, 1, 0, 8, 0});
  faults::arm(faults::Kind::kNoMapping, 0);
  REQUIRE(fails([&] { arenas::open(layout); }, "needs a region of 64 bytes, but the system has "));
  REQUIRE(faults::disarm() == 1 && arena_totals().values().region_bytes == 0);
  for (uint64_t calls = 0;; ++calls) {
    faults::arm(faults::Kind::kOutOfMemory, calls);
    Arena* arena = nullptr;
    try {
      arena = &arenas::open(layout);
    } catch (const std::bad_alloc&) {
    }
    if (arena != nullptr) {
      arenas::enter(*arena);
      void* block = nullptr;
      if (allocations::replacement_posix_memalign(&block, 64, 8) == 0) allocations::replacement_free(block);
      arena->close();
    }
    if (faults::disarm() <= calls) break;
    REQUIRE(arena_totals().values().region_bytes == 0);
  }
}

// A child has a copy of the region, and goes on with it.
void a_child_of_a_fork_has_its_own_region() {
  learn_to_ask();
  Random random(4);
  const Plan plan = make_plan(random, false);
  Arena& arena = arenas::open(ArenaLayout(plan.region_bytes, plan.numbers));
  Account account(arena);
  std::vector<unsigned char*> outputs;
  fork_depth();
  arenas::enter(arena);
  const pid_t child = fork();
  run(plan, account, random, {}, false, &outputs);
  account.release_all();
  REQUIRE(account.values().unplanned == 0);
  arena.close();
  if (child == 0) _exit(0);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace driver
