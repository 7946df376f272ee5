// What a page passes through on its way to the file and back: a checksum, or authenticated encryption.
#pragma once

#include <memory>

#include "store/checksum.h"
#include "store/cipher.h"

namespace poet {

// What is remembered of a page, in memory, to know it again. Nothing of it is in the file.
struct Seal {
  uint64_t generation = 0;  // of this write; no other write of the store has it
  uint64_t checksum = 0;
  Cipher::Tag tag{};
};

class Codec {
 public:
  Codec(bool has_checksum, CipherKind cipher);  // throws Error

  // True where the file holds other bytes than the tensor: they need a buffer of their own.
  bool changes_bytes() const { return cipher_ != nullptr; }

  bool begin(bool is_write, int64_t slot, const Seal& seal) noexcept;
  // Moves the next bytes of the page to the file's side or back; `to` may be `from` where changes_bytes() is false.
  bool move(const void* from, void* to, size_t bytes) noexcept;
  bool end_encoding(Seal* seal) noexcept;
  bool end_decoding(const Seal& seal) noexcept;  // false: these are not the bytes that were encoded
  void abandon() noexcept;                       // the page is not ended: its transfer failed

 private:
  const bool has_checksum_;
  std::unique_ptr<Cipher> cipher_;
  Checksum checksum_;
};

}  // namespace poet
