// Functions and constants of libcrypto: OpenSSL's manual pages EVP_EncryptInit(3) and EVP_aes_256_gcm(3); they are the
// same in 1.1 and 3.
#include "store/cipher.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "faults/faults.h"
#include "process/error.h"

namespace poet {
namespace {

constexpr size_t kNonceBytes = 12;
constexpr int kControlGetTag = 0x10;  // EVP_CTRL_AEAD_GET_TAG
constexpr int kControlSetTag = 0x11;  // EVP_CTRL_AEAD_SET_TAG

struct Crypto {
  void* (*new_context)() = nullptr;
  int (*reset_context)(void*) = nullptr;
  void (*free_context)(void*) = nullptr;
  const void* (*aes_256_gcm)() = nullptr;
  const void* (*chacha20_poly1305)() = nullptr;
  int (*init)(void*, const void*, void*, const unsigned char*, const unsigned char*, int) = nullptr;
  int (*update)(void*, unsigned char*, int*, const unsigned char*, int) = nullptr;
  int (*final)(void*, unsigned char*, int*) = nullptr;
  int (*control)(void*, int, int, void*) = nullptr;
};

template <class Function>
bool look_up(void* library, const char* name, Function* function) {
  void* found = dlsym(library, name);
  std::memcpy(function, &found, sizeof found);
  return found != nullptr;
}

bool load(Crypto* crypto) {
  for (const char* name : {"libcrypto.so.3", "libcrypto.so.1.1"}) {
    void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) continue;
    if (look_up(library, "EVP_CIPHER_CTX_new", &crypto->new_context) &&
        look_up(library, "EVP_CIPHER_CTX_reset", &crypto->reset_context) &&
        look_up(library, "EVP_CIPHER_CTX_free", &crypto->free_context) &&
        look_up(library, "EVP_aes_256_gcm", &crypto->aes_256_gcm) &&
        look_up(library, "EVP_chacha20_poly1305", &crypto->chacha20_poly1305) &&
        look_up(library, "EVP_CipherInit_ex", &crypto->init) && look_up(library, "EVP_CipherUpdate", &crypto->update) &&
        look_up(library, "EVP_CipherFinal_ex", &crypto->final) &&
        look_up(library, "EVP_CIPHER_CTX_ctrl", &crypto->control))
      return true;
    dlclose(library);
  }
  return false;
}

// The library is never unloaded: it may have registered handlers for the process's end.
const Crypto& crypto() {
  static Crypto functions;
  static const bool is_loaded = load(&functions);
  if (!is_loaded)
    throw Error(
        "pages cannot be encrypted: OpenSSL's libcrypto.so.3 or libcrypto.so.1.1 is not installed (Debian: libssl3); "
        "install it or turn encryption off");
  return functions;
}

size_t page_bytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

}  // namespace

Cipher::Cipher(CipherKind kind) : kind_(kind) {
  const Crypto& c = crypto();
  void* memory = mmap(nullptr, page_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw Error("no memory for the key that pages are encrypted with");
  key_ = static_cast<unsigned char*>(memory);
  // Not into the swap area where the process may lock memory, not into a core file, not into the child of a fork.
  static_cast<void>(mlock(key_, page_bytes()));
  static_cast<void>(madvise(key_, page_bytes(), MADV_DONTDUMP));
  static_cast<void>(madvise(key_, page_bytes(), MADV_WIPEONFORK));
  context_ = c.new_context();
  const ssize_t random = faults::transfer(kKeyBytes, [&](size_t bytes) { return getrandom(key_, bytes, 0); });
  if (context_ == nullptr || random != static_cast<ssize_t>(kKeyBytes)) {
    if (context_ != nullptr) c.free_context(context_);
    explicit_bzero(key_, kKeyBytes);
    munmap(key_, page_bytes());
    throw Error("cannot make a key to encrypt pages with");
  }
}

Cipher::~Cipher() {
  crypto().free_context(context_);
  explicit_bzero(key_, kKeyBytes);
  munmap(key_, page_bytes());
}

bool Cipher::begin(bool encrypts, int64_t slot, uint64_t generation) noexcept {
  const Crypto& c = crypto();
  // Generations never repeat under a key, so nonces do not.
  unsigned char nonce[kNonceBytes] = {};
  std::memcpy(nonce, &generation, sizeof generation);
  const void* cipher = kind_ == CipherKind::kAes256Gcm ? c.aes_256_gcm() : c.chacha20_poly1305();
  int written = 0;
  return c.init(context_, cipher, nullptr, key_, nonce, encrypts ? 1 : 0) == 1 &&
         c.update(context_, nullptr, &written, reinterpret_cast<const unsigned char*>(&slot), sizeof slot) == 1;
}

bool Cipher::add(const void* from, void* to, size_t bytes) noexcept {
  int written = 0;
  return crypto().update(context_, static_cast<unsigned char*>(to), &written, static_cast<const unsigned char*>(from),
                         static_cast<int>(bytes)) == 1 &&
         written == static_cast<int>(bytes);
}

bool Cipher::end_encryption(Tag* tag) noexcept {
  unsigned char none[kTagBytes];
  int written = 0;
  const bool worked = crypto().final(context_, none, &written) == 1 &&
                      crypto().control(context_, kControlGetTag, kTagBytes, tag->data()) == 1;
  abandon();
  return worked;
}

bool Cipher::end_decryption(const Tag& tag) noexcept {
  unsigned char none[kTagBytes];
  Tag expected = tag;
  int written = 0;
  const bool worked = crypto().control(context_, kControlSetTag, kTagBytes, expected.data()) == 1 &&
                      crypto().final(context_, none, &written) == 1;
  abandon();
  return worked;
}

void Cipher::abandon() noexcept { crypto().reset_context(context_); }

}  // namespace poet
