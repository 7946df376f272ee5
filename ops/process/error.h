// The one exception type of the ops library. It never leaves the library: guarded() of ort_api.h makes an OrtStatus of
// it.
#pragma once

#include <stdexcept>
#include <string>

namespace poet {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace poet
