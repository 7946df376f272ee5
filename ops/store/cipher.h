// Authenticated encryption of pages with a key that exists only in this process's memory, by OpenSSL's libcrypto, which
// is loaded when a session asks for encryption and not needed otherwise.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace poet {

enum class CipherKind { kNone, kAes256Gcm, kChaCha20Poly1305 };

// Encrypts or decrypts one page at a time.
class Cipher {
 public:
  static constexpr size_t kTagBytes = 16;
  using Tag = std::array<unsigned char, kTagBytes>;

  // Makes a random key. Throws Error where there is no libcrypto.
  explicit Cipher(CipherKind kind);
  Cipher(const Cipher&) = delete;
  Cipher& operator=(const Cipher&) = delete;
  ~Cipher();  // wipes the key

  // Starts a page. No two pages may be encrypted with the same generation; the slot is authenticated beside it.
  bool begin(bool encrypts, int64_t slot, uint64_t generation) noexcept;
  bool add(const void* from, void* to, size_t bytes) noexcept;
  bool end_encryption(Tag* tag) noexcept;
  bool end_decryption(
      const Tag& tag) noexcept;  // false: the page, its slot or its generation is not what was encrypted
  void abandon() noexcept;       // forgets the page under way

 private:
  static constexpr size_t kKeyBytes = 32;

  const CipherKind kind_;
  void* context_ = nullptr;       // an EVP_CIPHER_CTX; holds the key only while a page is under way
  unsigned char* key_ = nullptr;  // in a page of memory of its own
};

}  // namespace poet
