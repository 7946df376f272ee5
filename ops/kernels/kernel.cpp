#include "kernels/kernel.h"

#include <algorithm>
#include <cstring>

namespace poet {
namespace {

class InfoHandle {
 public:
  explicit InfoHandle(const Api& api) : api_(api) {}
  InfoHandle(const InfoHandle&) = delete;
  InfoHandle& operator=(const InfoHandle&) = delete;
  ~InfoHandle() {
    if (raw_ != nullptr) api_.release_tensor_type_and_shape_info(raw_);
  }
  OrtTensorTypeAndShapeInfo** out() { return &raw_; }
  OrtTensorTypeAndShapeInfo* get() const { return raw_; }

 private:
  const Api& api_;
  OrtTensorTypeAndShapeInfo* raw_ = nullptr;
};

Shape read_shape(const Api& api, const OrtTensorTypeAndShapeInfo* info) {
  size_t rank = 0;
  api.check(api.get_dimensions_count(info, &rank));
  Shape shape(rank);
  api.check(api.get_dimensions(info, shape.data(), rank));
  return shape;
}

void set_inferred(const Api& api, const OrtShapeInferContext* context, size_t output, int32_t dtype,
                  const Shape& shape) {
  InfoHandle info(api);
  api.check(api.create_tensor_type_and_shape_info(info.out()));
  api.check(api.set_tensor_element_type(info.get(), dtype));
  api.check(api.set_dimensions(info.get(), shape.data(), shape.rank()));
  // 1.19.2 reads a name for every dimension and refuses the model where there are none; "" means: it has a number.
  std::vector<const char*> no_names(shape.rank(), "");
  api.check(api.set_symbolic_dimensions(info.get(), no_names.data(), no_names.size()));
  api.check(api.infer_set_output(context, output, info.get()));
}

std::string packed_text(const Api& api, const OrtKernelInfo* raw) {
  size_t size = 0;
  if (!api.succeeded(api.kernel_info_get_string(raw, "packed", nullptr, &size)) || size == 0) return "";
  std::string text(size, '\0');
  api.check(api.kernel_info_get_string(raw, "packed", text.data(), &size));
  text.resize(std::strlen(text.c_str()));
  return text;
}

}  // namespace

NodeInfo::NodeInfo(const Api& api, const OrtKernelInfo* raw, const SessionConfig& config)
    : api_(api), raw_(raw), config_(config), packed_(packed_text(api, raw)) {}

std::string NodeInfo::name() const {
  size_t size = 0;
  if (!api_.succeeded(api_.kernel_info_get_node_name(raw_, nullptr, &size)) || size == 0) return "";
  std::string name(size, '\0');
  if (!api_.succeeded(api_.kernel_info_get_node_name(raw_, name.data(), &size))) return "";
  name.resize(std::strlen(name.c_str()));
  return name;
}

const void* NodeInfo::session() const {
  // The logger is its session's: ONNX Runtime gives each session one of its own (InferenceSession::InitLogger).
  const OrtLogger* logger = nullptr;
  return api_.succeeded(api_.kernel_info_get_logger(raw_, &logger)) ? logger : nullptr;
}

bool NodeInfo::optional_int(const char* attribute, int64_t* value) const {
  return packed_.find(attribute, value) || api_.succeeded(api_.kernel_info_get_int(raw_, attribute, value));
}

float NodeInfo::require_float(const char* attribute) const {
  float value = 0;
  int64_t bits = 0;
  if (packed_.find(attribute, &bits)) {
    const auto pattern = static_cast<uint32_t>(bits);
    std::memcpy(&value, &pattern, sizeof value);
    return value;
  }
  if (!api_.succeeded(api_.kernel_info_get_float(raw_, attribute, &value)))
    throw Error(std::string("the float attribute '") + attribute + "' is missing");
  return value;
}

int64_t NodeInfo::require_int(const char* attribute) const {
  int64_t value = 0;
  if (!optional_int(attribute, &value))
    throw Error(std::string("the integer attribute '") + attribute + "' is missing");
  return value;
}

uint64_t NodeInfo::require_nonnegative(const char* attribute) const {
  const int64_t value = require_int(attribute);
  if (value < 0)
    throw Error(std::string("the attribute '") + attribute + "' is " + std::to_string(value) +
                ", but must be 0 or more");
  return static_cast<uint64_t>(value);
}

std::vector<int64_t> NodeInfo::require_ints(const char* attribute) const {
  std::vector<int64_t> values;
  if (packed_.find(attribute, &values)) return values;
  size_t count = 0;
  if (!api_.succeeded(api_.kernel_info_get_ints(raw_, attribute, nullptr, &count)))
    throw Error(std::string("the integer list attribute '") + attribute + "' is missing");
  values.resize(count);
  if (count != 0) api_.check(api_.kernel_info_get_ints(raw_, attribute, values.data(), &count));
  return values;
}

Shape NodeInfo::require_shape(const char* attribute) const {
  const std::vector<int64_t> sizes = require_ints(attribute);
  Shape shape(sizes.size());
  std::copy(sizes.begin(), sizes.end(), shape.data());
  return shape;
}

bool NodeInfo::static_input_bytes(size_t index, uint64_t* bytes) const {
  OrtTypeInfo* type = nullptr;
  if (!api_.succeeded(api_.kernel_info_get_input_type_info(raw_, index, &type)) || type == nullptr) return false;
  struct Release {
    const Api& api;
    OrtTypeInfo* type;
    ~Release() { api.release_type_info(type); }
  } const release{api_, type};
  const OrtTensorTypeAndShapeInfo* info = nullptr;
  if (!api_.succeeded(api_.cast_type_info_to_tensor_info(type, &info)) || info == nullptr) return false;
  int dtype = kUndefined;
  if (!api_.succeeded(api_.get_tensor_element_type(info, &dtype)) || element_bytes(dtype) == 0) return false;
  const Shape shape = read_shape(api_, info);
  for (size_t i = 0; i < shape.rank(); ++i)
    if (shape.data()[i] < 0) return false;
  *bytes = make_layout(dtype, shape).bytes;
  // No shape at all looks like a scalar here; the first run tells them apart.
  return shape.rank() != 0;
}

std::string described(const Tensor& tensor) {
  return "of element type " + std::to_string(tensor.layout.dtype) + " and shape " + to_string(tensor.layout.shape);
}

void require_room(const Tensor& input, size_t index, uint64_t offset, uint64_t count) {
  const uint64_t room = input.elements();
  if (offset > room || count > room - offset)
    throw Error("a part of " + std::to_string(count) + " elements at offset " + std::to_string(offset) +
                " does not fit into input " + std::to_string(index) + " of " + std::to_string(room));
}

void require_apart(const std::vector<Memory>& memories, size_t changed) {
  const Memory* const first = memories.data();
  for (size_t i = 0; i < changed; ++i)
    for (size_t other = i + 1; other < memories.size(); ++other) {
      const auto a = reinterpret_cast<uintptr_t>(first[i].data), b = reinterpret_cast<uintptr_t>(first[other].data);
      const bool is_any = first[i].bytes != 0 && first[other].bytes != 0;
      if (is_any && a < b + first[other].bytes && b < a + first[i].bytes)
        throw Error("an input that the node changes shares memory with another of its inputs");
    }
}

Tensor Context::input(size_t index) const {
  size_t count = 0;
  api_.check(api_.kernel_context_get_input_count(raw_, &count));
  if (index >= count)
    throw Error("input " + std::to_string(index) + " is missing: the node has " + std::to_string(count) + " inputs");
  Tensor tensor{};
  api_.check(api_.kernel_context_get_input(raw_, index, &tensor.value));
  if (tensor.value == nullptr) throw Error("input " + std::to_string(index) + " is missing");
  InfoHandle info(api_);
  api_.check(api_.get_tensor_type_and_shape(tensor.value, info.out()));
  int dtype = kUndefined;
  api_.check(api_.get_tensor_element_type(info.get(), &dtype));
  tensor.layout = make_layout(dtype, read_shape(api_, info.get()));
  api_.check(api_.get_tensor_mutable_data(const_cast<OrtValue*>(tensor.value), &tensor.data));
  return tensor;
}

int64_t Context::input_token(size_t index) const {
  const Tensor token = input(index);
  if (token.layout.dtype != kInt64 || token.layout.bytes != sizeof(int64_t))
    throw Error("input " + std::to_string(index) + " is no token: it must be one int64, and is " + described(token));
  return *static_cast<const int64_t*>(token.data);
}

OrtValue* Context::find_output(size_t index, const Shape& shape) {
  OrtValue* value = nullptr;
  api_.check(api_.kernel_context_get_output(raw_, index, shape.data(), shape.rank(), &value));
  return value;
}

void* Context::data_of(OrtValue* value) {
  void* data = nullptr;
  api_.check(api_.get_tensor_mutable_data(value, &data));
  return data;
}

const OrtValue* Context::output_value(size_t index, const Shape& shape) {
  const OrtValue* const value = find_output(index, shape);
  if (value == nullptr) throw Error("output " + std::to_string(index) + " is missing");
  return value;
}

void* Context::output(size_t index, const Shape& shape) {
  return data_of(const_cast<OrtValue*>(output_value(index, shape)));
}

void* Context::optional_output(size_t index, const Shape& shape) {
  OrtValue* const value = find_output(index, shape);
  return value == nullptr ? nullptr : data_of(value);
}

void Context::output_token(size_t index, int64_t token) { *static_cast<int64_t*>(output(index, Shape::of(1))) = token; }

void Context::output_true(size_t index) {
  if (void* const data = optional_output(index, Shape::of(1))) *static_cast<bool*>(data) = true;
}

void Context::forward(const Tensor& input) {
  void* data = output(0, input.layout.shape);
  if (data != input.data && input.layout.bytes != 0) std::memcpy(data, input.data, input.layout.bytes);
}

bool Context::has_own_block(const OrtValue* value) const {
  const OrtMemoryInfo* memory = nullptr;
  int type = -1;
  return api_.succeeded(api_.get_tensor_memory_info(value, &memory)) &&
         api_.succeeded(api_.memory_info_get_type(memory, &type)) && type == kDeviceAllocator;
}

float* read_floats(const Context& context, size_t index, uint64_t count) {
  const Tensor tensor = context.input(index);
  if (tensor.layout.dtype != kFloat || tensor.elements() != count)
    throw Error("input " + std::to_string(index) + " is " + described(tensor) + ", but must be " +
                std::to_string(count) + " floats");
  return static_cast<float*>(tensor.data);
}

Tensor read_rows_of_floats(const Context& context, size_t index) {
  const Tensor tensor = context.input(index);
  const Shape& shape = tensor.layout.shape;
  if (tensor.layout.dtype != kFloat || shape.rank() == 0 || shape.last() == 0)
    throw Error("input " + std::to_string(index) + " is " + described(tensor) + ", but must be rows of floats");
  return tensor;
}

Tensor read_floats_alike(const Context& context, size_t count) {
  const Tensor first = context.input(0);
  for (size_t index = 0; index < count; ++index) {
    const Tensor tensor = index == 0 ? first : context.input(index);
    if (tensor.layout.dtype != kFloat || tensor.layout.shape != first.layout.shape)
      throw Error("input " + std::to_string(index) + " is " + described(tensor) + ", but must be float and of shape " +
                  to_string(first.layout.shape));
  }
  return first;
}

uint64_t row_width(const Tensor& rows) { return static_cast<uint64_t>(rows.layout.shape.last()); }

bool read_flag(const Context& context, size_t index) {
  const Tensor flag = context.input(index);
  if (flag.layout.dtype != kBool || flag.layout.bytes != 1)
    throw Error("input " + std::to_string(index) + " must be one bool, and is " + described(flag));
  return *static_cast<const unsigned char*>(flag.data) != 0;  // a model may hold bytes that no bool has
}

void infer_nothing(const Api&, const OrtShapeInferContext*) {}

namespace {

// What is known of input 0, the context's, not to be released; nullptr where nothing is.
OrtTensorTypeAndShapeInfo* first_input(const Api& api, const OrtShapeInferContext* context) {
  OrtTensorTypeAndShapeInfo* info = nullptr;
  return api.succeeded(api.infer_get_input(context, 0, &info)) ? info : nullptr;
}

// Says that the first `count` outputs are what input 0 is, if it has a shape: none at all looks like a scalar here.
void infer_outputs(const Api& api, const OrtShapeInferContext* context, size_t count) {
  OrtTensorTypeAndShapeInfo* const info = first_input(api, context);
  if (info == nullptr || read_shape(api, info).rank() == 0) return;
  for (size_t output = 0; output < count; ++output) api.check(api.infer_set_output(context, output, info));
}

}  // namespace

void infer_from_input(const Api& api, const OrtShapeInferContext* context) { infer_outputs(api, context, 1); }

void infer_two_from_input(const Api& api, const OrtShapeInferContext* context) { infer_outputs(api, context, 2); }

void infer_type_from_input(const Api& api, const OrtShapeInferContext* context) {
  if (OrtTensorTypeAndShapeInfo* const info = first_input(api, context))
    api.check(api.infer_set_output(context, 0, info));
}

void infer_from_attributes(const Api& api, const OrtShapeInferContext* context) {
  const OrtOpAttr* attribute = nullptr;
  size_t bytes = 0;
  int64_t dtype = kUndefined;
  if (!api.succeeded(api.infer_get_attribute(context, "dtype", &attribute)) || attribute == nullptr)
    throw Error("the integer attribute 'dtype' is missing");
  api.check(api.read_op_attribute(attribute, kAttributeInt, &dtype, sizeof dtype, &bytes));
  if (!api.succeeded(api.infer_get_attribute(context, "shape", &attribute)) || attribute == nullptr)
    throw Error("the integer list attribute 'shape' is missing");
  bytes = 0;
  // The first call fails where the list is not empty, and says its size.
  api.succeeded(api.read_op_attribute(attribute, kAttributeInts, nullptr, 0, &bytes));
  Shape shape(bytes / sizeof(int64_t));
  if (shape.rank() != 0) api.check(api.read_op_attribute(attribute, kAttributeInts, shape.data(), bytes, &bytes));
  const TensorLayout layout = make_layout(dtype, shape);
  set_inferred(api, context, 0, layout.dtype, layout.shape);
}

void infer_token(const Api& api, const OrtShapeInferContext* context, size_t output) {
  set_inferred(api, context, output, kInt64, Shape::of(1));
}

void infer_flag(const Api& api, const OrtShapeInferContext* context) {
  set_inferred(api, context, 0, kBool, Shape::of(1));
}

}  // namespace poet
