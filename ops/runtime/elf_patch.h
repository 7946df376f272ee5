// Redirects functions that one loaded ELF module imports (its entries in the global offset table).
#pragma once

#include <cstddef>

namespace poet {

struct Redirection {
  const char* symbol;  // the imported symbol's (mangled) name
  void* replacement;
  void** original = nullptr;  // where given, gets what was called before
};

// Redirects every import named in `redirections` of the module that contains `address`; other modules keep calling the
// original. Returns the number of entries redirected: 0 where the module or its imports cannot be found or written.
size_t redirect_imports(const void* address, const Redirection* redirections, size_t count);

}  // namespace poet
