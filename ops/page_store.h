// A page file, its I/O channel and the regions of the file that are taken. One per directory and process.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "io_queue.h"
#include "page_file.h"

namespace poet {

class PageStore {
 public:
  // The store of a directory; opened where no session of this process has it open. Throws Error.
  static std::shared_ptr<PageStore> open(const std::string& directory);

  explicit PageStore(const std::string& directory, const FileCalls& calls = system_calls());
  PageStore(const PageStore&) = delete;
  PageStore& operator=(const PageStore&) = delete;
  ~PageStore();

  // Takes a region of at least `bytes` bytes, reserved on the file system, and returns its offset. Throws Error.
  uint64_t take(uint64_t bytes);
  void give_back(uint64_t offset, uint64_t bytes) noexcept;

  const PageFile& file() const { return file_; }
  IoQueue& queue() { return *queue_; }

  // True in a child of fork(): its use would reach into the parent's file and wait for the parent's thread.
  bool is_inherited() const;
  void require_own() const;  // throws Error where is_inherited

  static void lock_for_fork();
  static void unlock_after_fork();

 private:
  PageFile file_;
  std::unique_ptr<IoQueue> queue_;
  const uint64_t fork_depth_;
  const int process_;

  std::mutex mutex_;
  std::map<uint64_t, uint64_t> free_;  // offset -> bytes, no two adjacent
  uint64_t end_ = 0;                   // all regions lie below
};

}  // namespace poet
