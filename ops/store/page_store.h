// The page file of one session, its I/O channel and its slots.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "store/io_queue.h"
#include "store/page_device.h"

namespace poet {

class Page;

// What a plan says of the page file, as the page-out nodes repeat it; 0 slots: the model says nothing. Nothing of it is
// reserved for the saying: room comes with a tensor, or with a node whose tensor's size the runtime knows.
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

  // Throws Error where another plan was declared, or where the session allows no file of that size.
  void declare(const PlanSize& plan);
  // Takes a slot's size from its plan. Throws Error where the plan has no such room, another node says otherwise, or
  // all slots together are not what the plan says of its file.
  void declare_slot(int64_t slot, uint64_t bytes);
  // The page of a slot for one more node, which detaches it at its end. Throws Error where the plan has no such slot.
  std::shared_ptr<Page> page(int64_t slot);
  // Makes a slot's region one of at least `bytes` bytes, reserved on the file system, and returns its offset. A region
  // that grows may move, and what was in it is lost, even where no room is found. Throws Error, also where the plan or
  // the session allows no such room.
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
  struct Slot {
    std::weak_ptr<Page> page;
    bool is_planned = false;
    uint64_t planned_bytes = 0;
    uint64_t offset = 0;
    uint64_t reserved_bytes = 0;  // whole blocks
  };
  void move_region(Slot& slot, uint64_t bytes);

  PageDevice device_;
  std::unique_ptr<IoQueue> queue_;
  const uint64_t fork_depth_;
  const int process_;
  const uint64_t number_;

  std::mutex mutex_;
  bool is_declared_ = false;
  PlanSize plan_;
  std::map<int64_t, Slot> slots_;
  uint64_t planned_bytes_ = 0;   // of the slots that the plan has the sizes of, in whole blocks
  int64_t planned_slots_ = 0;    // their number
  uint64_t reserved_bytes_ = 0;  // on the file system
  uint64_t end_ = 0;             // all regions that no plan has the places of lie below
};

}  // namespace poet
