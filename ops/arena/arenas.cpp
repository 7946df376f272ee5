#include "arena/arenas.h"

#include <algorithm>
#include <atomic>

namespace poet::arenas {
namespace {

struct Arenas {
  std::mutex mutex;
  std::vector<std::unique_ptr<Arena>> arenas;
  uint64_t last_number = 0;
};

// Never destroyed: blocks are released until the process has gone.
Arenas& arenas() {
  static auto* const instance = new Arenas;
  return *instance;
}

std::atomic<uint64_t> last_ticket{0};

// The run that this thread is in, as far as it knows: the arena tells whether it is so.
struct Here {
  Arena* arena = nullptr;
  uint64_t ticket = 0;
};
thread_local Here here;

thread_local uint64_t group_here = 0;

}  // namespace

Arena& open(const ArenaLayout& layout) {
  Arenas& r = arenas();
  const std::lock_guard<std::mutex> lock(r.mutex);
  const uint64_t number = ++r.last_number, group = group_here;
  std::shared_ptr<Region> shared;
  for (const auto& arena : r.arenas)
    if (group != 0 && shared == nullptr) shared = arena->region_of(group, layout.region_bytes());
  for (const auto& arena : r.arenas)
    if (arena->open(number, layout, group, shared)) return *arena;
  auto made = std::make_unique<Arena>();
  r.arenas.reserve(r.arenas.size() + 1);
  made->open(number, layout, group, shared);
  r.arenas.push_back(std::move(made));
  return *r.arenas.back();
}

void set_group(uint64_t group) { group_here = group; }

void enter(Arena& arena) {
  if (here.arena != nullptr && here.arena != &arena) here.arena->leave(here.ticket);
  const uint64_t ticket = last_ticket.fetch_add(1, std::memory_order_relaxed) + 1;
  const bool is_entered = arena.enter(ticket, here.arena == &arena ? here.ticket : 0);
  here = is_entered ? Here{&arena, ticket} : Here{};
}

void reach(uint32_t step) noexcept {
  if (here.arena != nullptr) here.arena->reach(here.ticket, step);
}

Grant take(uint64_t bytes) noexcept {
  if (here.arena == nullptr) return {};
  Grant grant{nullptr, here.arena};
  switch (here.arena->take(here.ticket, bytes, &grant.block)) {
    case Arena::Source::kRegion:
    case Arena::Source::kUnplanned:
      return grant;
    case Arena::Source::kNotInStep:
      here = {};
      break;
    case Arena::Source::kExpectedElsewhere:
      break;
  }
  return {};
}

std::vector<uint64_t> numbers() {
  Arenas& r = arenas();
  const std::lock_guard<std::mutex> lock(r.mutex);
  std::vector<uint64_t> found;
  for (const auto& arena : r.arenas)
    if (const uint64_t number = arena->number()) found.push_back(number);
  std::sort(found.begin(), found.end());
  return found;
}

bool read(uint64_t number, ArenaValues* values) {
  if (number == 0) {
    *values = arena_totals().values();
    return true;
  }
  Arenas& r = arenas();
  const std::lock_guard<std::mutex> lock(r.mutex);
  return std::any_of(r.arenas.begin(), r.arenas.end(), [&](const auto& arena) { return arena->read(number, values); });
}

void lock_for_fork() {
  arenas().mutex.lock();
  for (const auto& arena : arenas().arenas) arena->lock_for_fork();
}

void unlock_after_fork() {
  for (const auto& arena : arenas().arenas) arena->unlock_after_fork();
  arenas().mutex.unlock();
}

}  // namespace poet::arenas
