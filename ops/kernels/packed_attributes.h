// Numbers of a node that a session has as one text: "rank=8;biased=1;epsilon=897988541" (a float as its bits).
// ONNX Runtime keeps .7 KB for each attribute, whatever it holds.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace poet {

class PackedAttributes {
 public:
  explicit PackedAttributes(std::string text) : text_(std::move(text)) {}
  // False where there is no such attribute. Throws Error where it is no list of integers.
  bool find(const char* name, std::vector<int64_t>* values) const;
  // Likewise of one integer.
  bool find(const char* name, int64_t* value) const;

 private:
  std::string text_;
};

}  // namespace poet
