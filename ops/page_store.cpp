#include "page_store.h"

#include <unistd.h>

#include <new>

#include "error.h"
#include "fork.h"

namespace poet {
namespace {

// Regions start and end at pages of the file system, so that direct I/O can use them.
constexpr uint64_t kRegionAlignment = 4096;

uint64_t region_bytes(uint64_t bytes) { return (bytes + kRegionAlignment - 1) / kRegionAlignment * kRegionAlignment; }

struct Registry {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<PageStore>> stores;
};

Registry& registry() {
  static Registry* const instance = new Registry;
  return *instance;
}

}  // namespace

std::shared_ptr<PageStore> PageStore::open(const std::string& directory) {
  Registry& r = registry();
  const std::lock_guard<std::mutex> lock(r.mutex);
  std::weak_ptr<PageStore>& known = r.stores[directory];
  std::shared_ptr<PageStore> store = known.lock();
  if (store == nullptr || store->is_inherited()) known = store = std::make_shared<PageStore>(directory);
  return store;
}

PageStore::PageStore(const std::string& directory, const FileCalls& calls)
    : file_(directory, calls), queue_(std::make_unique<IoQueue>()), fork_depth_(fork_depth()), process_(getpid()) {}

PageStore::~PageStore() {
  // A child has no thread to stop, and the queue's locks may be held by threads that it lacks.
  if (is_inherited()) static_cast<void>(queue_.release());
}

uint64_t PageStore::take(uint64_t bytes) {
  const uint64_t wanted = region_bytes(bytes);
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto region = free_.begin(); region != free_.end(); ++region) {
    const auto [offset, size] = *region;
    if (size < wanted) continue;
    if (size > wanted) free_.emplace(offset + wanted, size - wanted);
    free_.erase(offset);
    return offset;
  }
  file_.reserve(end_, wanted);
  const uint64_t offset = end_;
  end_ += wanted;
  return offset;
}

void PageStore::give_back(uint64_t offset, uint64_t bytes) noexcept {
  if (is_inherited()) return;
  uint64_t size = region_bytes(bytes);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto next = free_.lower_bound(offset);
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      offset = before->first;
      size += before->second;
      free_.erase(before);
    }
  }
  if (next != free_.end() && offset + size == next->first) {
    size += next->second;
    free_.erase(next);
  }
  if (offset + size == end_) {
    end_ = offset;
    file_.shrink(end_);
    return;
  }
  try {
    free_.emplace(offset, size);
  } catch (const std::bad_alloc&) {
    return;  // the region stays unused until the file is closed
  }
}

bool PageStore::is_inherited() const { return fork_depth_ != fork_depth(); }

void PageStore::require_own() const {
  if (is_inherited())
    throw Error("the page file in " + file_.directory() + " belongs to process " + std::to_string(process_) +
                ", which forked this one: make a new session in this process");
}

void PageStore::lock_for_fork() { registry().mutex.lock(); }

void PageStore::unlock_after_fork() { registry().mutex.unlock(); }

}  // namespace poet
