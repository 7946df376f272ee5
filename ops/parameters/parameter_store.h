// A model's parameters and what its optimizer keeps, in a directory of the user's. A store is used by one process at a
// time, and by one thread of it at a time.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "parameters/deferred_updates.h"
#include "parameters/parameter_file.h"

namespace poet {

struct ParameterStatistics {  // poet_onnx/training/store_file.py has the same
  uint64_t read_bytes, read_ahead_bytes, written_bytes, commits, file_bytes, buffer_bytes, is_direct;
};

class ParameterStore {
 public:
  // A tensor of a store, as the graph's nodes get it from outside: it says which store, too.
  using Handle = int64_t;

  // Makes a store that others see with its first commit; what an earlier one left unfinished goes. Throws Error, also
  // where there is a store already.
  static uint64_t make(const std::string& directory, std::vector<StoredTensor> tensors, std::string description,
                       uint64_t text_room, ParameterAccess access);
  static uint64_t open(const std::string& directory, ParameterAccess access);
  static void close(uint64_t number);
  // The store that has a number, or that a handle is of. They throw Error.
  static std::shared_ptr<ParameterStore> find(uint64_t number);
  static std::shared_ptr<ParameterStore> of(Handle handle, uint64_t* tensor);
  static Handle handle(uint64_t number, uint64_t tensor) { return static_cast<Handle>(number << 32 | tensor); }

  ~ParameterStore();
  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;

  const ParameterFile& file() const { return *file_; }
  // Bytes of a tensor from `offset` on. They throw Error, also where the tensor has fewer.
  void read(uint64_t tensor, uint64_t offset, void* to, uint64_t bytes);
  void write(uint64_t tensor, uint64_t offset, const void* from, uint64_t bytes);
  // Hands on the pages of a tensor, one after the other: memory, where in the tensor it is from, and bytes. Throws
  // Error.
  void read_pages(uint64_t tensor, const std::function<void(const void*, uint64_t, uint64_t)>& take);

  // Streams `count` elements of neighbouring tensors of floats, from element `first` on, through memory of its own:
  // `change` gets one pointer for each of them, the first element and how many there are, and what it writes is kept.
  // `spare`: room for a page besides. Throws Error: then some of it may be changed, and nothing can be committed.
  struct Part {
    float* tensors[3];
    float* spare;
    uint64_t first;
    uint64_t count;
  };
  // `known`: these elements of the first tensor as they are, which saves reading its whole pages; or nullptr.
  // `overwrites`: `change` writes every element of the first tensor without a look at it, which saves that, too.
  void update(uint64_t tensor, uint64_t tensors, uint64_t first, uint64_t count, const float* known,
              const std::function<void(const Part&)>& change, bool overwrites = false);
  // Updates some pages of a table and what its optimizer keeps for it, in ascending order; to all others it does what
  // an update with a gradient of zero does, later. Whoever reads does not see a difference. Throws Error as above.
  void update_pages(uint64_t tensor, uint64_t tensors, const std::vector<uint64_t>& pages, const float* rates,
                    const std::function<void(const Part&)>& change);
  // What is written until this is finished is one change: where it ends before, nothing can be committed.
  ParameterFile::Change begin_change() { return ParameterFile::Change(*file_); }

  void begin_step();
  void commit(const std::string& text);
  void verify();
  ParameterStatistics statistics() const;

 private:
  static constexpr uint64_t kBlocks = 4;  // three tensors of an update, and one for parts of pages
  explicit ParameterStore(const std::string& directory);
  static uint64_t add(std::unique_ptr<ParameterStore> store);
  void require_range(uint64_t tensor, uint64_t offset, uint64_t bytes) const;
  unsigned char* block(uint64_t index) { return blocks_[index].data(); }
  float* elements(uint64_t index) { return reinterpret_cast<float*>(block(index)); }
  void find_deferred();
  DeferredTable* deferred(uint64_t tensor);  // that a tensor is part of; nullptr: none
  // The table that a tensor is part of, where a page of it missed updates.
  const DeferredTable* lagging(uint64_t tensor, uint64_t page);
  // Reads a page of a table and of its optimizer's tensors into the first blocks; at most `count` elements, from
  // `begin` on, get what they missed.
  void read_made_up(const DeferredTable& table, uint64_t page, uint64_t begin = 0,
                    uint64_t count = kParameterPageBytes);
  void read_page(uint64_t tensor, uint64_t page, unsigned char* to);  // the first block, where that is null
  void write_pages(uint64_t tensor, uint64_t tensors, uint64_t page);

  const std::string directory_;
  const uint64_t fork_depth_;
  int descriptor_ = -1;  // of the file that is locked
  std::optional<StoreLock> lock_;
  std::unique_ptr<ParameterFile> file_;
  bool is_new_ = false;  // nobody sees it yet
  std::array<Staging, kBlocks> blocks_;
  std::vector<DeferredTable> deferred_;
  // The page that lies in the last block; a number that no page has where that is none.
  uint64_t held_tensor_ = ~uint64_t{0}, held_page_ = 0;
  mutable std::mutex mutex_;
};

}  // namespace poet
