// What the operators of domain `poet` share: their description for ONNX Runtime, and typed access to inputs and
// outputs.
#pragma once

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/packed_attributes.h"
#include "kernels/parallel.h"
#include "runtime/ort_api.h"
#include "runtime/session_config.h"
#include "store/tensor_layout.h"

namespace poet {

class Context;

// One operator's run-time object. ONNX Runtime makes one per node and session and may run it from several threads.
class Kernel {
 public:
  Kernel() = default;
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;
  virtual ~Kernel() = default;
  virtual void compute(Context& context) = 0;  // throws Error
};

// The node a kernel is made for.
class NodeInfo {
 public:
  NodeInfo(const Api& api, const OrtKernelInfo* raw, const SessionConfig& config);

  const Api& api() const { return api_; }
  const OrtKernelInfo* raw() const { return raw_; }
  const StoreOptions& store_options() const { return config_.store_options; }
  uint64_t threads() const { return config_.threads; }  // of the session, inside an operator
  // An address that is the same for all nodes of a session, and in no other living session; nullptr where unknown.
  const void* session() const;
  std::string name() const;
  float require_float(const char* attribute) const;
  int64_t require_int(const char* attribute) const;
  uint64_t require_nonnegative(const char* attribute) const;
  bool optional_int(const char* attribute, int64_t* value) const;  // false where it is absent
  Shape require_shape(const char* attribute) const;
  std::vector<int64_t> require_ints(const char* attribute) const;
  // The bytes of an input where its shape is known before the first run; false where it is not.
  bool static_input_bytes(size_t index, uint64_t* bytes) const;

 private:
  const Api& api_;
  const OrtKernelInfo* raw_;
  const SessionConfig& config_;
  PackedAttributes packed_;
};

struct Memory {
  const void* data;
  uint64_t bytes;
};

struct Tensor {
  const OrtValue* value;
  void* data;
  TensorLayout layout;

  Memory memory() const { return {data, layout.bytes}; }
  uint64_t elements() const { return layout.bytes / element_bytes(layout.dtype); }
};

// Its element type and shape, for the messages of errors.
std::string described(const Tensor& tensor);

// Throws Error where `count` elements of input `index`, from `offset` on, are more than it has.
void require_room(const Tensor& input, size_t index, uint64_t offset, uint64_t count);

// Throws Error where one of the first `changed` memories, which a kernel changes, overlaps another one.
void require_apart(const std::vector<Memory>& memories, size_t changed);

// One call of a kernel.
class Context {
 public:
  Context(const Api& api, OrtKernelContext* raw) : api_(api), raw_(raw) {}

  const Api& api() const { return api_; }
  const OrtKernelContext* raw() const { return raw_; }
  Workers workers() const { return {api_, raw_}; }
  Tensor input(size_t index) const;
  int64_t input_token(size_t index) const;  // the single int64 of a token or ticket
  void* output(size_t index, const Shape& shape);
  void* optional_output(size_t index, const Shape& shape);  // nullptr where nobody asks for it
  void output_token(size_t index, int64_t token);
  void output_true(size_t index = 0);  // one bool, if somebody asks for it
  // Writes input `index` to output 0, which ONNX Runtime lets share its buffer: a copy only where it could not.
  void forward(const Tensor& input);
  // True where ONNX Runtime's plain CPU allocator owns the tensor's buffer, not an arena that hands out parts of a
  // block.
  bool has_own_block(const OrtValue* value) const;
  const OrtValue* output_value(size_t index, const Shape& shape);

 private:
  OrtValue* find_output(size_t index, const Shape& shape);
  void* data_of(OrtValue* value);
  const Api& api_;
  OrtKernelContext* raw_;
};

// Input `index`, which must be so many floats.
float* read_floats(const Context& context, size_t index, uint64_t count);

// Input `index`, which must be floats in rows along its last axis, of one at least; and how many a row has.
Tensor read_rows_of_floats(const Context& context, size_t index);

// The first of so many inputs of floats, whose shape the others must have.
Tensor read_floats_alike(const Context& context, size_t count);
uint64_t row_width(const Tensor& rows);

// Input `index`, which must be one bool.
bool read_flag(const Context& context, size_t index);

// Whether output 0 shares input 0's buffer.
enum class Sharing {
  kNone,
  kAllowed,       // where nobody reads the input afterwards
  kAllowedTwice,  // likewise, and output 1 that of input 1
  kAlways,
};

template <class K>
std::unique_ptr<Kernel> create(const NodeInfo& node) {
  if constexpr (std::is_constructible_v<K, const NodeInfo&>) {
    return std::make_unique<K>(node);
  } else {
    return std::make_unique<K>();
  }
}

// What is the same in every session; instances are constants, one per operator.
struct OpDefinition {
  const char* name;
  size_t output_count;
  int output_types[3];  // element types; kUndefined: what shape inference says
  Sharing sharing;
  std::unique_ptr<Kernel> (*create)(const NodeInfo&);
  void (*infer)(const Api&, const OrtShapeInferContext*);
};

extern const OpDefinition kArena, kMark;
extern const OpDefinition kGate;
extern const OpDefinition kPageOut, kPageIn, kPageOutStart, kPageOutEnd, kPageInStart, kPageInEnd;
extern const OpDefinition kAccumulate, kAccumulateRows;
extern const OpDefinition kAddLowRank, kAddLowRankGradient, kAddLowRankWeightGradient;
extern const OpDefinition kUpdateSgd, kUpdateMomentum, kUpdateAdam;
extern const OpDefinition kUpdateRowsSgd, kUpdateRowsMomentum, kUpdateRowsAdam;
extern const OpDefinition kBatchNormalize, kBatchNormalizeGradient;
extern const OpDefinition kConvDataGradient;
extern const OpDefinition kConvWeightGradient;
extern const OpDefinition kCountedDropout;
extern const OpDefinition kCountedNormal, kCountedUniform;
extern const OpDefinition kCrossEntropyGradient;
extern const OpDefinition kDepthwiseDataGradient;
extern const OpDefinition kDepthwiseWeightGradient;
extern const OpDefinition kExponentiate;
extern const OpDefinition kActivationGradient, kSoftmaxGradient;
extern const OpDefinition kGatedActivate, kGatedActivateGradient;
extern const OpDefinition kAddRows, kGatherGradient;
extern const OpDefinition kLayerNormalizeGradient;
extern const OpDefinition kMaxPoolTaps, kMaxPoolGradient;
extern const OpDefinition kRectifierGradient;
extern const OpDefinition kRmsNormalize, kRmsNormalizeGradient, kRmsNormalizeScaleGradient;
extern const OpDefinition kRotate;
extern const OpDefinition kLoadStored, kGatherStored, kUpdateStoredSgd, kUpdateStoredMomentum, kUpdateStoredAdam,
    kUpdateRowsStoredSgd, kUpdateRowsStoredMomentum, kUpdateRowsStoredAdam, kAccumulateStored, kAccumulateRowsStored;
extern const OpDefinition kLinearStored, kLinearStoredBackwardSgd, kLinearStoredBackwardMomentum,
    kLinearStoredBackwardAdam;
extern const OpDefinition kLinearQuantized, kGatherQuantized;
extern const OpDefinition kComparePanels;
extern const OpDefinition kConvStored, kConvStoredBackwardSgd, kConvStoredBackwardMomentum, kConvStoredBackwardAdam;
extern const OpDefinition kCompareConvolution;
extern const OpDefinition kAttend, kAttendGradient;
extern const OpDefinition kVocabularyLoss, kVocabularyLossGradient;

// Shape inference: nothing is said beyond what the model says / the output is what input 0 is, where that has a shape
// / so are two / also where it has none, for the type / is of these attributes' type and shape / is one int64 / one
// bool. An output that may be absent must not be inferred: onnxruntime-training 1.19.2 ends the process then.
void infer_nothing(const Api& api, const OrtShapeInferContext* context);
void infer_from_input(const Api& api, const OrtShapeInferContext* context);
void infer_two_from_input(const Api& api, const OrtShapeInferContext* context);
void infer_type_from_input(const Api& api, const OrtShapeInferContext* context);
void infer_from_attributes(const Api& api, const OrtShapeInferContext* context);
void infer_token(const Api& api, const OrtShapeInferContext* context, size_t output);
void infer_flag(const Api& api, const OrtShapeInferContext* context);

// An operator that changes some of its inputs, and whose output only says that it ran.
template <class K>
constexpr OpDefinition update_op(const char* name) {
  return {name, 1, {kBool}, Sharing::kNone, create<K>, infer_nothing};
}

}  // namespace poet
