// Functions for the Python face (through ctypes): models as sessions load them (poet_onnx/training/session_model.py).
// None of them throws.
#include <cstdio>
#include <exception>

#include "session_model/session_model.h"

#define POET_EXPORT extern "C" __attribute__((visibility("default")))

// Writes the model in one open file to another one. Of `count` constants, whose messages begin at `begins`, other
// messages stand in their place, of so many `bytes`. Returns 0, or 1 where constants lie in files by names that are
// relative to the model's and that is not `allowed`: nothing was written then; or -1, and `why` says what is wrong.
POET_EXPORT int poet_write_session_model(int from, int to, uint64_t count, const uint64_t* begins,
                                         const char* const* messages, const uint64_t* bytes, int readable, int allowed,
                                         char* why, uint64_t capacity) {
  try {
    poet::SessionModel::References references;
    for (uint64_t i = 0; i < count; ++i) references[begins[i]] = {messages[i], bytes[i]};
    poet::SessionModel model(from, std::move(references), readable != 0);
    if (model.has_files() && allowed == 0) return 1;
    model.write(to);
    return 0;
  } catch (const std::exception& error) {
    std::snprintf(why, capacity, "%s", error.what());
  }
  return -1;
}

// Writes to `out` the name that the model in an open file has for what its session calls "#12" or "%12". Returns 0, or
// 1 where there is none.
POET_EXPORT int poet_long_name(int from, const char* name, char* out, uint64_t capacity) {
  try {
    const std::string found = poet::SessionModel(from, {}, false).long_name(name);
    std::snprintf(out, capacity, "%s", found.c_str());
    return found.empty() ? 1 : 0;
  } catch (const std::exception&) {
  }
  return 1;
}
