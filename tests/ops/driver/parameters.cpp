// Scenarios of a parameter store: calls that fail, and files that somebody damaged or made up.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <random>
#include <string>
#include <vector>

#include "harness.h"
#include "parameters/parameter_store.h"
#include "scenarios.h"
#include "store/checksum.h"

namespace driver {
namespace {

constexpr uint64_t kElements = 40000;  // of the trained tensors: two pages, and a part of one where it is updated
constexpr uint64_t kFrozenElements = 5;
constexpr uint64_t kTextRoom = 64;
// A table of two pages, its momentum, and the rates of its updates; the second page gets its updates late.
constexpr uint64_t kTable = 3, kMomentum = 4, kRateCount = 5;
constexpr float kUpdate[kRateCount] = {1, -1, 0, 1, 0};  // adds the momentum, which stays

// The numbers of the file as ops/parameters/parameter_file.h describes it, written down a second time.
struct Superblock {
  char magic[8];
  uint64_t version, page_bytes, tensors, description_bytes, text_room, file_bytes, described, own;
};
struct CommitHead {
  uint64_t magic, number, text_bytes, body, own;
};
constexpr uint64_t kCommitSeed = 0x54494d4d4f435450;

std::string place() { return directory + "/store"; }
std::string file() { return place() + "/parameters.poet"; }

// A store in use: closed when this goes.
class Opened {
 public:
  explicit Opened(uint64_t number) : number_(number) {}
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
  ~Opened() { ParameterStore::close(number_); }
  ParameterStore* operator->() const { return ParameterStore::find(number_).get(); }

 private:
  const uint64_t number_;
};

void remove_store() {
  for (const char* name : {"/parameters.poet", "/parameters.poet.new", "/lock"}) unlink((place() + name).c_str());
  rmdir(place().c_str());
}

uint64_t opened(ParameterAccess access = ParameterAccess::kCached) { return ParameterStore::open(place(), access); }

// Past the page cache where the file system can.
ParameterAccess direct() {
  try {
    const Opened store(opened(ParameterAccess::kDirect));
    return ParameterAccess::kDirect;
  } catch (const Error&) {
    return ParameterAccess::kCached;
  }
}

void fill(const Opened& store, uint64_t tensor, uint64_t elements, float value) {
  const std::vector<float> values(elements, value);
  store->write(tensor, 0, values.data(), elements * sizeof(float));
}

bool is_all(const Opened& store, uint64_t tensor, uint64_t elements, float value) {
  std::vector<float> values(elements);
  store->read(tensor, 0, values.data(), elements * sizeof(float));
  return std::all_of(values.begin(), values.end(), [value](float each) { return each == value; });
}

// A store of a weight with one moment, something frozen, and a table, committed at step 0.
void make_committed() {
  mkdir(place().c_str(), 0700);
  const Opened store(ParameterStore::make(place(),
                                          {{kElements * 4, true},
                                           {kElements * 4, true},
                                           {kFrozenElements * 4, false},
                                           {kElements * 4, true},
                                           {kElements * 4, true},
                                           {4 + DeferredTable::kMostMissed * kRateCount * 4, true, 2}},
                                          "net", kTextRoom, ParameterAccess::kCached));
  fill(store, 2, kFrozenElements, 7);
  fill(store, 1, kElements, 0);
  fill(store, 0, kElements, 0);
  fill(store, kTable, kElements, 0);
  fill(store, kMomentum, kElements, 1);
  store->commit("0");
}

// Adds 1 to the weight and 2 to its moment, in two parts as split updates do, and 1 to the table.
void train(const Opened& store) {
  store->begin_step();
  for (const auto& [first, count] : {std::pair<uint64_t, uint64_t>{0, 33000}, {33000, kElements - 33000}})
    store->update(0, 2, first, count, nullptr, [](const ParameterStore::Part& part) {
      for (uint64_t i = 0; i < part.count; ++i) {
        part.tensors[0][i] += 1;
        part.tensors[1][i] += 2;
      }
    });
  store->update_pages(kTable, 2, {0}, kUpdate, [](const ParameterStore::Part& part) {
    for (uint64_t i = 0; i < part.count; ++i) part.tensors[0][i] += part.tensors[1][i];
  });
}

// Whether all of the store is as it was at the step that its text names.
int committed_step(const Opened& store) {
  const std::string& text = store->file().text();
  REQUIRE(!text.empty());
  const int step = std::atoi(text.c_str());
  REQUIRE(is_all(store, 0, kElements, static_cast<float>(step)));
  REQUIRE(is_all(store, 1, kElements, static_cast<float>(2 * step)));
  REQUIRE(is_all(store, 2, kFrozenElements, 7));
  REQUIRE(is_all(store, kTable, kElements, static_cast<float>(step)));
  REQUIRE(is_all(store, kMomentum, kElements, 1));
  return step;
}

using Bytes = std::vector<unsigned char>;

Bytes read_file() {
  const int descriptor = open(file().c_str(), O_RDONLY);
  struct stat status{};
  REQUIRE(descriptor >= 0 && fstat(descriptor, &status) == 0);
  Bytes bytes(static_cast<size_t>(status.st_size));
  REQUIRE(pread(descriptor, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  close(descriptor);
  return bytes;
}

void write_file(const Bytes& bytes) {
  const int descriptor = open(file().c_str(), O_WRONLY | O_TRUNC);
  REQUIRE(descriptor >= 0);
  REQUIRE(pwrite(descriptor, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  close(descriptor);
}

// What a step makes of the file: it is refused, or is at one of these steps and goes on from there.
bool is_refused_or_right(int first, int last) {
  try {
    const Opened store(opened());
    store->verify();
    const int step = committed_step(store);
    REQUIRE(step >= first && step <= last);
    train(store);
    store->commit(std::to_string(step + 1));
  } catch (const Error&) {
    return true;
  } catch (const std::bad_alloc&) {
    return true;
  }
  const Opened store(opened());
  committed_step(store);
  return false;
}

// Has every checksum of the file's own numbers fit them, as somebody would who makes a file up.
void sign(Bytes& bytes, size_t pages) {
  constexpr size_t kBlock = 4096;
  auto* const head = reinterpret_cast<Superblock*>(bytes.data());
  const uint64_t described = head->tensors * 16 + head->description_bytes;
  if (described <= bytes.size() - kBlock)
    head->described = checksum_of(bytes.data() + kBlock, static_cast<size_t>(described), head->version);
  head->own = checksum_of(head, offsetof(Superblock, own), head->version);
  // Where the commits are: a head, and in the next block a text with 16 bytes for each page behind it.
  for (size_t at = 2 * kBlock; at <= 4 * kBlock; at += 2 * kBlock) {
    auto* const commit = reinterpret_cast<CommitHead*>(bytes.data() + at);
    if (commit->text_bytes <= kTextRoom)
      commit->body = checksum_of(bytes.data() + at + kBlock, commit->text_bytes + pages * 16, commit->number);
    commit->own = checksum_of(commit, offsetof(CommitHead, own), kCommitSeed);
  }
}

}  // namespace

// Every system call and allocation of opening, two steps and their commits fails in turn, in every way: afterwards the
// store is at this step or the last one, and takes the next. Through the page cache and past it.
void calls_of_a_parameter_store_may_fail() {
  make_committed();
  const ParameterAccess ways[] = {ParameterAccess::kCached, direct()};
  int step = 0, injected = 0;
  for (int kind = 2; kind < 2 * (static_cast<int>(faults::Kind::kOutOfMemory) + 1); ++kind) {
    for (uint64_t nth = 0;; ++nth) {
      bool succeeded = false;
      faults::arm(static_cast<faults::Kind>(kind / 2), nth);
      try {
        const Opened store(opened(ways[kind % 2]));
        for (int turn = 0; turn < 2; ++turn) {  // the second one reads ahead
          train(store);
          store->commit(std::to_string(step + 1 + turn));
        }
        succeeded = true;
      } catch (const Error&) {
      } catch (const std::bad_alloc&) {
      }
      const bool was_reached = faults::disarm() > nth;
      REQUIRE(succeeded || was_reached);
      const Opened store(opened());
      const int now = committed_step(store);
      REQUIRE(now == step + 2 || (!succeeded && now >= step && now < step + 2));
      step = now;
      if (!was_reached) break;
      ++injected;
    }
  }
  REQUIRE(injected >= 100);
  remove_store();
}

// Bytes that change, a file that is cut or longer: nothing but a state that was committed is ever used.
void damaged_parameter_stores_are_refused() {
  make_committed();
  {
    const Opened store(opened());
    train(store);
    store->commit("1");
  }
  const Bytes whole = read_file();
  std::mt19937 random(5);
  int refused = 0;
  constexpr int kTurns = 300;
  for (int turn = 0; turn < kTurns; ++turn) {
    Bytes bytes = whole;
    if (turn % 10 == 0) {
      bytes.resize(turn % 20 == 0 ? random() % bytes.size() : bytes.size() + 1 + random() % 9000);
    } else {
      // Half of the places are among the first blocks, where the file's own numbers are.
      const size_t room = turn % 2 == 0 ? bytes.size() : 6 * 4096;
      bytes[random() % room] ^= static_cast<unsigned char>(1U << random() % 8);
    }
    write_file(bytes);
    refused += is_refused_or_right(0, 1) ? 1 : 0;
  }
  REQUIRE(refused >= kTurns / 4 && refused < kTurns);  // the rest hit room between tensors, or a copy nobody means
  write_file(whole);
  REQUIRE(!is_refused_or_right(1, 1));
  remove_store();
}

// Files whose checksums fit, but whose numbers are anybody's: they are refused, or read within their tensors.
void parameter_stores_that_were_made_up_do_no_harm() {
  make_committed();
  const Bytes whole = read_file();
  std::mt19937_64 random(9);
  constexpr uint64_t kOdd[] = {0,
                               1,
                               2,
                               3,
                               4,
                               5,
                               16,
                               4095,
                               4096,
                               4097,
                               131071,
                               131072,
                               131073,
                               uint64_t{1} << 31,
                               uint64_t{1} << 40,
                               uint64_t{1} << 56,
                               uint64_t{1} << 60,
                               uint64_t{1} << 63};
  const auto odd = [&] {
    const uint64_t number = kOdd[random() % std::size(kOdd)];
    return random() % 3 == 0 ? ~uint64_t{0} - number : number;
  };
  int opened_ones = 0;
  for (int turn = 0; turn < 2000; ++turn) {
    Bytes bytes = whole;
    const auto put = [&](size_t at, uint64_t number) { std::memcpy(bytes.data() + at, &number, sizeof number); };
    for (uint64_t changes = 1 + random() % 2; changes != 0; --changes) {
      switch (random() % 3) {
        case 0:  // behind the magic and the two numbers that say which format it is
          put(24 + random() % 4 * 8, odd());
          break;
        case 1:  // bytes of a tensor, or whether it changes
          put(4096 + random() % 12 * 8, odd());
          break;
        default:  // a commit: its numbers, and its table of pages
          put(random() % 2 == 0 ? (2 + 2 * (random() % 2)) * 4096 + random() % 3 * 8 : 5 * 4096 + random() % 176,
              odd());
      }
    }
    size_t pages = 10;  // two of weight, moment, table and momentum each, one of what is frozen, and one of rates
    if (turn % 20 ==
        0) {  // so many bytes that their sum with a block's is small again, and the file is that much shorter
      put(4096 + 4 * 8, ~uint64_t{0} - random() % 4000);
      bytes.resize(bytes.size() - 4096);
      put(48, bytes.size());
      --pages;
    }
    sign(bytes, pages);
    write_file(bytes);
    try {
      const Opened store(opened());
      ++opened_ones;
      for (uint64_t tensor = 0; tensor < store->file().tensors().size(); ++tensor) {
        std::vector<float> values(kElements);
        const uint64_t most = std::min<uint64_t>(store->file().tensors()[tensor].bytes, kElements * sizeof(float));
        if (!fails([&] { store->read(tensor, 0, values.data(), most); }, "damaged")) continue;
      }
      train(store);
      store->commit("1");
    } catch (const Error&) {
    } catch (const std::bad_alloc&) {
    }
  }
  REQUIRE(opened_ones > 20);
  remove_store();
}

}  // namespace driver
