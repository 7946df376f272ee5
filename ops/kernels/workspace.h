// Memory that a kernel needs while it runs, from ONNX Runtime's allocator: a plan counts it, and may have a place for
// it.
#pragma once

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

}  // namespace poet
