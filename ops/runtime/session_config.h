// The session configuration entries `poet.*`, which poet_onnx.runtime.session_options sets.
#pragma once

#include <string>

#include "runtime/ort_api.h"
#include "store/store_options.h"

namespace poet {

struct SessionConfig {
  StoreOptions store_options;
  uint64_t threads = 1;  // inside an operator: a kernel may have memory for each
  std::string text;      // all of it: sessions of the same text have the same options
};

// Throws Error where an entry is not what it must be.
SessionConfig read_session_config(const Api& api, const OrtSessionOptions* options);

}  // namespace poet
