#include "store/page_store.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <limits>

#include "process/error.h"
#include "process/fork.h"
#include "store/page.h"

namespace poet {
namespace {

constexpr uint64_t kLargestFile = std::numeric_limits<int64_t>::max() / kBlockBytes * kBlockBytes;
constexpr const char* kMostOption = "(PagingOptions(most_bytes=...))";

struct Stores {
  std::mutex mutex;
  std::vector<std::pair<const void*, std::weak_ptr<PageStore>>> stores;  // by session
};

Stores& stores() {
  static Stores* const instance = new Stores;
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

void require_slot(const PlanSize& plan, int64_t slot) {
  if (plan.slots != 0 && slot >= plan.slots)
    throw Error("slot " + std::to_string(slot) + " does not exist in " + describe(plan));
}

}  // namespace

std::shared_ptr<PageStore> PageStore::open(const void* session, const StoreOptions& options) {
  Stores& r = stores();
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
  Stores& r = stores();
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
  const uint64_t most = device_.options().most_bytes;
  if (most != 0 && plan.bytes > most)
    throw Error(describe(plan) + " needs more than the " + std::to_string(most) + " bytes that the session allows " +
                kMostOption);
  plan_ = plan;
  is_declared_ = true;
}

void PageStore::declare_slot(int64_t slot, uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  require_slot(plan_, slot);
  const auto known = slots_.find(slot);
  if (known != slots_.end() && known->second.is_planned) {
    if (known->second.planned_bytes == bytes) return;
    throw Error("slot " + std::to_string(slot) + " has " + std::to_string(known->second.planned_bytes) +
                " bytes by another node's word, but " + std::to_string(bytes) + " by this one's");
  }
  const uint64_t left = plan_.bytes - planned_bytes_;
  if (bytes > left || whole_blocks(bytes) > left)
    throw Error("slot " + std::to_string(slot) + " needs " + std::to_string(bytes) + " bytes, but " +
                std::to_string(left) + " are left of " + describe(plan_));
  if (planned_slots_ + 1 == plan_.slots && whole_blocks(bytes) != left)
    throw Error("the slots of " + describe(plan_) + " need " + std::to_string(planned_bytes_ + whole_blocks(bytes)) +
                " bytes");
  Slot& made = slots_[slot];
  made.is_planned = true;
  made.planned_bytes = bytes;
  made.offset = planned_bytes_;
  planned_bytes_ += whole_blocks(bytes);
  ++planned_slots_;
}

std::shared_ptr<Page> PageStore::page(int64_t slot) {
  const std::lock_guard<std::mutex> lock(mutex_);
  require_slot(plan_, slot);
  std::weak_ptr<Page>& known = slots_[slot].page;
  std::shared_ptr<Page> page = known.lock();
  if (page == nullptr || !page->attach()) known = page = Page::make(shared_from_this(), slot);
  return page;
}

uint64_t PageStore::take(int64_t slot, uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_declared_ = true;  // as without a plan, where nobody has said so
  Slot& known = slots_[slot];
  if (plan_.slots != 0 && !known.is_planned)
    throw Error("slot " + std::to_string(slot) + " has no size in " + describe(plan_));
  if (known.is_planned && bytes > known.planned_bytes)
    throw Error("a tensor of " + std::to_string(bytes) + " bytes does not fit into slot " + std::to_string(slot) +
                ", which has " + std::to_string(known.planned_bytes) + " bytes by its plan");
  if (bytes <= known.reserved_bytes) return known.offset;
  const uint64_t others = reserved_bytes_ - known.reserved_bytes;
  const uint64_t limit = device_.options().most_bytes;
  const uint64_t most = std::min(limit == 0 ? kLargestFile : limit, kLargestFile);
  if (bytes > most || whole_blocks(bytes) > most - std::min(most, others))
    throw Error("slot " + std::to_string(slot) + " needs " + std::to_string(bytes) + " bytes beside " +
                std::to_string(others) + " of other slots, but the page file may have no more than " +
                std::to_string(most) + " bytes " + (limit == 0 ? "" : kMostOption));
  if (known.is_planned) {
    device_.reserve(known.offset + known.reserved_bytes, whole_blocks(bytes) - known.reserved_bytes, plan_.bytes);
    reserved_bytes_ += whole_blocks(bytes) - known.reserved_bytes;
    known.reserved_bytes = whole_blocks(bytes);
  } else {
    move_region(known, whole_blocks(bytes));
  }
  return known.offset;
}

// The caller holds the lock.
void PageStore::move_region(Slot& slot, uint64_t bytes) {
  if (slot.reserved_bytes != 0 && device_.give_back(slot.offset, slot.reserved_bytes))
    reserved_bytes_ -= slot.reserved_bytes;
  slot.reserved_bytes = 0;
  device_.reserve(end_, bytes, bytes);
  slot.offset = end_;
  slot.reserved_bytes = bytes;
  reserved_bytes_ += bytes;
  end_ += bytes;
}

bool PageStore::is_inherited() const { return fork_depth_ != fork_depth(); }

void PageStore::require_own() const {
  if (is_inherited())
    throw Error("the page file in " + device_.options().directory + " belongs to process " + std::to_string(process_) +
                ", which forked this one: make a new session in this process");
}

void PageStore::lock_for_fork() { stores().mutex.lock(); }

void PageStore::unlock_after_fork() { stores().mutex.unlock(); }

}  // namespace poet
