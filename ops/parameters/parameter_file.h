// The file of a parameter store: tensors in pages, of which each has a checksum, and commits of all of them together.
//
//   superblock | description | commit 0 | commit 1 | pages, first copy | pages of what changes, second copy
//
// A page that changes is written to the copy that the last commit does not refer to, so that this commit stays whole
// until the next one is. A commit is a text of the user's and the table of all pages: which copy is meant, its
// checksum, and how many updates the page still lacks (deferred_updates.h). It is written to the place of the commit
// before the last one, in this order:
//
//   pages and table; fdatasync; the head of the commit, which is one block with a checksum of table and text; fdatasync
//
// So the newest commit with a whole head is a state as it was at that moment, wherever power was lost. Numbers are
// little-endian, as on every machine that this runs on.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "parameters/page_channel.h"
#include "parameters/read_order.h"
#include "parameters/store_lock.h"
#include "store/page_file.h"
#include "store/staging.h"

namespace poet {

constexpr uint64_t kParameterPageBytes = 128 << 10;

struct StoredTensor {
  uint64_t bytes = 0;
  bool changes = false;  // else it is written once, before the first commit, and has one copy
  // Tensors in front of it whose updates may be deferred, with the rates in this one (deferred_updates.h).
  uint64_t rates_of = 0;
};

// Which copy of a page is meant.
enum class Copy : uint8_t { kFirst = 0, kSecond = 1, kZeros = 2 };  // kZeros: it was never written

struct PageEntry {
  uint64_t checksum = 0;
  Copy copy = Copy::kZeros;
  uint32_t missed = 0;
};

// How the file transfers its pages.
enum class ParameterAccess : int { kAuto = 0, kCached = 1, kDirect = 2 };

class ParameterFile {
 public:
  // Makes a new file of a name that must not be there yet, with room for everything. Throws Error.
  static std::unique_ptr<ParameterFile> make(const std::string& directory, const std::string& name,
                                             std::vector<StoredTensor> tensors, std::string description,
                                             uint64_t text_room, ParameterAccess access);
  // Opens one at its newest commit. Throws Error, also where the file is not whole.
  static std::unique_ptr<ParameterFile> open(const std::string& directory, const std::string& name,
                                             ParameterAccess access);
  ParameterFile(const ParameterFile&) = delete;
  ParameterFile& operator=(const ParameterFile&) = delete;
  ~ParameterFile();

  const std::string& directory() const { return file_.directory(); }
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  const std::string& description() const { return description_; }
  const std::string& text() const { return text_; }  // of the newest commit
  uint64_t commits() const { return commits_; }
  uint64_t file_bytes() const { return end_; }
  bool is_direct() const { return is_direct_; }

  uint64_t page_count(uint64_t tensor) const;
  uint64_t page_bytes(uint64_t tensor, uint64_t page) const;  // that it has of the tensor
  // Reads a page as it was last written into a block with room for a page, which may get other memory. Throws Error,
  // also where these are not the bytes that were written.
  void read_page(uint64_t tensor, uint64_t page, Staging& block) { read_page_to(tensor, page, nullptr, block); }
  // The same into any memory of just its bytes, unless that is null; the block is used where they must pass through it.
  void read_page_to(uint64_t tensor, uint64_t page, unsigned char* to, Staging& block);
  // Throws Error where the tensor has one copy, and that is committed.
  void require_trained(uint64_t tensor) const;
  // Writes a page of a tensor that may change, from such a block; what is there afterwards is anything. Throws Error.
  void write_page(uint64_t tensor, uint64_t page, Staging& block);
  // How many updates a page still lacks; it lasts with the next commit.
  uint64_t missed(uint64_t tensor, uint64_t page) const { return working_[first_page_[tensor] + page].missed; }
  void set_missed(uint64_t tensor, uint64_t page, uint64_t updates) {
    working_[first_page_[tensor] + page].missed = static_cast<uint32_t>(updates);
  }
  // The pages of a tensor that a step reads are not those of the step before: they are not read ahead.
  void expect_any_page(uint64_t tensor) { any_page_[tensor] = true; }
  // A step begins: where there is a channel, pages that the last step read are read ahead, in its order, and pages are
  // written behind. Throws Error.
  void begin_step();
  // Makes what was written the state that the file opens at. Throws Error: then the file opens at this state or the
  // last one, and takes no more writes.
  void commit(const std::string& text);
  // Reads all pages. Throws Error where one is not what was written.
  void verify();

  // A change of several pages. Where it ends before it is done, the file opens at its last commit, and takes no more
  // writes: no commit may have a part of it.
  class Change {
   public:
    explicit Change(ParameterFile& file) : file_(file) { file_.require_usable(); }
    Change(const Change&) = delete;
    Change& operator=(const Change&) = delete;
    ~Change() { file_.has_failed_ |= !is_done_; }
    void finish() { is_done_ = true; }

   private:
    ParameterFile& file_;
    bool is_done_ = false;
  };

  uint64_t buffer_bytes() const { return channel_ == nullptr ? 0 : channel_->buffer_bytes(); }
  uint64_t read_bytes() const { return read_bytes_; }
  uint64_t read_ahead_bytes() const { return read_ahead_bytes_; }  // of what was wanted: it was here or on its way
  uint64_t written_bytes() const { return written_bytes_; }

 private:
  struct Superblock;
  struct Head;
  ParameterFile(int descriptor, const std::string& directory);

  void lay_out();
  void require_room();
  void use(ParameterAccess access);
  bool is_worth_a_channel() const;
  void read_superblock();
  void open_newest_commit();
  bool read_commit(const Head& head);
  Head head_at(uint64_t slot);
  void write_head(const Head& head);
  uint64_t slot_place(uint64_t number) const { return slots_ + number % 2 * slot_bytes_; }
  uint64_t place(uint64_t tensor, uint64_t page, Copy copy) const;
  PageChannel::Page in_file(uint64_t tensor, uint64_t page, Copy copy) const;
  void read(void* data, uint64_t bytes, uint64_t offset);
  void write(const void* data, uint64_t bytes, uint64_t offset);
  void sync();
  void require_usable() const;
  void require_written(const PageChannel::Failure& failure);
  IoResult transfer_in(const MemoryParts& parts, uint64_t offset);
  IoResult transfer_out(const MemoryParts& parts, uint64_t offset);
  void read_ahead();

  PageFile file_;
  const StoreLock lock_;  // whoever has the directory has its lock; but the file may have another name in another one
  const uint64_t fork_depth_;
  std::vector<StoredTensor> tensors_;
  std::string description_;
  std::string text_;
  uint64_t text_room_ = 0;  // for the text of a commit
  uint64_t commits_ = 0;    // the number of the newest one; 0: there is none yet
  bool is_direct_ = false;
  bool drops_cache_ = false;
  bool has_failed_ = false;
  bool has_uncommitted_ = false;  // pages
  // Whether a commit likely follows what the step writes, as it did the last time. Then pages go from the page cache to
  // the disk during the step, rather than all of them when the commit waits for it.
  std::atomic<bool> commits_steps_{false};

  uint64_t slots_ = 0, slot_bytes_ = 0, end_ = 0;
  std::vector<uint64_t> first_page_;      // of each tensor; behind them, how many there are in all
  std::vector<uint64_t> first_, second_;  // where each tensor's copies are
  std::vector<PageEntry> working_;        // of each page, with what was written since the commit
  std::vector<Copy> committed_;           // of each page
  std::vector<bool> any_page_;            // of each tensor: whether nothing of it is foreseen
  std::unique_ptr<Staging> commit_;       // room for a commit as it is in the file
  std::atomic<uint64_t> read_bytes_{0}, written_bytes_{0};
  uint64_t read_ahead_bytes_ = 0;
  ReadOrder order_;
  std::unique_ptr<PageChannel> channel_;  // none where little is moved, or a single core makes copies in memory
};

}  // namespace poet
