// Memory that a kernel needs while it runs, from ONNX Runtime's allocator: a plan counts it, and may have a place for
// it.
#pragma once

#include <optional>

#include "kernels/kernel.h"
#include "runtime/ort_api.h"

namespace poet {

class Workspace {
 public:
  Workspace(const Api& api, uint64_t bytes) : api_(api) {  // throws Error
    api_.check(api_.get_allocator_with_default_options(&allocator_));
    api_.check(api_.allocator_alloc(allocator_, bytes, &block_));
    if (block_ == nullptr && bytes != 0) throw Error(std::to_string(bytes) + " bytes of workspace cannot be had");
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace() { api_.succeeded(api_.allocator_free(allocator_, block_)); }

  float* floats() const { return static_cast<float*>(block_); }

 private:
  const Api& api_;
  OrtAllocator* allocator_ = nullptr;
  void* block_ = nullptr;
};

// Floats of an output that nobody may ask for: then of a block of the same size, which has the output's place in a
// plan.
class OptionalFloats {
 public:
  OptionalFloats(Context& context, size_t index, const Shape& shape)
      : floats_(static_cast<float*>(context.optional_output(index, shape))) {
    if (floats_ != nullptr) return;
    room_.emplace(context.api(), make_layout(kFloat, shape).bytes);
    floats_ = room_->floats();
  }

  float* get() const { return floats_; }

 private:
  float* floats_;
  std::optional<Workspace> room_;
};

}  // namespace poet
