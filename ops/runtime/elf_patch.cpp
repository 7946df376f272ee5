// Source of the structures: System V ABI, chapter 5 (dynamic linking), and glibc's <link.h>.
#include "runtime/elf_patch.h"

#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

namespace poet {
namespace {

#if defined(__LP64__)

#if defined(__x86_64__)
constexpr unsigned kJumpSlot = R_X86_64_JUMP_SLOT;
constexpr unsigned kGlobalData = R_X86_64_GLOB_DAT;
#elif defined(__aarch64__)
constexpr unsigned kJumpSlot = R_AARCH64_JUMP_SLOT;
constexpr unsigned kGlobalData = R_AARCH64_GLOB_DAT;
#else
#error "unknown relocation types: add those of this processor's ABI"
#endif

struct Module {
  uintptr_t base = 0;
  const ElfW(Dyn) * dynamic = nullptr;
  uintptr_t relro_begin = 0;  // what the loader made read-only after relocation
  uintptr_t relro_end = 0;
};

struct Search {
  uintptr_t address;
  Module found;
};

int visit(dl_phdr_info* info, size_t, void* data) {
  auto* search = static_cast<Search*>(data);
  Module module;
  module.base = info->dlpi_addr;
  bool contains = false;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    const uintptr_t begin = info->dlpi_addr + header.p_vaddr;
    const uintptr_t end = begin + header.p_memsz;
    if (header.p_type == PT_LOAD && search->address >= begin && search->address < end) contains = true;
    if (header.p_type == PT_DYNAMIC) module.dynamic = reinterpret_cast<const ElfW(Dyn)*>(begin);
    if (header.p_type == PT_GNU_RELRO) {
      module.relro_begin = begin;
      module.relro_end = end;
    }
  }
  if (!contains) return 0;
  search->found = module;
  return 1;
}

struct Imports {
  const ElfW(Sym) * symbols = nullptr;
  const char* names = nullptr;
  const ElfW(Rela) * tables[2] = {nullptr, nullptr};
  size_t lengths[2] = {0, 0};
};

Imports read_dynamic(const Module& module) {
  Imports imports;
  // glibc stores absolute addresses here, musl offsets from the base.
  const auto address = [&](ElfW(Addr) value) { return value < module.base ? module.base + value : value; };
  for (const ElfW(Dyn)* entry = module.dynamic; entry->d_tag != DT_NULL; ++entry) {
    switch (entry->d_tag) {
      case DT_SYMTAB:
        imports.symbols = reinterpret_cast<const ElfW(Sym)*>(address(entry->d_un.d_ptr));
        break;
      case DT_STRTAB:
        imports.names = reinterpret_cast<const char*>(address(entry->d_un.d_ptr));
        break;
      case DT_JMPREL:
        imports.tables[0] = reinterpret_cast<const ElfW(Rela)*>(address(entry->d_un.d_ptr));
        break;
      case DT_PLTRELSZ:
        imports.lengths[0] = entry->d_un.d_val / sizeof(ElfW(Rela));
        break;
      case DT_RELA:
        imports.tables[1] = reinterpret_cast<const ElfW(Rela)*>(address(entry->d_un.d_ptr));
        break;
      case DT_RELASZ:
        imports.lengths[1] = entry->d_un.d_val / sizeof(ElfW(Rela));
        break;
      default:
        break;
    }
  }
  return imports;
}

// Writes one entry of the table, through the loader's write protection where the module has it.
bool write_entry(const Module& module, void** entry, void* value) {
  const auto at = reinterpret_cast<uintptr_t>(entry);
  const auto page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  void* page = reinterpret_cast<void*>(at & ~(page_bytes - 1));
  const bool is_protected = at >= module.relro_begin && at < module.relro_end;
  if (is_protected && mprotect(page, page_bytes, PROT_READ | PROT_WRITE) != 0) return false;
  __atomic_store_n(entry, value, __ATOMIC_RELEASE);
  if (is_protected) mprotect(page, page_bytes, PROT_READ);
  return true;
}

}  // namespace

size_t redirect_imports(const void* address, const Redirection* redirections, size_t count) {
  Search search{reinterpret_cast<uintptr_t>(address), {}};
  if (dl_iterate_phdr(visit, &search) == 0 || search.found.dynamic == nullptr) return 0;
  const Imports imports = read_dynamic(search.found);
  if (imports.symbols == nullptr || imports.names == nullptr) return 0;
  size_t redirected = 0;
  for (size_t table = 0; table < 2; ++table) {
    for (size_t i = 0; imports.tables[table] != nullptr && i < imports.lengths[table]; ++i) {
      const ElfW(Rela) & relocation = imports.tables[table][i];
      const auto type = static_cast<unsigned>(ELF64_R_TYPE(relocation.r_info));
      if (type != kJumpSlot && type != kGlobalData) continue;
      const char* name = imports.names + imports.symbols[ELF64_R_SYM(relocation.r_info)].st_name;
      for (size_t k = 0; k < count; ++k) {
        if (std::strcmp(name, redirections[k].symbol) != 0) continue;
        auto** entry = reinterpret_cast<void**>(search.found.base + relocation.r_offset);
        void* const before = __atomic_load_n(entry, __ATOMIC_ACQUIRE);
        if (before == redirections[k].replacement) continue;
        if (redirections[k].original != nullptr) *redirections[k].original = before;
        if (write_entry(search.found, entry, redirections[k].replacement)) ++redirected;
      }
    }
  }
  return redirected;
}

#else  // a 32-bit ABI has other relocation records; ONNX Runtime ships no such wheel

}  // namespace

size_t redirect_imports(const void*, const Redirection*, size_t) { return 0; }

#endif

}  // namespace poet
