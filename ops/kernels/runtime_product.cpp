#include "kernels/runtime_product.h"

#include <map>
#include <mutex>
#include <tuple>

namespace poet {
namespace {

using MadeProduct = std::shared_ptr<const RuntimeOperator>;

MadeProduct make_product(const NodeInfo& node, RuntimeProduct::Operator kind, bool transposes_left,
                         bool transposes_right, bool adds) {
  using Operator = RuntimeProduct::Operator;
  Attributes attributes(node.api());
  if (kind != Operator::kMatMul) {
    attributes.add("transA", int64_t{transposes_left});
    attributes.add("transB", int64_t{transposes_right});
    attributes.add("alpha", 1.0F);
  } else if (transposes_left || transposes_right) {
    throw Error("a MatMul transposes no matrix");
  }
  if (kind == Operator::kGemm) attributes.add("beta", 1.0F);
  if (kind != Operator::kGemm && adds) throw Error("only a Gemm adds");
  constexpr RuntimeOperator::Name kNames[] = {
      {"Gemm", "", 13}, {"MatMul", "", 13}, {"FusedMatMul", "com.microsoft", 1}};
  return std::make_shared<const RuntimeOperator>(node, kNames[static_cast<int>(kind)], attributes, adds ? 3 : 2);
}

// One for all nodes of a session that need it; it lives as long as one of them does. The operators keep no state.
MadeProduct shared_product(const NodeInfo& node, RuntimeProduct::Operator kind, bool transposes_left,
                           bool transposes_right, bool adds) {
  const void* const session = node.session();
  if (session == nullptr) return make_product(node, kind, transposes_left, transposes_right, adds);
  using Key = std::tuple<const void*, RuntimeProduct::Operator, bool, bool, bool>;
  static std::mutex mutex;
  static auto* const known = new std::map<Key, std::weak_ptr<const RuntimeOperator>>;
  const std::lock_guard<std::mutex> lock(mutex);
  const Key key{session, kind, transposes_left, transposes_right, adds};
  const auto found = known->find(key);
  MadeProduct made = found == known->end() ? nullptr : found->second.lock();
  if (made != nullptr) return made;
  for (auto each = known->begin(); each != known->end();)  // of sessions that are gone
    each = each->second.expired() ? known->erase(each) : std::next(each);
  made = make_product(node, kind, transposes_left, transposes_right, adds);
  (*known)[key] = made;
  return made;
}

}  // namespace

RuntimeProduct::RuntimeProduct(const NodeInfo& node, Operator kind, bool transposes_left, bool transposes_right,
                               bool adds)
    : operator_(shared_product(node, kind, transposes_left, transposes_right, adds)) {}

}  // namespace poet
