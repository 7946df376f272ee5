// What the scenarios of driver.cpp are made of: system calls that fail on demand, tracked memory, nodes.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>

#include "allocation_tracker.h"
#include "error.h"
#include "page.h"
#include "page_store.h"
#include "pending_read.h"

#define REQUIRE(condition)                                                         \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                                \
    }                                                                              \
  } while (false)

namespace driver {

using namespace poet;

constexpr int kFloat = 1;

// ---- system calls that fail on demand ----

enum class Fault { kNone, kInterrupted, kShort, kIoError, kDiskFull, kEndOfFile };
inline std::atomic<int> calls_until_fault{-1};  // counts down; the call that finds 0 fails
inline std::atomic<Fault> fault{Fault::kNone};
inline std::atomic<int> call_delay_microseconds{0};

// What the next call shall do.
inline Fault next_fault() {
  if (const int delay = call_delay_microseconds.load()) usleep(static_cast<useconds_t>(delay));
  int left = calls_until_fault.load();
  while (left >= 0 && !calls_until_fault.compare_exchange_weak(left, left - 1)) {
  }
  return left == 0 ? fault.load() : Fault::kNone;
}

inline int errno_of(Fault kind) { return kind == Fault::kInterrupted ? EINTR : kind == Fault::kIoError ? EIO : ENOSPC; }

template <class Call>
ssize_t with_fault(size_t bytes, Call&& call) {
  const Fault kind = next_fault();
  if (kind == Fault::kNone) return call(bytes);
  if (kind == Fault::kShort) return call(bytes > 1 ? bytes / 2 : bytes);
  if (kind == Fault::kEndOfFile) return 0;
  errno = errno_of(kind);
  return -1;
}

inline const FileCalls kFaultyCalls{
    [](int fd, void* data, size_t bytes, off_t offset) -> ssize_t {
      return with_fault(bytes, [&](size_t n) { return pread(fd, data, n, offset); });
    },
    [](int fd, const void* data, size_t bytes, off_t offset) -> ssize_t {
      return with_fault(bytes, [&](size_t n) { return pwrite(fd, data, n, offset); });
    },
    [](int fd, off_t offset, off_t bytes) -> int {
      const Fault kind = next_fault();
      if (kind == Fault::kNone || kind == Fault::kShort || kind == Fault::kEndOfFile)
        return posix_fallocate(fd, offset, bytes);
      return errno_of(kind);
    },
};

// ---- helpers ----

inline std::string directory;

inline std::shared_ptr<PageStore> make_store(Throttle throttle = {}) {
  return std::make_shared<PageStore>(StoreOptions{directory, throttle}, kFaultyCalls);
}

inline TensorLayout floats(int64_t count) {
  Shape shape(1);
  shape.data()[0] = count;
  return make_layout(kFloat, shape);
}

// Memory as ONNX Runtime's allocator has it: tracked, and released through the tracker.
class Block {
 public:
  explicit Block(size_t count) : count_(count) {
    void* block = nullptr;
    REQUIRE(allocations::replacement_posix_memalign(&block, 64, count * sizeof(float)) == 0);
    data_ = static_cast<float*>(block);
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block() { release(); }
  void release() {
    if (data_ != nullptr) allocations::replacement_free(data_);
    data_ = nullptr;
  }
  void fill(float value) { std::fill(data_, data_ + count_, value); }
  bool is_all(float value) const {
    for (size_t i = 0; i < count_; ++i)
      if (data_[i] != value) return false;
    return true;
  }
  float* data() { return data_; }
  TensorLayout layout() const { return floats(static_cast<int64_t>(count_)); }

 private:
  size_t count_;
  float* data_;
};

// A page-out node: the page lives as long as it.
struct Node {
  explicit Node(const std::shared_ptr<PageStore>& store, int64_t slot) : page(store->page(slot)) {}
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  ~Node() { page->detach(); }
  std::shared_ptr<Page> page;
};

struct ReadNode {
  ReadNode() : read(PendingRead::make()) {}
  ReadNode(const ReadNode&) = delete;
  ReadNode& operator=(const ReadNode&) = delete;
  ~ReadNode() { read->remove(); }
  std::shared_ptr<PendingRead> read;
};

inline bool fails(const std::function<void()>& body, const char* word) {
  try {
    body();
  } catch (const Error& error) {
    if (std::strstr(error.what(), word) != nullptr) return true;
    std::fprintf(stderr, "another error: %s\n", error.what());
  }
  return false;
}

inline int64_t out(Node& node, Block& block, bool asynchronous) {
  if (!asynchronous) return node.page->write(block.data(), block.layout());
  const int64_t token = node.page->start_write(block.data(), block.layout(), true);
  Page::find(token)->end_write(token, block.data());
  return token;
}

inline void in(ReadNode& node, int64_t token, int64_t slot, Block& block, bool asynchronous) {
  if (!asynchronous) return read_page(token, slot, block.layout(), block.data());
  const int64_t ticket = node.read->start(token, slot, block.layout(), block.data(), true);
  PendingRead::find(ticket)->end(ticket, block.data());
}

}  // namespace driver
