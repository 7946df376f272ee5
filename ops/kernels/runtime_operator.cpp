#include "kernels/runtime_operator.h"

namespace poet {
namespace {

// Views of arrays as the runtime's values.
class Values {
 public:
  Values(const Api& api, const OrtMemoryInfo* memory) : api_(api), memory_(memory) {}
  Values(const Values&) = delete;
  Values& operator=(const Values&) = delete;
  ~Values() {
    for (OrtValue* each : made_) api_.release_value(each);
  }
  void add(const Floats& floats) {
    const uint64_t bytes = make_layout(kFloat, floats.shape).bytes;
    made_.reserve(made_.size() + 1);
    OrtValue* made = nullptr;
    api_.check(api_.create_tensor_with_data(memory_, floats.data, bytes, floats.shape.data(), floats.shape.rank(),
                                            kFloat, &made));
    made_.push_back(made);
  }
  OrtValue* const* data() const { return made_.data(); }
  int count() const { return static_cast<int>(made_.size()); }

 private:
  const Api& api_;
  const OrtMemoryInfo* memory_;
  std::vector<OrtValue*> made_;
};

}  // namespace

Attributes::~Attributes() {
  for (OrtOpAttr* each : made_) api_.release_op_attr(each);
}

void Attributes::add(const char* name, int64_t value) { add(name, &value, 1, kAttributeInt); }

void Attributes::add(const char* name, float value) { add(name, &value, 1, kAttributeFloat); }

void Attributes::add(const char* name, const std::vector<int64_t>& values) {
  add(name, values.data(), values.size(), kAttributeInts);
}

void Attributes::add(const char* name, const void* data, size_t count, int type) {
  made_.reserve(made_.size() + 1);
  OrtOpAttr* made = nullptr;
  api_.check(api_.create_op_attr(name, data, static_cast<int>(count), type, &made));
  made_.push_back(made);
}

RuntimeOperator::RuntimeOperator(const NodeInfo& node, Name name, const Attributes& attributes, int input_count)
    : api_(node.api()) {
  const char* constraint = "T";
  const int type = kFloat;
  const std::vector<OrtOpAttr*>& made = attributes.made();
  api_.check(api_.create_op(node.raw(), name.name, name.domain, name.version, &constraint, &type, 1, made.data(),
                            static_cast<int>(made.size()), input_count, 1, &operator_));
  constexpr int kDefaultMemory = 0;
  if (OrtStatus* failed = api_.create_cpu_memory_info(kDeviceAllocator, kDefaultMemory, &memory_)) {
    api_.release_op(operator_);
    api_.check(failed);
  }
}

RuntimeOperator::~RuntimeOperator() {
  api_.release_memory_info(memory_);
  api_.release_op(operator_);
}

void RuntimeOperator::run(const Context& context, std::initializer_list<const Floats*> inputs,
                          const Floats& output) const {
  Values given(api_, memory_), made(api_, memory_);
  for (const Floats* each : inputs)
    if (each != nullptr) given.add(*each);
  made.add(output);
  api_.check(api_.invoke_op(context.raw(), operator_, given.data(), given.count(), made.data(), made.count()));
}

}  // namespace poet
