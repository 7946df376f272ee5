#include "page_store.h"

#include <unistd.h>

#include <atomic>
#include <limits>

#include "error.h"
#include "fork.h"
#include "page.h"

namespace poet {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<std::pair<const void*, std::weak_ptr<PageStore>>> stores;  // by session
};

Registry& registry() {
  static Registry* const instance = new Registry;
  return *instance;
}

uint64_t next_number() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

std::string describe(const PlanSize& plan) {
  return plan.slots == 0
             ? std::string("no plan")
             : "a plan of " + std::to_string(plan.slots) + " slots and " + std::to_string(plan.bytes) + " bytes";
}

}  // namespace

std::shared_ptr<PageStore> PageStore::open(const void* session, const StoreOptions& options) {
  Registry& r = registry();
  const std::lock_guard<std::mutex> lock(r.mutex);
  for (auto entry = r.stores.begin(); entry != r.stores.end();) {
    const std::shared_ptr<PageStore> store = entry->second.lock();
    if (store != nullptr && session != nullptr && entry->first == session && !store->is_inherited()) return store;
    entry = store == nullptr ? r.stores.erase(entry) : entry + 1;
  }
  auto store = std::make_shared<PageStore>(options);
  r.stores.emplace_back(session, store);
  return store;
}

std::vector<std::shared_ptr<PageStore>> PageStore::all() {
  std::vector<std::shared_ptr<PageStore>> found;
  Registry& r = registry();
  const std::lock_guard<std::mutex> lock(r.mutex);
  for (const auto& entry : r.stores) {
    auto store = entry.second.lock();
    if (store != nullptr && !store->is_inherited()) found.push_back(std::move(store));
  }
  return found;
}

PageStore::PageStore(const StoreOptions& options)
    : device_(options),
      queue_(std::make_unique<IoQueue>(device_)),
      fork_depth_(fork_depth()),
      process_(getpid()),
      number_(next_number()) {}

PageStore::~PageStore() {
  // A child has no thread to stop, and the queue's locks may be held by threads that it lacks.
  if (is_inherited()) static_cast<void>(queue_.release());
}

void PageStore::declare(const PlanSize& plan) {
  if (plan.slots < 0 || (plan.slots == 0 && plan.bytes != 0))
    throw Error("a plan cannot have " + std::to_string(plan.slots) + " slots and " + std::to_string(plan.bytes) +
                " bytes");
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_declared_) {
    if (!(plan == plan_))
      throw Error("the node belongs to " + describe(plan) + ", but other nodes of the model to " + describe(plan_));
    return;
  }
  if (plan.bytes != 0) device_.reserve(0, plan.bytes);
  plan_ = plan;
  is_declared_ = true;
}

std::shared_ptr<Page> PageStore::page(int64_t slot) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (plan_.slots != 0 && slot >= plan_.slots)
    throw Error("slot " + std::to_string(slot) + " does not exist in " + describe(plan_));
  std::weak_ptr<Page>& known = pages_[slot];
  std::shared_ptr<Page> page = known.lock();
  if (page == nullptr || !page->attach()) known = page = Page::make(shared_from_this(), slot);
  return page;
}

uint64_t PageStore::take(int64_t slot, uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t most = plan_.slots != 0 ? plan_.bytes : std::numeric_limits<int64_t>::max();
  const uint64_t padding = (kBlockBytes - bytes % kBlockBytes) % kBlockBytes;
  if (bytes > most - end_ || padding > most - end_ - bytes)
    throw Error("slot " + std::to_string(slot) + " needs " + std::to_string(bytes) + " bytes, but " +
                std::to_string(most - end_) + " are left of " + describe(plan_));
  if (plan_.slots == 0) device_.reserve(end_, bytes + padding);
  const uint64_t offset = end_;
  end_ += bytes + padding;
  return offset;
}

bool PageStore::is_inherited() const { return fork_depth_ != fork_depth(); }

void PageStore::require_own() const {
  if (is_inherited())
    throw Error("the page file in " + device_.options().directory + " belongs to process " + std::to_string(process_) +
                ", which forked this one: make a new session in this process");
}

void PageStore::lock_for_fork() { registry().mutex.lock(); }

void PageStore::unlock_after_fork() { registry().mutex.unlock(); }

}  // namespace poet
