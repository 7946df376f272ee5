// Random slots, packed with little and with much work.
#include "addresses/packing.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "harness.h"
#include "scenarios.h"

namespace driver {
namespace {

std::vector<Slot> random_slots(std::mt19937& random, size_t count, int64_t steps) {
  std::vector<Slot> slots;
  for (size_t i = 0; i < count; ++i) {
    const int64_t born = random() % steps, size_bytes = 64 * (1 + random() % 500);
    slots.push_back({born, std::min<int64_t>(steps - 1, born + random() % 9), size_bytes, i % 4 == 0 ? 4096 : 64});
  }
  return slots;
}

int64_t peak_bytes(const std::vector<Slot>& slots, int64_t steps) {
  std::vector<int64_t> live(static_cast<size_t>(steps));
  for (const Slot& slot : slots)
    for (int64_t step = slot.born; step <= slot.dies; ++step) live[static_cast<size_t>(step)] += slot.size_bytes;
  return *std::max_element(live.begin(), live.end());
}

void check(const std::vector<Slot>& slots, const Packing& packing) {
  REQUIRE(packing.offsets.size() == slots.size());
  int64_t highest = 0;
  for (size_t i = 0; i < slots.size(); ++i) {
    const int64_t start = packing.offsets[i], end = start + slots[i].size_bytes;
    REQUIRE(start >= 0 && start % slots[i].alignment_bytes == 0);
    highest = std::max(highest, end);
    for (size_t j = 0; j < i; ++j) {
      const int64_t other = packing.offsets[j];
      REQUIRE(slots[i].born > slots[j].dies || slots[j].born > slots[i].dies || end <= other ||
              other + slots[j].size_bytes <= start);
    }
  }
  REQUIRE(packing.region_bytes == highest);
}

}  // namespace

void slots_that_live_at_once_never_overlap() {
  std::mt19937 random(1);
  for (size_t count = 1; count < 200; count += 9) {
    const int64_t steps = 1 + static_cast<int64_t>(random() % 60);
    const std::vector<Slot> slots = random_slots(random, count, steps);
    SlotOrder order(count), backwards(count);
    std::iota(order.begin(), order.end(), 0U);
    std::reverse_copy(order.begin(), order.end(), backwards.begin());
    const int64_t peak = peak_bytes(slots, steps);
    const Packing quick = pack(slots, {order, backwards}, peak, 0);
    const Packing thorough = pack(slots, {order, backwards}, peak, 300'000);
    check(slots, quick);
    check(slots, thorough);
    REQUIRE(peak <= thorough.region_bytes && thorough.region_bytes <= quick.region_bytes);
  }
}

}  // namespace driver
