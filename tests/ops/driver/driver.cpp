// Exercises the page store and the allocation tracker without ONNX Runtime, for the sanitizers: faults of every system
// call, memory released in mid-transfer, threads, forks. Prints a line per scenario; exits 1 at the first wrong result.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "harness.h"
#include "process/code_pages.h"
#include "scenarios.h"

namespace {

using namespace driver;

// A throttled transfer takes its time, a queue of them the sum, and who waits is told from who does not.
void throttled_storage_is_as_slow_as_asked() {
  StoreOptions options;
  options.throttle.page_out_bytes_per_second = 4000000;  // 4 ms for 16,000 bytes
  options.throttle.page_in_latency_nanoseconds = 3000000;
  const auto store = make_store(options);
  Node first(store, 0), second(store, 1);
  Block source(4000), target(4000);
  const auto begun = Clock::now();
  const int64_t token = first.page->start_write(source.data(), source.layout(), true);
  second.page->start_write(source.data(), source.layout(), true);
  first.page->end_write(token, source.data());
  REQUIRE(nanoseconds_since(begun) >= 4000000);
  read_page(*store, token, 0, target.layout(), target.data());
  REQUIRE(nanoseconds_since(begun) >= 11000000);
  const StatisticsValues seen = store->device().statistics().values();
  REQUIRE(seen.page_outs == 2 && seen.page_ins == 1 && seen.page_out_bytes == 32000 && seen.page_in_bytes == 16000);
  REQUIRE(seen.page_out_nanoseconds >= 4000000 && seen.page_in_nanoseconds > 0);
  REQUIRE(seen.waited_nanoseconds > 0);  // how long of it depends on what else the machine does
}

// What ONNX Runtime does when a run is aborted between a start and its end.
void memory_may_be_released_in_mid_transfer() {
  const auto store = make_store();
  Node writer(store, 0);
  ReadNode reader(store);
  Block ballast(1 << 16);
  ballast.fill(5);
  Node other(store, 1);
  const int64_t token = out(other, ballast, false);
  for (int turn = 0; turn < 60; ++turn) {
    faults::set_delay_microseconds(turn % 3 == 0 ? 2000 : 0);
    Block queued_first(1 << 16);
    Node before(store, 3);
    if (turn % 2 == 0) before.page->start_write(queued_first.data(), queued_first.layout(), true);
    Block source(1 << 16);
    source.fill(1);
    const int64_t aborted = writer.page->start_write(source.data(), source.layout(), true);
    Block target(1 << 16);
    const int64_t ticket = reader.start(token, 1, target);
    source.release();
    target.release();
    REQUIRE(fails([&] { read_page(*store, aborted, 0, ballast.layout(), ballast.data()); }, "has not ended"));
    if (turn % 5 == 0) {
      float* gone = nullptr;
      try {
        reader.end(ticket, gone);
        REQUIRE(false);
      } catch (const Error&) {
      }
    }
  }
  faults::set_delay_microseconds(0);
  Block target(1 << 16);
  in(reader, token, 1, target, true);
  REQUIRE(target.is_all(5));
}

void nodes_may_go_away_in_mid_transfer() {
  for (int turn = 0; turn < 40; ++turn) {
    faults::set_delay_microseconds(turn % 2 == 0 ? 1000 : 0);
    const auto store = make_store();
    Block source(1 << 14), target(1 << 14);
    source.fill(1);
    auto writer = std::make_unique<Node>(store, 0);
    const int64_t token = out(*writer, source, true);
    auto reader = std::make_unique<ReadNode>(store);
    const int64_t ticket = reader->start(token, 0, target);
    writer->page->start_write(source.data(), source.layout(), true);
    if (turn % 4 < 2) {
      writer.reset();
      REQUIRE(fails([&] { Page::find(token, *store); }, "names no page"));
      reader.reset();
    } else {
      reader.reset();
      REQUIRE(fails([&] { PendingRead::find(ticket, *store); }, "names no page-in"));
      writer.reset();
    }
  }
  faults::set_delay_microseconds(0);
}

// Threads with pages of their own share the channel; every tensor comes back.
void threads_share_a_store() {
  const auto store = make_store();
  std::vector<std::thread> threads;
  for (int number = 0; number < 4; ++number) {
    threads.emplace_back([&store, number] {
      Node writer(store, number);
      ReadNode reader(store);
      for (int turn = 0; turn < 150; ++turn) {
        Block source(500 + static_cast<size_t>(turn)), target(500 + static_cast<size_t>(turn));
        const auto value = static_cast<float>(number * 1000 + turn);
        source.fill(value);
        const int64_t token = out(writer, source, turn % 2 == 0);
        source.release();
        in(reader, token, number, target, turn % 3 == 0);
        REQUIRE(target.is_all(value));
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

// What a page of code holds comes back for whoever runs it.
void code_may_be_released_while_threads_run_it() {
  std::atomic<bool> is_over{false};
  std::thread releasing([&] {
    while (!is_over) release_code_pages();
  });
  threads_share_a_store();
  is_over = true;
  releasing.join();
}

// Concurrent runs of one session use one node: each gets its own tensor or an Error.
void threads_share_a_node() {
  const auto store = make_store();
  Node writer(store, 0);
  ReadNode reader(store);
  std::vector<std::thread> threads;
  for (int number = 0; number < 4; ++number) {
    threads.emplace_back([&, number] {
      for (int turn = 0; turn < 150; ++turn) {
        Block source(2000), target(2000);
        const auto value = static_cast<float>(number * 1000 + turn);
        source.fill(value);
        try {
          in(reader, out(writer, source, turn % 2 == 0), 0, target, turn % 3 == 0);
        } catch (const Error& error) {
          REQUIRE(std::strstr(error.what(), "concurrent run") != nullptr);
          continue;
        }
        REQUIRE(target.is_all(value));
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

void counters_are_exact_across_threads() {
  const int64_t level = allocations::current_bytes(), before = allocations::allocated_bytes();
  allocations::reset_peak();
  std::vector<std::thread> threads;
  for (int number = 0; number < 4; ++number)
    threads.emplace_back([] {
      for (size_t turn = 1; turn <= 500; ++turn) Block block(turn);
    });
  for (auto& thread : threads) thread.join();
  const int64_t largest = 500 * sizeof(float);
  REQUIRE(allocations::allocated_bytes() - before == 4 * largest * 501 / 2);
  REQUIRE(allocations::current_bytes() == level);
  REQUIRE(allocations::peak_bytes() >= level + largest && allocations::peak_bytes() <= level + 4 * largest);
}

// A child has the parent's open file. It cannot use it, and leaves everything about it as it was, whatever it drops.
void child_of_a_fork_is_refused() {
  for (StoreOptions options : every_kind_of_store()) {
    options.directory = directory;
    options.allows_ram = true;
    auto store = PageStore::open(nullptr, options);
    auto writer = std::make_unique<Node>(store, 0);
    auto reader = std::make_unique<ReadNode>(store);
    Block source(1 << 12);
    source.fill(3);
    const int64_t token = out(*writer, source, true);
    const int file = store->device().file().descriptor();
    const int flags = fcntl(file, F_GETFL);
    const uint64_t held = held_bytes(*store);
    const pid_t child = fork();
    if (child == 0) {
      REQUIRE(fails([&] { out(*writer, source, true); }, "which forked this one"));
      REQUIRE(fails([&] { read_page(*store, token, 0, source.layout(), source.data()); }, "which forked this one"));
      writer.reset();
      reader.reset();
      store.reset();
      REQUIRE(fcntl(file, F_GETFL) == -1 && errno == EBADF);
      const auto own = PageStore::open(nullptr, options);
      Node fresh(own, 0);
      ReadNode own_reader(own);
      Block target(1 << 12);
      in(own_reader, out(fresh, source, true), 0, target, true);
      REQUIRE(target.is_all(3));
      _exit(0);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    REQUIRE(fcntl(file, F_GETFL) == flags && held_bytes(*store) == held);
    Block target(1 << 12);
    in(*reader, token, 0, target, true);
    REQUIRE(target.is_all(3));
  }
}

void layouts_are_checked() {
  REQUIRE(make_layout(kFloat, Shape(0)).bytes == 4);
  for (const int64_t dtype : {int64_t{-1}, int64_t{0}, int64_t{8}, int64_t{21}, int64_t{22}, int64_t{1} << 40})
    REQUIRE(fails([&] { make_layout(dtype, Shape(1)); }, "has no fixed size"));
  Shape shape(20);
  std::fill(shape.data(), shape.data() + 20, int64_t{1} << 40);
  REQUIRE(fails([&] { make_layout(kFloat, shape); }, "2^63 - 1"));
  shape.data()[19] = 0;
  REQUIRE(make_layout(kFloat, shape).bytes == 0);
  shape.data()[0] = -1;
  REQUIRE(fails([&] { make_layout(kFloat, shape); }, "negative"));
}

}  // namespace

int main(int argc, char** argv) {
  REQUIRE(argc >= 2);
  directory = argv[1];
  if (argc == 3 && std::strcmp(argv[2], "nocrypto") == 0) {
    missing_libcrypto_is_named();
    std::printf("ok: missing libcrypto is named\n");
    return 0;
  }
  const bool with_fork = argc < 3 || std::strcmp(argv[2], "nofork") != 0;
  const std::pair<const char*, void (*)()> scenarios[] = {
      {"layouts are checked", layouts_are_checked},
      {"named files are unlinked", named_files_are_unlinked},
      {"slots keep to their plan", slots_keep_to_their_plan},
      {"room is taken for tensors alone", room_is_taken_for_tensors_alone},
      {"tokens are their store's own", tokens_are_their_stores_own},
      {"memory of a page-in shows nothing else", memory_of_a_page_in_shows_nothing_else},
      {"transfers may have no end", transfers_may_have_no_end},
      {"throttled storage is as slow as asked", throttled_storage_is_as_slow_as_asked},
      {"checksums are those of the specification", checksums_are_those_of_the_specification},
      {"sums of pages are those of the specification", sums_of_pages_are_those_of_the_specification},
      {"every call may fail", every_call_may_fail},
      {"harmless faults are completed", harmless_faults_are_completed},
      {"altered pages are noticed", altered_pages_are_noticed},
      {"calls of a parameter store may fail", calls_of_a_parameter_store_may_fail},
      {"damaged parameter stores are refused", damaged_parameter_stores_are_refused},
      {"parameter stores that were made up do no harm", parameter_stores_that_were_made_up_do_no_harm},
      {"memory may be released in mid-transfer", memory_may_be_released_in_mid_transfer},
      {"nodes may go away in mid-transfer", nodes_may_go_away_in_mid_transfer},
      {"threads share a store", threads_share_a_store},
      {"code may be released while threads run it", code_may_be_released_while_threads_run_it},
      {"threads share a node", threads_share_a_node},
      {"counters are exact across threads", counters_are_exact_across_threads},
      {"layouts of a region are checked", layouts_of_a_region_are_checked},
      {"gaps of a region are poisoned", gaps_of_a_region_are_poisoned},
      {"runs that keep to their layout need no malloc", runs_that_keep_to_their_layout_need_no_malloc},
      {"any run is served rightly", any_run_is_served_rightly},
      {"threads share an arena or not", threads_share_an_arena_or_not},
      {"faults of an arena are harmless", faults_of_an_arena_are_harmless},
      {"slots that live at once never overlap", slots_that_live_at_once_never_overlap},
      {"models of any bytes are written or refused", models_of_any_bytes_are_written_or_refused},
      {"blocks of a kernel share threads", blocks_of_a_kernel_share_threads},
      {"errors of blocks do not depend on threads", errors_of_blocks_do_not_depend_on_threads},
  };
  for (const auto& [name, scenario] : scenarios) {
    scenario();
    std::printf("ok: %s\n", name);
  }
  if (with_fork) {
    child_of_a_fork_is_refused();
    std::printf("ok: child of a fork is refused\n");
    a_child_of_a_fork_has_its_own_region();
    std::printf("ok: a child of a fork has its own region\n");
  }
  return 0;
}
