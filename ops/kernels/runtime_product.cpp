#include "kernels/runtime_product.h"

namespace poet {
namespace {

RuntimeOperator made(const NodeInfo& node, RuntimeProduct::Operator kind, bool transposes_left, bool transposes_right,
                     bool adds) {
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
  return RuntimeOperator(node, kNames[static_cast<int>(kind)], attributes, adds ? 3 : 2);
}

}  // namespace

RuntimeProduct::RuntimeProduct(const NodeInfo& node, Operator kind, bool transposes_left, bool transposes_right,
                               bool adds)
    : operator_(made(node, kind, transposes_left, transposes_right, adds)) {}

}  // namespace poet
