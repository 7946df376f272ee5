// One of ONNX Runtime's own operators, called from within a kernel: so its bits are the runtime's.
#pragma once

#include "kernels/kernel.h"

namespace poet {

// An array that somebody else has.
struct Floats {
  float* data;
  Shape shape;

  template <class... Sizes>
  static Floats of(float* data, Sizes... sizes) {
    return {data, Shape::of(sizes...)};
  }
};

// Attributes of an operator that is being made.
class Attributes {
 public:
  explicit Attributes(const Api& api) : api_(api) {}
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;
  ~Attributes();

  void add(const char* name, int64_t value);
  void add(const char* name, float value);
  void add(const char* name, const std::vector<int64_t>& values);
  const std::vector<OrtOpAttr*>& made() const { return made_; }

 private:
  void add(const char* name, const void* data, size_t count, int type);

  const Api& api_;
  std::vector<OrtOpAttr*> made_;
};

class RuntimeOperator {
 public:
  struct Name {
    const char* name;
    const char* domain;
    int version;
  };

  // Takes so many arrays of floats, and makes one.
  RuntimeOperator(const NodeInfo& node, Name name, const Attributes& attributes, int input_count);
  RuntimeOperator(const RuntimeOperator&) = delete;
  RuntimeOperator& operator=(const RuntimeOperator&) = delete;
  ~RuntimeOperator();

  void run(const Context& context, std::initializer_list<const Floats*> inputs, const Floats& output) const;

 private:
  const Api& api_;
  OrtOp* operator_ = nullptr;
  OrtMemoryInfo* memory_ = nullptr;
};

}  // namespace poet
