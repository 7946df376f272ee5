// Functions for the Python face (poet_onnx/training/store_file.py, through ctypes). None of them throws: each writes
// what is wrong to `error`, and returns -1.
#include <algorithm>
#include <cstdio>
#include <type_traits>
#include <vector>

#include "parameters/optimizer.h"
#include "parameters/parameter_store.h"

#define POET_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr size_t kErrorBytes = 1024;

// What `body` returns, or 0 where it returns nothing.
template <class Body>
int64_t answered(char* error, Body&& body) {
  try {
    if constexpr (std::is_void_v<decltype(body())>) {
      body();
      return 0;
    } else {
      return static_cast<int64_t>(body());
    }
  } catch (const std::exception& failed) {
    std::snprintf(error, kErrorBytes, "%s", failed.what());
    return -1;
  }
}

// Copies at most `capacity` bytes of a text, and returns how many it has.
uint64_t copied(const std::string& text, char* out, uint64_t capacity) {
  std::copy_n(text.data(), std::min<uint64_t>(capacity, text.size()), out);
  return text.size();
}

}  // namespace

// Makes a store of `count` tensors and returns its number; they are zeros. `changes`: one byte for each: 0 or 1, and
// one more than the tensors in front whose rates a tensor holds (StoredTensor).
POET_EXPORT int64_t poet_store_make(const char* directory, const uint64_t* bytes, const uint8_t* changes,
                                    uint64_t count, const char* description, uint64_t description_bytes,
                                    uint64_t text_room, int access, char* error) {
  return answered(error, [&] {
    std::vector<poet::StoredTensor> tensors(count);
    for (uint64_t i = 0; i < count; ++i)
      tensors[i] = {bytes[i], changes[i] != 0, changes[i] > 1 ? changes[i] - uint64_t{1} : 0};
    return poet::ParameterStore::make(directory, std::move(tensors), {description, description_bytes}, text_room,
                                      static_cast<poet::ParameterAccess>(access));
  });
}

// Opens a store at its last commit and returns its number.
POET_EXPORT int64_t poet_store_open(const char* directory, int access, char* error) {
  return answered(error,
                  [&] { return poet::ParameterStore::open(directory, static_cast<poet::ParameterAccess>(access)); });
}

POET_EXPORT int64_t poet_store_close(uint64_t number, char* error) {
  return answered(error, [&] { poet::ParameterStore::close(number); });
}

// What was said when the store was made.
POET_EXPORT int64_t poet_store_description(uint64_t number, char* out, uint64_t capacity, char* error) {
  return answered(error,
                  [&] { return copied(poet::ParameterStore::find(number)->file().description(), out, capacity); });
}

// What was said at the last commit.
POET_EXPORT int64_t poet_store_text(uint64_t number, char* out, uint64_t capacity, char* error) {
  return answered(error, [&] { return copied(poet::ParameterStore::find(number)->file().text(), out, capacity); });
}

POET_EXPORT int64_t poet_store_handle(uint64_t number, uint64_t tensor) {
  return poet::ParameterStore::handle(number, tensor);
}

POET_EXPORT int64_t poet_store_read(uint64_t number, uint64_t tensor, uint64_t offset, void* to, uint64_t bytes,
                                    char* error) {
  return answered(error, [&] { poet::ParameterStore::find(number)->read(tensor, offset, to, bytes); });
}

POET_EXPORT int64_t poet_store_write(uint64_t number, uint64_t tensor, uint64_t offset, const void* from,
                                     uint64_t bytes, char* error) {
  return answered(error, [&] { poet::ParameterStore::find(number)->write(tensor, offset, from, bytes); });
}

// Updates a parameter and what its optimizer keeps for it, the tensors behind it, from element `first` on: with SGD,
// one tensor, with momentum two, with Adam three. `rates` are those of the operators (optimizer.cpp).
POET_EXPORT int64_t poet_store_update(uint64_t number, uint64_t tensor, uint64_t tensors, const float* gradient,
                                      uint64_t first, uint64_t count, const float* rates, char* error) {
  return answered(error, [&] {
    const auto run = tensors == 1 ? poet::Sgd::run : tensors == 2 ? poet::Momentum::run : poet::Adam::run;
    poet::ParameterStore::find(number)->update(tensor, tensors, first, count, nullptr,
                                               [&](const poet::ParameterStore::Part& part) {
                                                 run(part.tensors, gradient + (part.first - first), part.count, rates);
                                               });
  });
}

// A step begins: pages are read ahead in the order of the last one.
POET_EXPORT int64_t poet_store_begin_step(uint64_t number, char* error) {
  return answered(error, [&] { poet::ParameterStore::find(number)->begin_step(); });
}

POET_EXPORT int64_t poet_store_commit(uint64_t number, const char* text, uint64_t bytes, char* error) {
  return answered(error, [&] { poet::ParameterStore::find(number)->commit({text, bytes}); });
}

POET_EXPORT int64_t poet_store_verify(uint64_t number, char* error) {
  return answered(error, [&] { poet::ParameterStore::find(number)->verify(); });
}

POET_EXPORT int64_t poet_store_statistics(uint64_t number, poet::ParameterStatistics* out, char* error) {
  return answered(error, [&] { *out = poet::ParameterStore::find(number)->statistics(); });
}
