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
  region_ = region != nullptr ? std::move(region) : std::make_shared<Region>(layout.region_bytes());
  group_ = group;
  layout_ = std::move(own_layout);
  known_ = std::move(known);
  live_ = std::move(live);
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
  mistake_count_ = 0;
  ambiguous_bytes_ = 0;
  step_ = learnt_step_ = 0;
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

void Arena::reach(uint64_t ticket, uint32_t step) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (ticket_ == 0 || ticket_ != ticket || step <= step_) return;
  step_ = std::min(step, layout_->step_count());
  learn_from_steps();
  if (step_ == layout_->step_count()) ticket_ = 0;
}

Arena::Source Arena::take(uint64_t ticket, uint64_t bytes, void** block) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (ticket_ == 0 || ticket_ != ticket) return Source::kNotInStep;
  try {
    learn_from_steps();
    const Place place = find_place(bytes);
    step_ = place.step;
    return place.entry == kNoEntry ? serve_workspace(bytes, block) : serve_entry(place.entry, bytes, block);
  } catch (const std::bad_alloc&) {  // of the list of live blocks
    return refuse(bytes);
  }
}

// Whether all blocks of a step that the region has were asked for.
bool Arena::is_complete(uint32_t step) const {
  for (uint32_t i = layout_->step(step).first; i < layout_->step(step).end; ++i)
    if (layout_->entry(i).is_planned() && is_expected(i)) return false;
  return true;
}

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

// A step's own blocks come first, then what its workspace has room for, and only then a step that follows. Of a few
// steps a block may be missing: a session that writes updates into a graph lets some gradients go elsewhere.
Arena::Place Arena::find_place(uint64_t bytes) {
  uint32_t skipped = 0;
  for (uint32_t at = step_; at < layout_->step_count(); at = layout_->next_asking(at + 1)) {
    const uint32_t entry = find_entry(at, bytes);
    const bool is_workspace = skipped == 0 && bytes <= layout_->step(at).workspace_bytes;
    if (entry != kNoEntry || is_workspace) return {at, entry};
    if (!is_complete(at) && ++skipped > kMostSkipped) break;
  }
  return {step_, kNoEntry};
}

// The block of a step that is expected and of a request's size. One that leaves with the caller may never come.
uint32_t Arena::find_entry(uint32_t step, uint64_t bytes) {
  const uint64_t extra = allocator_extra_bytes.load(kRelaxed);
  uint32_t elsewhere = kNoEntry;
  for (uint32_t i = layout_->step(step).first; i < layout_->step(step).end; ++i) {
    const ArenaLayout::Entry& entry = layout_->entry(i);
    if (entry.bytes + extra != bytes || !is_expected(i)) continue;
    if (!entry.is_planned()) {
      elsewhere = std::min(elsewhere, i);
    } else if (elsewhere != kNoEntry && !outputs_are_bound_) {
      ambiguous_bytes_ = bytes;
      return elsewhere;
    } else if (!is_passed_by(i)) {
      return i;
    }
  }
  if (elsewhere == kNoEntry || (outputs_are_bound_ && bytes <= layout_->step(step).workspace_bytes)) return kNoEntry;
  outputs_are_bound_ = false;
  return elsewhere;
}

Arena::Source Arena::serve_entry(uint32_t entry, uint64_t bytes, void** block) {
  known_[entry].served_run = run_;
  if (!layout_->entry(entry).is_planned()) return Source::kExpectedElsewhere;
  // The run goes on, so what was released too early was no part of its failure.
  for (size_t i = 0; i < mistake_count_; ++i) ++known_[mistakes_[i]].to_pass;
  mistake_count_ = 0;
  const auto offset = static_cast<uint64_t>(layout_->entry(entry).offset);
  if (bytes > values_.region_bytes - offset || live_.overlaps(offset, bytes)) return refuse(bytes);
  return place(offset, bytes, entry, block);
}

Arena::Source Arena::serve_workspace(uint64_t bytes, void** block) {
  if (bytes == 0) return refuse(bytes);
  const bool is_within = step_ < layout_->step_count();
  const ArenaLayout::Step step = is_within ? layout_->step(step_) : ArenaLayout::Step{};
  const auto is_awaited = [&](uint64_t at, uint64_t length) -> uint64_t {
    for (uint32_t i = step.first; i < step.end; ++i) {
      const ArenaLayout::Entry& entry = layout_->entry(i);
      const auto offset = static_cast<uint64_t>(entry.offset);
      if (entry.is_planned() && is_expected(i) && overlap(at, length, offset, entry.bytes)) return offset + entry.bytes;
    }
    return 0;
  };
  uint64_t found = 0;
  const uint64_t zone_end = step.workspace_offset + step.workspace_bytes;
  if (live_.first_fit(step.workspace_offset, zone_end, bytes, is_awaited, &found) ||
      live_.first_fit(0, values_.region_bytes, bytes, is_awaited, &found))
    return place(found, bytes, kNoEntry, block);
  return refuse(bytes);
}

Arena::Source Arena::place(uint64_t offset, uint64_t bytes, uint32_t entry, void** block) {
  if (live_.empty() && !region_->hold(this)) return refuse(bytes);
  live_.insert({offset, bytes, run_, step_, entry});
  ++run_live_;
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

// The run goes on: what was not asked for in the steps before this one never will be.
void Arena::learn_from_steps() {
  for (; learnt_step_ < step_; ++learnt_step_)
    for (uint32_t i = layout_->step(learnt_step_).first; i < layout_->step(learnt_step_).end; ++i) {
      if (!is_expected(i)) continue;
      const ArenaLayout::Entry& entry = layout_->entry(i);
      if (entry.is_planned()) known_[i].to_pass = 0;
      if (!entry.is_planned() || entry.bytes + allocator_extra_bytes.load(kRelaxed) == ambiguous_bytes_)
        outputs_are_bound_ = true;
    }
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

// A block of the plan goes when its last step has ended, or when the run fails. One that goes while its own step is
// under way was workspace.
void Arena::learn_from_release(const LiveBlock& released) {
  if (released.entry == kNoEntry) return;
  const uint32_t dies = layout_->entry(released.entry).dies;
  if (dies < step_ || (released.step == step_ && dies == step_)) return;
  const bool was_workspace =
      released.step == step_ && (!is_complete(step_) || layout_->next_planned(step_ + 1) <= dies ||
                                 released.bytes <= layout_->step(step_).workspace_bytes);
  if (!was_workspace) {
    step_ = dies + 1;
    return;
  }
  remember_mistake(released.entry);
  for (LiveBlock& other : live_)
    if (other.entry == kNoEntry && other.run == run_ && other.step == step_ && other.bytes == released.bytes) {
      other.entry = released.entry;
      return;
    }
  known_[released.entry].served_run = 0;
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
  const bool is_done = step_ == count || (is_complete(step_) && layout_->step(step_).workspace_bytes == 0);
  const uint32_t next = is_done ? std::min(step_ + 1, count) : step_;
  const bool is_last = is_done && layout_->next_planned(next) == count && layout_->next_workspace(next) == count;
  const bool has_blocks = step_ < count && is_done && layout_->step(step_).planned != 0;
  const bool has_failed = layout_->next_empty(has_blocks ? next : step_) > layout_->next_asking(next);
  if (is_last || has_failed) ticket_ = 0;
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
