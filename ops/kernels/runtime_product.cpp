#include "kernels/runtime_product.h"

#include <array>

namespace poet {
namespace {

constexpr int kMostInputs = 3;

// Attributes of an operator that is being made.
class Attributes {
 public:
  explicit Attributes(const Api& api) : api_(api) {}
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;
  ~Attributes() {
    for (OrtOpAttr* each : made_) api_.release_op_attr(each);
  }
  void add(const char* name, const void* value, int type) {
    OrtOpAttr* made = nullptr;
    api_.check(api_.create_op_attr(name, value, 1, type, &made));
    made_.push_back(made);
  }
  const OrtOpAttr* const* data() const { return made_.data(); }
  int count() const { return static_cast<int>(made_.size()); }

 private:
  const Api& api_;
  std::vector<OrtOpAttr*> made_;
};

// Views of matrices as the runtime's values.
class Values {
 public:
  Values(const Api& api, const OrtMemoryInfo* memory) : api_(api), memory_(memory) {}
  Values(const Values&) = delete;
  Values& operator=(const Values&) = delete;
  ~Values() {
    for (OrtValue* each : made_)
      if (each != nullptr) api_.release_value(each);
  }
  void add(const Matrix& matrix) {
    const uint64_t bytes = make_layout(kFloat, matrix.shape).bytes;
    api_.check(api_.create_tensor_with_data(memory_, matrix.data, bytes, matrix.shape.data(), matrix.shape.rank(),
                                            kFloat, &made_[count_]));
    ++count_;
  }
  OrtValue* const* data() const { return made_.data(); }
  int count() const { return static_cast<int>(count_); }

 private:
  const Api& api_;
  const OrtMemoryInfo* memory_;
  std::array<OrtValue*, kMostInputs> made_{};
  size_t count_ = 0;
};

}  // namespace

Matrix Matrix::of(float* data, uint64_t rows, uint64_t columns) {
  Matrix matrix{data, Shape(2)};
  matrix.shape.data()[0] = static_cast<int64_t>(rows);
  matrix.shape.data()[1] = static_cast<int64_t>(columns);
  return matrix;
}

RuntimeProduct::RuntimeProduct(const NodeInfo& node, Operator kind, bool transposes_left, bool transposes_right,
                               bool adds)
    : api_(node.api()) {
  const int64_t left = transposes_left, right = transposes_right;
  const float one = 1.0F;
  Attributes attributes(api_);
  if (kind != Operator::kMatMul) {
    attributes.add("transA", &left, kAttributeInt);
    attributes.add("transB", &right, kAttributeInt);
    attributes.add("alpha", &one, kAttributeFloat);
  } else if (transposes_left || transposes_right) {
    throw Error("a MatMul transposes no matrix");
  }
  if (kind == Operator::kGemm) attributes.add("beta", &one, kAttributeFloat);
  if (kind != Operator::kGemm && adds) throw Error("only a Gemm adds");
  constexpr const char* kNames[] = {"Gemm", "MatMul", "FusedMatMul"};
  constexpr int kGemmVersion = 13, kOwnVersion = 1;
  const bool is_own = kind == Operator::kFusedMatMul;
  const char* constraint = "T";
  const int type = kFloat;
  api_.check(api_.create_op(node.raw(), kNames[static_cast<int>(kind)], is_own ? "com.microsoft" : "",
                            is_own ? kOwnVersion : kGemmVersion, &constraint, &type, 1, attributes.data(),
                            attributes.count(), adds ? 3 : 2, 1, &operator_));
  constexpr int kDefaultMemory = 0;
  if (OrtStatus* failed = api_.create_cpu_memory_info(kDeviceAllocator, kDefaultMemory, &memory_)) {
    api_.release_op(operator_);
    api_.check(failed);
  }
}

RuntimeProduct::~RuntimeProduct() {
  api_.release_memory_info(memory_);
  api_.release_op(operator_);
}

void RuntimeProduct::run(const Context& context, const Matrix& left, const Matrix& right, const Matrix* added,
                         const Matrix& product) const {
  Values inputs(api_, memory_), outputs(api_, memory_);
  inputs.add(left);
  inputs.add(right);
  if (added != nullptr) inputs.add(*added);
  outputs.add(product);
  api_.check(api_.invoke_op(context.raw(), operator_, inputs.data(), inputs.count(), outputs.data(), outputs.count()));
}

}  // namespace poet
