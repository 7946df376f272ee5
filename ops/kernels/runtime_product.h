// A product of matrices by one of ONNX Runtime's own operators.
#pragma once

#include <memory>

#include "kernels/runtime_operator.h"

namespace poet {

class RuntimeProduct {
 public:
  enum class Operator : int { kGemm = 0, kMatMul = 1, kFusedMatMul = 2 };

  // The product of two matrices, each as it is or transposed and, of a Gemm, plus what is `added`. Products of one kind
  // share the runtime's operator, which takes some KiB, with all nodes of their session.
  RuntimeProduct(const NodeInfo& node, Operator kind, bool transposes_left, bool transposes_right, bool adds);

  // `added` is as large as the product, which it may be itself, or one row. It is given where the operator adds. The
  // left one of a MatMul may have more than two dimensions.
  void run(const Context& context, const Floats& left, const Floats& right, const Floats* added,
           const Floats& product) const {
    operator_->run(context, {&left, &right, added}, product);
  }

 private:
  const std::shared_ptr<const RuntimeOperator> operator_;
};

}  // namespace poet
