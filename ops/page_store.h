// The page file of one session, its I/O channel and its slots.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "io_queue.h"
#include "page_device.h"

namespace poet {

class Page;

// What a plan says of the page file, as the page-out nodes repeat it; 0 slots: the model says nothing.
struct PlanSize {
  int64_t slots = 0;
  uint64_t bytes = 0;  // of the file: every slot has whole blocks (page_file.h)

  friend bool operator==(const PlanSize& a, const PlanSize& b) { return a.slots == b.slots && a.bytes == b.bytes; }
};

class PageStore : public std::enable_shared_from_this<PageStore> {
 public:
  // The store of a session, which is named by an address that no other living session has; nullptr: a store of its own.
  // Throws Error.
  static std::shared_ptr<PageStore> open(const void* session, const StoreOptions& options);
  static std::vector<std::shared_ptr<PageStore>> all();  // of this process, in the order in which they were opened

  explicit PageStore(const StoreOptions& options);
  PageStore(const PageStore&) = delete;
  PageStore& operator=(const PageStore&) = delete;
  ~PageStore();

  // Reserves the file of a plan when it is declared first. Throws Error where that fails, or where another was
  // declared.
  void declare(const PlanSize& plan);
  // The page of a slot for one more node, which detaches it at its end. Throws Error where the plan has no such slot.
  std::shared_ptr<Page> page(int64_t slot);
  // Takes a region of at least `bytes` bytes for a slot, reserved on the file system, and returns its offset. Throws
  // Error, also where the plan has no such room.
  uint64_t take(int64_t slot, uint64_t bytes);

  PageDevice& device() { return device_; }
  const PageDevice& device() const { return device_; }
  IoQueue& queue() { return *queue_; }
  uint64_t number() const { return number_; }  // 1 is the first of the process

  // True in a child of fork(): its use would reach into the parent's file and wait for the parent's thread.
  bool is_inherited() const;
  void require_own() const;  // throws Error where is_inherited

  static void lock_for_fork();
  static void unlock_after_fork();

 private:
  PageDevice device_;
  std::unique_ptr<IoQueue> queue_;
  const uint64_t fork_depth_;
  const int process_;
  const uint64_t number_;

  std::mutex mutex_;
  bool is_declared_ = false;
  PlanSize plan_;
  std::map<int64_t, std::weak_ptr<Page>> pages_;
  uint64_t end_ = 0;  // all regions lie below
};

}  // namespace poet
