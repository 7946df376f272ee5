#include "arena/arena.h"

#include <atomic>
#include <new>

#include "process/atomics.h"
#include "process/error.h"

namespace poet {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

std::atomic<uint64_t> allocator_extra_bytes{0};

bool overlap(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes) { return a < b + b_bytes && b < a + a_bytes; }

}  // namespace

void set_allocator_extra_bytes(uint64_t bytes) { allocator_extra_bytes.store(bytes, kRelaxed); }

bool Arena::open(uint64_t number, const ArenaLayout& layout, uint64_t group, std::shared_ptr<Region> region) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (layout_ != nullptr) return false;
  auto own_layout = std::make_unique<const ArenaLayout>(layout);
  std::vector<Known> known(layout.entry_count());
  LiveBlocks live(layout.most_alive() + 64);
  std::vector<uint32_t> dying(layout.step_count());
  region_ = region != nullptr ? std::move(region) : std::make_shared<Region>(layout.region_bytes());
  group_ = group;
  layout_ = std::move(own_layout);
  known_ = std::move(known);
  live_ = std::move(live);
  dying_ = std::move(dying);
  values_ = {};
  values_.region_bytes = layout.region_bytes();
  outputs_are_bound_ = false;
  run_unplanned_ = 0;
  last_unplanned_ = kNoRun;
  ticket_ = 0;
  number_ = number;
  return true;
}

void Arena::close() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  number_ = 0;
  ticket_ = 0;
  drop_if_unused();
}

void Arena::drop_if_unused() noexcept {
  if (number_ != 0 || layout_ == nullptr || !live_.empty() || unplanned_live_ != 0) return;
  region_.reset();
  layout_.reset();
  known_ = {};
  dying_ = {};
  live_ = LiveBlocks(0);
}

bool Arena::enter(uint64_t ticket, uint64_t previous) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (number_ == 0 || layout_->step_count() == 0) return false;
  const bool is_busy = ticket_ != 0 && ticket_ != previous && run_live_ != 0;
  if (is_busy || region_->is_held_by_other(this)) {
    add_one(values_.refused_steps, arena_totals().refused_steps);
    return false;
  }
  // A block of the plan that outlived its run has left with the caller.
  for (const LiveBlock& block : live_)
    if (block.entry != kNoEntry) outputs_are_bound_ = false;
  // What was passed by and did not come again was no workspace.
  for (Known& known : known_)
    if (known.seen_run == run_ && known.seen != 0 && known.served_run != run_) known.to_pass = 0;
  forget_if_worse();
  add_one(values_.steps, arena_totals().steps);
  ticket_ = ticket;
  ++run_;
  run_live_ = 0;
  std::fill(dying_.begin(), dying_.end(), 0);
  mistake_count_ = 0;
  ambiguous_bytes_ = 0;
  step_ = 0;
  planned_left_ = layout_->step(0).planned;
  return true;
}

// Forgets what was learnt where the last run had more unplanned blocks than the one before it.
void Arena::forget_if_worse() {
  const bool is_worse = run_unplanned_ > last_unplanned_;
  last_unplanned_ = is_worse || run_ == 0 ? kNoRun : run_unplanned_;
  run_unplanned_ = 0;
  if (!is_worse) return;
  outputs_are_bound_ = false;
  for (Known& known : known_) known.to_pass = 0;
}

void Arena::leave(uint64_t ticket) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (ticket_ == ticket) ticket_ = 0;
}

Arena::Source Arena::take(uint64_t ticket, uint64_t bytes, void** block) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (ticket_ == 0 || ticket_ != ticket) return Source::kNotInStep;
  try {
    uint32_t step = step_;
    const uint32_t entry = find_entry(bytes, &step);
    return entry == kNoEntry ? serve_workspace(bytes, block) : serve_entry(entry, step, bytes, block);
  } catch (const std::bad_alloc&) {  // of the list of live blocks
    return refuse(bytes);
  }
}

// The last step that a block may be asked for now: the one that is under way, or else the next with blocks.
uint32_t Arena::horizon() const {
  return is_complete() ? layout_->next_planned(std::min(step_ + 1, layout_->step_count())) : step_;
}

bool Arena::is_expected(uint32_t entry) const { return known_[entry].served_run != run_; }

// Whether this request of an expected block's size is workspace, as it was in an earlier run.
bool Arena::is_passed_by(uint32_t entry) {
  Known& known = known_[entry];
  if (known.seen_run != run_) {
    known.seen_run = run_;
    known.seen = 0;
  }
  if (known.seen >= known.to_pass) return false;
  ++known.seen;
  return true;
}

// Whether a later step cannot have begun: something is alive that dies before it, and the request fits a workspace of
// an earlier one, so that little is lost where that is not so.
bool Arena::is_early(uint32_t step, uint64_t bytes) const {
  bool is_blocked = false, has_workspace = false;
  for (uint32_t at = step_; at < step; ++at) {
    is_blocked = is_blocked || dying_[at] != 0;
    has_workspace = has_workspace || layout_->step(at).workspace_bytes >= bytes;
  }
  return is_blocked && has_workspace;
}

// The expected block that a request is for, and its step.
uint32_t Arena::find_entry(uint64_t bytes, uint32_t* step) {
  const uint64_t extra = allocator_extra_bytes.load(kRelaxed);
  uint32_t elsewhere = kNoEntry, elsewhere_step = 0;
  for (uint32_t at = step_, last = horizon(); at <= last && at < layout_->step_count(); ++at) {
    if (is_early(at, bytes)) break;
    const ArenaLayout::Step& candidates = layout_->step(at);
    for (uint32_t i = candidates.first; i < candidates.end; ++i) {
      const ArenaLayout::Entry& entry = layout_->entry(i);
      if (entry.bytes + extra != bytes || !is_expected(i)) continue;
      if (!entry.is_planned()) {
        if (elsewhere == kNoEntry) elsewhere = i, elsewhere_step = at;
        continue;
      }
      const bool is_first = elsewhere == kNoEntry || outputs_are_bound_;
      if (is_first && is_passed_by(i)) continue;
      if (!is_first) ambiguous_bytes_ = bytes;
      *step = is_first ? at : elsewhere_step;
      return is_first ? i : elsewhere;
    }
  }
  if (elsewhere != kNoEntry) outputs_are_bound_ = false;
  *step = elsewhere_step;
  return elsewhere;
}

Arena::Source Arena::serve_entry(uint32_t entry, uint32_t step, uint64_t bytes, void** block) {
  if (step != step_) arrive(step);
  known_[entry].served_run = run_;
  if (!layout_->entry(entry).is_planned()) return Source::kExpectedElsewhere;
  --planned_left_;
  // The run goes on, so what was released too early was no part of its failure.
  for (size_t i = 0; i < mistake_count_; ++i) ++known_[mistakes_[i]].to_pass;
  mistake_count_ = 0;
  const auto offset = static_cast<uint64_t>(layout_->entry(entry).offset);
  if (bytes > values_.region_bytes - offset || live_.overlaps(offset, bytes)) return refuse(bytes);
  return place(offset, bytes, entry, block);
}

Arena::Source Arena::serve_workspace(uint64_t bytes, void** block) {
  if (bytes == 0) return refuse(bytes);
  const uint32_t last = horizon(), count = layout_->step_count();
  const auto is_awaited = [&](uint64_t at, uint64_t length) -> uint64_t {
    if (last >= count) return 0;
    for (uint32_t i = layout_->step(last).first; i < layout_->step(last).end; ++i) {
      const ArenaLayout::Entry& entry = layout_->entry(i);
      const auto offset = static_cast<uint64_t>(entry.offset);
      if (entry.is_planned() && is_expected(i) && overlap(at, length, offset, entry.bytes)) return offset + entry.bytes;
    }
    return 0;
  };
  const auto nothing = [](uint64_t, uint64_t) -> uint64_t { return 0; };
  uint64_t found = 0;
  const auto fits_zone = [&](uint32_t end, const auto& blocked) {
    for (uint32_t at = std::min(step_, count); (at = layout_->next_workspace(at)) < std::min(end, count); ++at) {
      const ArenaLayout::Step& zone = layout_->step(at);
      const uint64_t zone_end = zone.workspace_offset + zone.workspace_bytes;
      if (live_.first_fit(zone.workspace_offset, zone_end, bytes, blocked, &found)) return true;
    }
    return false;
  };
  // Whether an earlier step asks or the next one with blocks is not known: what suits both comes first.
  if (fits_zone(last + 1, is_awaited) || live_.first_fit(0, values_.region_bytes, bytes, is_awaited, &found) ||
      fits_zone(last, nothing))
    return place(found, bytes, kNoEntry, block);
  return refuse(bytes);
}

Arena::Source Arena::place(uint64_t offset, uint64_t bytes, uint32_t entry, void** block) {
  if (live_.empty() && !region_->hold(this)) return refuse(bytes);
  live_.insert({offset, bytes, run_, step_, entry});
  ++run_live_;
  if (entry != kNoEntry) ++dying_[layout_->entry(entry).dies];
  if (entry == kNoEntry)
    ::poet::add_one(values_.workspace, arena_totals().workspace);
  else
    ::poet::add_one(values_.planned, arena_totals().planned);
  values_.largest_end = std::max(values_.largest_end, offset + bytes);
  raise_to(arena_totals().largest_end, offset + bytes);
  region_->hand_out(offset, bytes);
  *block = region_->data() + offset;
  return Source::kRegion;
}

Arena::Source Arena::refuse(uint64_t bytes) {
  ::poet::add_one(values_.unplanned, arena_totals().unplanned);
  ++run_unplanned_;
  ++unplanned_live_;
  unplanned_live_bytes_ += bytes;
  values_.unplanned_most_bytes = std::max(values_.unplanned_most_bytes, unplanned_live_bytes_);
  raise_to(arena_totals().unplanned_most_bytes, arena_totals().unplanned_bytes.fetch_add(bytes, kRelaxed) + bytes);
  return Source::kUnplanned;
}

// Enters a step of which nothing has been asked for.
void Arena::arrive(uint32_t step) {
  for (uint32_t at = step_; at < step; ++at)
    for (uint32_t i = layout_->step(at).first; i < layout_->step(at).end; ++i)
      if (!layout_->entry(i).is_planned() && is_expected(i)) outputs_are_bound_ = true;
  step_ = step;
  planned_left_ = step < layout_->step_count() ? layout_->step(step).planned : 0;
}

// Enters a step because the one before it has surely ended: what was not asked for by now never will be.
void Arena::jump(uint32_t step) {
  for (uint32_t at = step_; at < step; ++at)
    for (uint32_t i = layout_->step(at).first; i < layout_->step(at).end; ++i) {
      if (!layout_->entry(i).is_planned() || !is_expected(i)) continue;
      known_[i].to_pass = 0;
      if (layout_->entry(i).bytes + allocator_extra_bytes.load(kRelaxed) == ambiguous_bytes_) outputs_are_bound_ = true;
    }
  arrive(step);
}

bool Arena::release(const void* block, uint64_t bytes) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  LiveBlock released;
  const bool is_own = region_ != nullptr && region_->contains(block);
  if (!is_own) {
    --unplanned_live_;
    unplanned_live_bytes_ -= bytes;
    arena_totals().unplanned_bytes.fetch_sub(bytes, kRelaxed);
  } else if (live_.erase(static_cast<uint64_t>(static_cast<const unsigned char*>(block) - region_->data()),
                         &released)) {
    region_->take_back(released.offset, released.bytes);
    if (live_.empty()) region_->give_back();
    if (ticket_ != 0 && released.run == run_) {
      --run_live_;
      learn_from_release(released);
      leave_if_over();
    }
  }
  drop_if_unused();
  return is_own;
}

// A block of the plan goes when its last step has ended, or when the run fails. One that goes earlier, while its own
// step may be under way, was workspace.
void Arena::learn_from_release(const LiveBlock& released) {
  if (released.entry == kNoEntry) return;
  const uint32_t dies = layout_->entry(released.entry).dies;
  --dying_[dies];
  if (dies < step_) return;
  if (released.step == step_) {
    for (LiveBlock& other : live_)
      if (other.entry == kNoEntry && other.run == run_ && other.step == step_ && other.bytes == released.bytes) {
        other.entry = released.entry;
        ++dying_[dies];
        return remember_mistake(released.entry);
      }
    if (!is_complete() || dies >= horizon()) {
      known_[released.entry].served_run = 0;
      ++planned_left_;
      return remember_mistake(released.entry);
    }
  }
  jump(dies + 1);
}

void Arena::remember_mistake(uint32_t entry) {
  if (mistake_count_ == kMostMistakes) return;
  mistakes_[mistake_count_++] = entry;
  known_[entry].seen_run = run_;
  known_[entry].seen = known_[entry].to_pass + 1;
}

// A run ends when nothing of it is alive and nothing is to come, or where the plan has something alive: it has failed.
void Arena::leave_if_over() {
  if (run_live_ != 0) return;
  const uint32_t count = layout_->step_count();
  const uint32_t next = std::min(step_ + 1, count);
  const bool is_last = is_complete() && layout_->next_planned(next) == count && layout_->next_workspace(next) == count;
  const bool has_blocks = step_ < count && is_complete() && layout_->step(step_).planned != 0;
  const bool has_failed = layout_->next_empty(has_blocks ? next : step_) > horizon();
  if (step_ == count || is_last || has_failed) ticket_ = 0;
}

std::shared_ptr<Region> Arena::region_of(uint64_t group, uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return number_ != 0 && group_ == group && region_->bytes() >= bytes ? region_ : nullptr;
}

bool Arena::read(uint64_t number, ArenaValues* values) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (number_ == 0 || number_ != number) return false;
  *values = values_;
  return true;
}

uint64_t Arena::number() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return number_;
}

}  // namespace poet
