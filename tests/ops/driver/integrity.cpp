// Scenarios in which something outside of the library goes wrong: system calls, memory, the file's bytes, a library.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <random>
#include <vector>

#include "harness.h"
#include "parameters/page_sum.h"
#include "scenarios.h"
#include "store/checksum.h"

namespace driver {

// On a file system that cannot make unnamed files the page file is private and gone from the directory all the same.
void named_files_are_unlinked() {
  faults::arm(faults::Kind::kUnsupported, 0);
  const auto store = make_store();
  REQUIRE(faults::disarm() == 2);
  struct stat status{};
  REQUIRE(fstat(store->device().file().descriptor(), &status) == 0);
  REQUIRE(status.st_nlink == 0 && (status.st_mode & 0777) == 0600);
  Node writer(store, 0);
  Block source(100), target(100);
  source.fill(4);
  read_page(*store, out(writer, source, false), 0, target.layout(), target.data());
  REQUIRE(target.is_all(4));
}

// Run in a process that finds no libcrypto.
void missing_libcrypto_is_named() {
  StoreOptions options;
  options.cipher = CipherKind::kAes256Gcm;
  REQUIRE(fails([&] { make_store(options); }, "libcrypto.so.3 or libcrypto.so.1.1 is not installed"));
}

// The sums that the reference implementation gives (xxhash 4.1.0 of PyPI: xxh64_intdigest).
void checksums_are_those_of_the_specification() {
  std::vector<unsigned char> data(5000);
  for (uint32_t i = 0; i < data.size(); ++i) data[i] = static_cast<unsigned char>((i * i * 7 + i) % 251);
  const auto sum = [&](size_t bytes, uint64_t seed, size_t piece) {
    Checksum checksum;
    checksum.begin(seed);
    for (size_t at = 0; at < bytes; at += piece) checksum.add(data.data() + at, std::min(piece, bytes - at));
    return checksum.value();
  };
  struct Known {
    size_t bytes;
    uint64_t seed;
    uint64_t sum;
  };
  constexpr Known known[] = {
      {0, 7, 0x95f0626f6f0a4409},
      {1, 7, 0xd90df86c76f52e13},
      {5, 7, 0x7c094dbd1a6a5501},
      {31, 7, 0x2b405f44f256efa8},
      {32, 7, 0xa7b4e33c2c200bed},
      {33, 7, 0x19e788400bb12e7a},
      {240, 7, 0x48f243bfe7fb403c},
      {241, 0, 0x53ef42f347b93045},
      {1024, 0, 0xb1acdfc9e0503fc5},
      {1025, 0x123456789abcdef, 0x9ae42d5b0f1de713},
      {5000, 0x123456789abcdef, 0xfe5e0d112083222f},
  };
  for (const Known& one : known)
    for (const size_t piece : {7, 32, 50, 64, 1000, 5000}) REQUIRE(sum(one.bytes, one.seed, piece) == one.sum);
}

// Likewise: xxh3_64_intdigest, and xxh64_intdigest of few bytes.
void sums_of_pages_are_those_of_the_specification() {
  std::vector<unsigned char> data(128 << 10);
  for (uint32_t i = 0; i < data.size(); ++i) data[i] = static_cast<unsigned char>((i * i * 7 + i) % 251);
  struct Known {
    size_t bytes;
    uint64_t seed;
    uint64_t sum;
  };
  constexpr Known known[] = {
      {240, 7, 0x48f243bfe7fb403c},       {241, 7, 0xb33329d66278e90a},
      {1024, 0, 0x44890b7b4c489375},      {1025, 0x123456789abcdef, 0xfe0b226459cc09f2},
      {1088, 7, 0x4019a64c14907ae5},      {5000, 0x123456789abcdef, 0x3e5d60a6e8bcc175},
      {128 << 10, 5, 0x7617c3810f469242},
  };
  for (const Known& one : known) REQUIRE(page_sum(data.data(), one.bytes, one.seed) == one.sum);
}

// Every system call and every allocation of a store's life fails in turn, in every way: the result is right or an
// Error, and the next is right.
void every_call_may_fail() {
  int injected = 0;
  for (const StoreOptions& options : every_kind_of_store()) {
    for (int kind = 1; kind <= static_cast<int>(faults::Kind::kUnsupported); ++kind) {
      for (uint64_t nth = 0;; ++nth) {
        const bool asynchronous = nth % 2 == 0;
        Block source(3000), target(3000);
        source.fill(static_cast<float>(nth + 1));
        std::shared_ptr<PageStore> store;
        std::unique_ptr<Node> writer;
        std::unique_ptr<ReadNode> reader;
        bool succeeded = false;
        faults::arm(static_cast<faults::Kind>(kind), nth);
        try {
          store = make_store(options);
          writer = std::make_unique<Node>(store, 2);
          reader = std::make_unique<ReadNode>(store);
          in(*reader, out(*writer, source, asynchronous), 2, target, asynchronous);
          succeeded = true;
        } catch (const Error&) {
        } catch (const std::bad_alloc&) {
        }
        const bool was_reached = faults::disarm() > nth;
        if (succeeded) REQUIRE(target.is_all(static_cast<float>(nth + 1)));
        REQUIRE(succeeded || was_reached);
        if (store == nullptr) store = make_store(options);
        if (writer == nullptr) writer = std::make_unique<Node>(store, 2);
        if (reader == nullptr) reader = std::make_unique<ReadNode>(store);
        source.fill(-1);
        in(*reader, out(*writer, source, asynchronous), 2, target, asynchronous);
        REQUIRE(target.is_all(-1));
        if (!was_reached) break;
        ++injected;
      }
    }
  }
  REQUIRE(injected >= 500);
  std::printf("%d faults\n", injected);
}

// Interruptions and partial transfers are completed, in every back end.
void harmless_faults_are_completed() {
  for (const StoreOptions& options : every_kind_of_store()) {
    for (const faults::Kind kind : {faults::Kind::kInterrupted, faults::Kind::kShort}) {
      const auto store = make_store(options);
      Node writer(store, 0);
      ReadNode reader(store);
      Block source(300000), target(300000);
      writer.page->reserve(1200000);
      for (uint64_t nth = 0; nth < 12; ++nth) {
        source.fill(static_cast<float>(nth));
        faults::arm(kind, nth);
        in(reader, out(writer, source, nth % 2 == 0), 0, target, nth % 2 == 0);
        faults::disarm();
        REQUIRE(target.is_all(static_cast<float>(nth)));
      }
    }
  }
}

// A flipped bit anywhere in a page is noticed, in every back end, and a page of another slot or write as well.
void altered_pages_are_noticed() {
  std::mt19937 random(5);
  for (const StoreOptions& options : every_kind_of_store()) {
    const auto store = make_store(options);
    Node writer(store, 0), other(store, 1);
    // Small pages pass through staging, large ones go by themselves where the back end can do that.
    const size_t count = random() % 2 == 0 ? 5000 : 200001;
    Block source(count), target(count);
    source.fill(1);
    const int64_t token = out(writer, source, true);
    const int file = store->device().file().descriptor();
    const int flags = fcntl(file, F_GETFL);
    REQUIRE(fcntl(file, F_SETFL, flags & ~O_DIRECT) == 0);
    const auto flip = [&](off_t at, int bit) {
      unsigned char byte = 0;
      REQUIRE(pread(file, &byte, 1, at) == 1);
      byte = static_cast<unsigned char>(byte ^ 1 << bit);
      REQUIRE(pwrite(file, &byte, 1, at) == 1);
    };
    for (int turn = 0; turn < 40; ++turn) {
      const auto at = static_cast<off_t>(random() % (4 * count));
      const int bit = static_cast<int>(random() % 8);
      flip(at, bit);
      REQUIRE(fcntl(file, F_SETFL, flags) == 0);
      REQUIRE(fails([&] { read_page(*store, token, 0, source.layout(), target.data()); }, "not what was written"));
      REQUIRE(fcntl(file, F_SETFL, flags & ~O_DIRECT) == 0);
      flip(at, bit);
    }
    // The other slot's page, and then this slot's own of before, in this slot's place.
    std::vector<unsigned char> before(whole_blocks(4 * count));
    REQUIRE(pread(file, before.data(), before.size(), 0) == static_cast<ssize_t>(before.size()));
    REQUIRE(fcntl(file, F_SETFL, flags) == 0);
    source.fill(2);
    out(other, source, false);
    const int64_t newer = out(writer, source, false);
    REQUIRE(fcntl(file, F_SETFL, flags & ~O_DIRECT) == 0);
    REQUIRE(pwrite(file, before.data(), before.size(), 0) == static_cast<ssize_t>(before.size()));
    REQUIRE(fcntl(file, F_SETFL, flags) == 0);
    REQUIRE(fails([&] { read_page(*store, newer, 0, source.layout(), target.data()); }, "not what was written"));
  }
}

}  // namespace driver
