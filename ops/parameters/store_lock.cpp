#include "parameters/store_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <set>

#include "process/error.h"
#include "process/fork.h"

namespace poet {
namespace {

std::mutex mutex;

std::set<int>& locked() {
  static auto* const descriptors = new std::set<int>;
  return *descriptors;
}

}  // namespace

StoreLock::StoreLock(int descriptor, const std::string& directory)
    : descriptor_(descriptor), fork_depth_(fork_depth()) {
  const std::lock_guard<std::mutex> guard(mutex);
  locked().insert(descriptor);  // first, for it may fail
  if (flock(descriptor, LOCK_EX | LOCK_NB) == 0) return;
  const int error = errno;
  locked().erase(descriptor);
  throw Error(error == EWOULDBLOCK ? "the store in " + directory + " is in use by another process or session"
                                   : "the store in " + directory + " cannot be locked: " + error_text(error));
}

StoreLock::~StoreLock() {
  if (fork_depth_ != fork_depth()) return;  // this one's is the parent's lock
  const std::lock_guard<std::mutex> guard(mutex);
  locked().erase(descriptor_);
  flock(descriptor_, LOCK_UN);  // a child that was forked a moment ago has the descriptor, too
}

void StoreLock::lock_for_fork() { mutex.lock(); }

void StoreLock::unlock_after_fork(bool in_child) {
  if (in_child && !locked().empty()) {
    const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    for (const int descriptor : locked()) {
      if (nothing < 0 || dup3(nothing, descriptor, O_CLOEXEC) < 0) ::close(descriptor);
    }
    if (nothing >= 0) ::close(nothing);
  }
  mutex.unlock();
}

}  // namespace poet
