#include "kernels/packed_attributes.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "process/error.h"

namespace poet {
namespace {

[[noreturn]] void refuse(std::string_view entry) {
  throw Error("the attribute 'packed' has \"" + std::string(entry) + "\", which is no list of integers");
}

}  // namespace

bool PackedAttributes::find(const char* name, std::vector<int64_t>* values) const {
  const std::string_view wanted(name);
  std::string_view left(text_);
  while (!left.empty()) {
    const std::string_view entry = left.substr(0, left.find(';'));
    left.remove_prefix(std::min(left.size(), entry.size() + 1));
    if (entry.substr(0, entry.find('=')) != wanted) continue;
    values->clear();
    if (entry.size() <= wanted.size()) refuse(entry);
    const char *at = entry.data() + wanted.size() + 1, *const end = entry.data() + entry.size();
    while (at != end) {
      int64_t value = 0;
      const auto read = std::from_chars(at, end, value);
      if (read.ec != std::errc() || (read.ptr != end && (*read.ptr != ',' || read.ptr + 1 == end))) refuse(entry);
      values->push_back(value);
      at = read.ptr == end ? end : read.ptr + 1;
    }
    return true;
  }
  return false;
}

bool PackedAttributes::find(const char* name, int64_t* value) const {
  std::vector<int64_t> values;
  if (!find(name, &values)) return false;
  if (values.size() != 1) refuse(name);
  *value = values.front();
  return true;
}

}  // namespace poet
