// Messages of protobuf, read where they lie: a sequence of fields, each a key (its number times 8, plus its form) and
// its content (https://protobuf.dev, "Encoding").
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "process/error.h"

namespace poet {

enum Form : uint32_t { kVarint = 0, kEightBytes = 1, kMessage = 2, kFourBytes = 5 };

// Where a field begins, and where its content begins and ends.
struct Field {
  uint32_t number;
  uint32_t form;
  uint64_t begin;
  uint64_t content;
  uint64_t end;

  std::string_view of(std::string_view data) const { return data.substr(content, end - content); }
};

[[noreturn]] inline void refuse_message() { throw Error("the model is damaged: it is no protobuf message"); }

// The bytes of an open file: what is looked at is read, a window at a time.
class FileBytes {
 public:
  explicit FileBytes(int descriptor);  // throws Error
  uint64_t size() const { return size_; }
  unsigned char operator[](uint64_t at);
  std::string read(uint64_t begin, uint64_t end) const;

 private:
  int descriptor_;
  uint64_t size_ = 0, start_ = 0;
  std::string window_;
};

// A number written seven bits a byte, lowest first; moves `at` behind it.
template <class Bytes>
uint64_t read_varint(Bytes& data, uint64_t* at, uint64_t end) {
  uint64_t number = 0;
  for (unsigned shift = 0; shift < 64 && *at < end; shift += 7) {
    const auto byte = static_cast<unsigned char>(data[(*at)++]);
    number |= uint64_t{byte & 0x7FU} << shift;
    if (byte < 0x80) return number;
  }
  refuse_message();
}

// The field that begins at `at`, which moves behind it; false at the end.
template <class Bytes>
bool next_field(Bytes& data, uint64_t* at, uint64_t end, Field* field) {
  if (*at >= end) return false;
  field->begin = *at;
  const auto key = static_cast<uint32_t>(read_varint(data, at, end));
  field->number = key >> 3;
  field->form = key & 7;
  field->content = *at;
  uint64_t bytes = 0;
  switch (field->form) {
    case kVarint:
      read_varint(data, at, end);
      break;
    case kMessage:
      bytes = read_varint(data, at, end);
      field->content = *at;
      break;
    case kEightBytes:
      bytes = 8;
      break;
    case kFourBytes:
      bytes = 4;
      break;
    default:
      refuse_message();
  }
  if (bytes > end - *at) refuse_message();
  *at += bytes;
  field->end = *at;
  return true;
}

// Calls `look` with each field of a message in memory.
template <class Look>
void each_field(std::string_view message, Look&& look) {
  uint64_t at = 0;
  for (Field field{}; next_field(message, &at, message.size(), &field);) look(field);
}

// The content of the last field of a number; empty where there is none.
std::string_view last_text(std::string_view message, uint32_t number);

void append_varint(std::string* out, uint64_t number);

// A field with a text, or with a message.
void append_text(std::string* out, uint32_t number, std::string_view text);

}  // namespace poet
