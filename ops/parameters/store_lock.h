// The lock of a store's file: one process and session has it. A child of fork() has the descriptor, too, and would keep
// the lock for as long as it lives.
#pragma once

#include <cstdint>
#include <string>

namespace poet {

class StoreLock {
 public:
  // Locks an open file of the store in a directory; whoever opened the file closes it later. Throws Error, also where
  // another process or session has it.
  StoreLock(int descriptor, const std::string& directory);
  StoreLock(const StoreLock&) = delete;
  StoreLock& operator=(const StoreLock&) = delete;
  ~StoreLock();

  static void lock_for_fork();
  // In a child the descriptors lead nowhere from now on.
  static void unlock_after_fork(bool in_child);

 private:
  const int descriptor_;
  const uint64_t fork_depth_;
};

}  // namespace poet
