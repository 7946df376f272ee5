#include "parameters/deferred_updates.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "parameters/optimizer.h"
#include "process/error.h"

namespace poet {
namespace {

static_assert(sizeof(uint32_t) + DeferredTable::kMostMissed * Adam::kRates * sizeof(float) <= kParameterPageBytes,
              "the rates are one page");

struct Rule {
  uint64_t rates;
  void (*run)(float* const*, const float*, uint64_t, const float*);
};

// The optimizer that keeps so many tensors, the parameter among them.
Rule rule_of(uint64_t tensors) {
  if (tensors == Sgd::kTensors) return {Sgd::kRates, Sgd::run};
  if (tensors == Momentum::kTensors) return {Momentum::kRates, Momentum::run};
  return {Adam::kRates, Adam::run};
}

}  // namespace

DeferredTable::DeferredTable(ParameterFile& file, uint64_t rates_tensor, Staging& block)
    : rates_tensor_(rates_tensor),
      tensors_(file.tensors()[rates_tensor].rates_of),
      first_(rates_tensor - tensors_),
      rates_(kMostMissed * rate_count()) {
  const auto& tensors = file.tensors();
  const uint64_t bytes = sizeof place_ + rates_.size() * sizeof(float);
  const bool fits =
      tensors_ <= Adam::kTensors && tensors_ <= rates_tensor && tensors[rates_tensor].bytes == bytes &&
      std::all_of(tensors.begin() + static_cast<std::ptrdiff_t>(first_),
                  tensors.begin() + static_cast<std::ptrdiff_t>(rates_tensor),
                  [&](const StoredTensor& each) { return each.changes && each.bytes == tensors[first_].bytes; });
  if (fits) file.read_page(rates_tensor, 0, block);
  if (fits) std::memcpy(&place_, block.data(), sizeof place_);
  bool is_right = fits && place_ < kMostMissed;
  for (uint64_t page = 0; is_right && page < file.page_count(first_); ++page)
    is_right = missed(file, page) <= kMostMissed;
  if (!is_right)
    throw Error("the store in " + file.directory() + " is damaged: tensor " + std::to_string(rates_tensor) +
                " does not hold the rates of a table's updates");
  std::memcpy(rates_.data(), block.data() + sizeof place_, rates_.size() * sizeof(float));
}

uint64_t DeferredTable::rate_count() const { return rule_of(tensors_).rates; }

void DeferredTable::make_up(float* const* tensors, uint64_t count, uint64_t missed) const {
  constexpr uint64_t kSome = 1024;  // elements that stay in the processor's nearest cache
  static constexpr float kZeros[kSome] = {};
  const Rule rule = rule_of(tensors_);
  for (uint64_t first = 0; first < count; first += kSome) {
    std::array<float*, Adam::kTensors> parts{};
    for (uint64_t i = 0; i < tensors_; ++i) parts[i] = tensors[i] + first;
    for (uint64_t ago = missed; ago != 0; --ago)
      rule.run(parts.data(), kZeros, std::min(kSome, count - first),
               rates_.data() + (place_ + kMostMissed - ago) % kMostMissed * rule.rates);
  }
}

DeferredTable::Pages DeferredTable::due(uint64_t page_count) const {
  return {place_ * page_count / kMostMissed, (place_ + 1) * page_count / kMostMissed};
}

void DeferredTable::add(ParameterFile& file, const float* rates, Staging& block) {
  std::copy_n(rates, rate_count(), rates_.data() + place_ * rate_count());
  place_ = (place_ + 1) % kMostMissed;
  std::memcpy(block.data(), &place_, sizeof place_);
  std::memcpy(block.data() + sizeof place_, rates_.data(), rates_.size() * sizeof(float));
  file.write_page(rates_tensor_, 0, block);
}

}  // namespace poet
