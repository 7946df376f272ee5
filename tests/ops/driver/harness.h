// What the scenarios of driver.cpp and the fuzzer are made of: stores, tracked memory, nodes.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "faults/faults.h"
#include "process/error.h"
#include "runtime/allocation_tracker.h"
#include "runtime/ort_abi.h"
#include "store/page.h"
#include "store/page_store.h"
#include "store/pending_read.h"

#define REQUIRE(condition)                                                         \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                                \
    }                                                                              \
  } while (false)

namespace driver {

using namespace poet;

// ---- helpers ----

inline std::string directory;

inline std::shared_ptr<PageStore> make_store(StoreOptions options = {}) {
  options.directory = directory;
  options.allows_ram = true;
  return std::make_shared<PageStore>(options);
}

// Every back end, with and without encryption.
inline std::vector<StoreOptions> every_kind_of_store() {
  std::vector<StoreOptions> kinds;
  for (const CipherKind cipher : {CipherKind::kNone, CipherKind::kAes256Gcm, CipherKind::kChaCha20Poly1305})
    for (const BackendKind backend :
         {BackendKind::kAuto, BackendKind::kCached, BackendKind::kUncached, BackendKind::kDirect}) {
      StoreOptions options;
      options.backend = backend;
      options.cipher = cipher;
      kinds.push_back(options);
    }
  return kinds;
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
    if (allocations::replacement_posix_memalign(&block, 64, count * sizeof(float)) != 0) throw std::bad_alloc();
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
  // As paging nodes ask: the release of memory that could not be entered into the tracker's table is not seen.
  bool is_watched() const { return allocations::is_tracked(data_, count_ * sizeof(float)); }
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

// A page-in node.
struct ReadNode {
  explicit ReadNode(std::shared_ptr<PageStore> made_of) : store(std::move(made_of)), read(PendingRead::make(store)) {}
  ReadNode(const ReadNode&) = delete;
  ReadNode& operator=(const ReadNode&) = delete;
  ~ReadNode() { read->remove(); }
  int64_t start(int64_t token, int64_t slot, Block& block) {
    return read->start(token, slot, block.layout(), block.data(), block.is_watched());
  }
  void end(int64_t ticket, const void* data) { PendingRead::find(ticket, *store)->end(ticket, data); }
  const std::shared_ptr<PageStore> store;
  const std::shared_ptr<PendingRead> read;
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
  const int64_t token = node.page->start_write(block.data(), block.layout(), block.is_watched());
  Page::find(token, node.page->store())->end_write(token, block.data());
  return token;
}

inline void in(ReadNode& node, int64_t token, int64_t slot, Block& block, bool asynchronous) {
  if (!asynchronous) return read_page(*node.store, token, slot, block.layout(), block.data());
  node.end(node.start(token, slot, block), block.data());
}

// What the page file takes on the file system.
inline uint64_t held_bytes(const PageStore& store) {
  struct stat status{};
  REQUIRE(fstat(store.device().file().descriptor(), &status) == 0);
  return static_cast<uint64_t>(status.st_blocks) * 512;
}

}  // namespace driver
