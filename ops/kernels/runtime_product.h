// A product of matrices by one of ONNX Runtime's own operators, from within a kernel: so its bits are the runtime's.
#pragma once

#include "kernels/kernel.h"

namespace poet {

struct Matrix {
  float* data;
  Shape shape;  // of two dimensions or, of the left one of a MatMul, more

  static Matrix of(float* data, uint64_t rows, uint64_t columns);
};

class RuntimeProduct {
 public:
  enum class Operator : int { kGemm = 0, kMatMul = 1, kFusedMatMul = 2 };

  // The product of two matrices, each as it is or transposed and, of a Gemm, plus what is `added`.
  RuntimeProduct(const NodeInfo& node, Operator kind, bool transposes_left, bool transposes_right, bool adds);
  RuntimeProduct(const RuntimeProduct&) = delete;
  RuntimeProduct& operator=(const RuntimeProduct&) = delete;
  ~RuntimeProduct();

  // `added` is as large as the product, which it may be itself, or one row. It is given where the operator adds.
  void run(const Context& context, const Matrix& left, const Matrix& right, const Matrix* added,
           const Matrix& product) const;

 private:
  const Api& api_;
  OrtOp* operator_ = nullptr;
  OrtMemoryInfo* memory_ = nullptr;
};

}  // namespace poet
