#include "arena/arena_layout.h"

#include <algorithm>
#include <string>

#include "process/error.h"

namespace poet {
namespace {

constexpr int64_t kMostRegionBytes = int64_t{1} << 46;
constexpr size_t kMostSteps = 1 << 24;

// The numbers of a layout, one after the other.
class Reader {
 public:
  explicit Reader(const std::vector<int64_t>& numbers) : numbers_(numbers) {}
  bool is_at_end() const { return at_ == numbers_.size(); }
  size_t left() const { return numbers_.size() - at_; }
  int64_t next() {
    if (is_at_end())
      throw Error("the attribute 'layout' ends within a step, after " + std::to_string(at_) + " numbers");
    return numbers_[at_++];
  }

 private:
  const std::vector<int64_t>& numbers_;
  size_t at_ = 0;
};

bool fits(int64_t offset, int64_t bytes, int64_t region_bytes) {
  return offset >= 0 && bytes >= 0 && offset % int64_t{kBlockAlignment} == 0 && offset <= region_bytes &&
         bytes <= region_bytes - offset;
}

[[noreturn]] void refuse(size_t step, const std::string& what, int64_t region_bytes) {
  throw Error("the attribute 'layout' has in step " + std::to_string(step) + " " + what +
              ", which does not fit the region of " + std::to_string(region_bytes) + " bytes");
}

}  // namespace

ArenaLayout::ArenaLayout(int64_t region_bytes, const std::vector<int64_t>& numbers)
    : region_bytes_(static_cast<uint64_t>(region_bytes)) {
  if (region_bytes < 0 || region_bytes > kMostRegionBytes || region_bytes % int64_t{kBlockAlignment} != 0)
    throw Error("the attribute 'region_bytes' is " + std::to_string(region_bytes) +
                ", but must be a multiple of 64 from 0 to 2^46");
  Reader reader(numbers);
  while (!reader.is_at_end()) {
    const size_t number = steps_.size();
    if (number == kMostSteps) throw Error("the attribute 'layout' has more than 2^24 steps");
    Step step;
    const int64_t offset = reader.next(), bytes = reader.next(), count = reader.next();
    if (!fits(offset, bytes, region_bytes))
      refuse(number, "a workspace of " + std::to_string(bytes) + " bytes at " + std::to_string(offset), region_bytes);
    if (count < 0 || static_cast<size_t>(count) > reader.left() / 3)
      throw Error("the attribute 'layout' has " + std::to_string(count) + " blocks in step " + std::to_string(number) +
                  ", but " + std::to_string(reader.left()) + " numbers follow");
    step.workspace_offset = static_cast<uint64_t>(offset);
    step.workspace_bytes = static_cast<uint64_t>(bytes);
    step.first = static_cast<uint32_t>(entries_.size());
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = reader.next(), size = reader.next(), dies = reader.next();
      if (size < 1 || (at != -1 && !fits(at, size, region_bytes)))
        refuse(number, "a block of " + std::to_string(size) + " bytes at " + std::to_string(at), region_bytes);
      if (dies < static_cast<int64_t>(number) || dies >= static_cast<int64_t>(kMostSteps))
        throw Error("the attribute 'layout' has in step " + std::to_string(number) + " a block that dies in step " +
                    std::to_string(dies));
      entries_.push_back({at, static_cast<uint64_t>(size), static_cast<uint32_t>(dies)});
      if (at >= 0) ++step.planned;
    }
    step.end = static_cast<uint32_t>(entries_.size());
    steps_.push_back(step);
  }
  for (const Entry& entry : entries_)
    if (entry.dies >= steps_.size())
      throw Error("the attribute 'layout' has a block that dies in step " + std::to_string(entry.dies) + ", but " +
                  std::to_string(steps_.size()) + " steps");
  derive();
}

void ArenaLayout::derive() {
  const uint32_t count = step_count();
  next_planned_.assign(count + 1, count);
  next_workspace_.assign(count + 1, count);
  next_asking_.assign(count + 1, count);
  next_empty_.assign(count + 1, count);
  std::vector<uint32_t> born(count + 1), died(count + 1);  // at the begin of a step, since that of the one before
  for (uint32_t step = 0; step < count; ++step)
    for (uint32_t i = steps_[step].first; i < steps_[step].end; ++i)
      if (entries_[i].is_planned()) {
        ++born[step + 1];
        ++died[entries_[i].dies + 1];
      }
  std::vector<bool> is_empty(count + 1);
  uint32_t alive = 0;
  for (uint32_t step = 0; step <= count; ++step) {
    most_alive_ = std::max(most_alive_, alive + born[step]);
    alive = alive + born[step] - died[step];
    is_empty[step] = alive == 0;
  }
  for (uint32_t step = count; step-- > 0;) {
    const bool has_blocks = steps_[step].first != steps_[step].end, has_workspace = steps_[step].workspace_bytes != 0;
    next_planned_[step] = steps_[step].planned != 0 ? step : next_planned_[step + 1];
    next_workspace_[step] = has_workspace ? step : next_workspace_[step + 1];
    next_asking_[step] = has_blocks || has_workspace ? step : next_asking_[step + 1];
    next_empty_[step] = is_empty[step] ? step : next_empty_[step + 1];
  }
}

}  // namespace poet
