#include "store/codec.h"

#include <cstring>

namespace poet {

// Encryption authenticates, which makes a checksum superfluous.
Codec::Codec(bool has_checksum, CipherKind cipher)
    : has_checksum_(has_checksum && cipher == CipherKind::kNone),
      cipher_(cipher == CipherKind::kNone ? nullptr : std::make_unique<Cipher>(cipher)) {}

bool Codec::begin(bool is_write, int64_t slot, const Seal& seal) noexcept {
  if (has_checksum_) checksum_.begin(seal.generation);
  return cipher_ == nullptr || cipher_->begin(is_write, slot, seal.generation);
}

bool Codec::move(const void* from, void* to, size_t bytes) noexcept {
  if (cipher_ != nullptr) return cipher_->add(from, to, bytes);
  if (to != from) std::memcpy(to, from, bytes);
  if (has_checksum_) checksum_.add(to, bytes);
  return true;
}

bool Codec::end_encoding(Seal* seal) noexcept {
  if (has_checksum_) seal->checksum = checksum_.value();
  return cipher_ == nullptr || cipher_->end_encryption(&seal->tag);
}

bool Codec::end_decoding(const Seal& seal) noexcept {
  if (cipher_ != nullptr) return cipher_->end_decryption(seal.tag);
  return !has_checksum_ || checksum_.value() == seal.checksum;
}

void Codec::abandon() noexcept {
  if (cipher_ != nullptr) cipher_->abandon();
}

}  // namespace poet
