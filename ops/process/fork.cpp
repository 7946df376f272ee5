#include "process/fork.h"

#include <pthread.h>

#include <atomic>

#include "arena/arenas.h"
#include "parameters/store_lock.h"
#include "runtime/allocation_tracker.h"
#include "store/io_queue.h"
#include "store/page.h"
#include "store/page_store.h"
#include "store/pending_read.h"

namespace poet {
namespace {

std::atomic<uint64_t> depth{0};

// In the order in which they may be taken one inside the other.
void lock_all() {
  PageStore::lock_for_fork();
  Page::lock_for_fork();
  PendingRead::lock_for_fork();
  IoQueue::lock_for_fork();
  arenas::lock_for_fork();
  allocations::lock_for_fork();
  StoreLock::lock_for_fork();
}

void unlock_all(bool in_child) {
  StoreLock::unlock_after_fork(in_child);
  allocations::unlock_after_fork();
  arenas::unlock_after_fork();
  IoQueue::unlock_after_fork(in_child);
  PendingRead::unlock_after_fork();
  Page::unlock_after_fork();
  PageStore::unlock_after_fork();
}

}  // namespace

uint64_t fork_depth() {
  static const int installed = pthread_atfork(
      lock_all, [] { unlock_all(false); },
      [] {
        depth.fetch_add(1, std::memory_order_relaxed);
        unlock_all(true);
      });
  static_cast<void>(installed);
  return depth.load(std::memory_order_relaxed);
}

}  // namespace poet
