#include "store/page_directory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>

#include "process/error.h"

namespace poet {
namespace {

constexpr const char* kVariable = "POET_PAGE_DIR";
constexpr const char* kRamVariable = "POET_PAGE_IN_RAM";
constexpr const char* kDurableTemporary = "/var/tmp";  // hier(7): its files outlive a restart
constexpr int kMostLayers = 4;                         // of overlays, one on another

// A line of /proc/self/mountinfo: proc(5).
struct Mount {
  std::string source, options;
};

std::string value_of(const char* variable) {
  const char* const found = std::getenv(variable);
  return found == nullptr ? "" : found;
}

bool is_digit(char letter) { return letter >= '0' && letter <= '9'; }

// Spaces and their like are written as a backslash and three octal digits.
std::string unescaped(const std::string& text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_escape = text[i] == '\\' && i + 3 < text.size() && is_digit(text[i + 1]);
    plain += is_escape ? static_cast<char>(std::strtol(text.substr(i + 1, 3).c_str(), nullptr, 8)) : text[i];
    i += is_escape ? 3 : 0;
  }
  return plain;
}

// The text behind `word`, up to `end` or the text's end; nothing where the word is missing.
std::optional<std::string> text_behind(const std::string& text, const std::string& word, char end) {
  const size_t at = text.find(word);
  if (at == std::string::npos) return std::nullopt;
  const size_t begin = at + word.size();
  return text.substr(begin, text.find(end, begin) - begin);
}

std::optional<Mount> mount_of(int descriptor) {
  std::ifstream about("/proc/self/fdinfo/" + std::to_string(descriptor));
  std::ostringstream content;
  content << about.rdbuf();
  const std::optional<std::string> number = text_behind(content.str(), "mnt_id:\t", '\n');
  if (!number) return std::nullopt;
  std::ifstream mounts("/proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    const std::optional<std::string> rest = text_behind(line, " - ", '\n');
    if (!rest || line.compare(0, number->size() + 1, *number + " ") != 0) continue;
    std::istringstream words(*rest);
    std::string type;
    Mount mount;
    words >> type >> mount.source >> mount.options;
    return mount;
  }
  return std::nullopt;
}

const char* file_system_in_ram(uint32_t type) {
  switch (type) {
    case TMPFS_MAGIC:
      return "tmpfs";
    case RAMFS_MAGIC:
      return "ramfs";
    case HUGETLBFS_MAGIC:
      return "hugetlbfs";
    default:
      return nullptr;
  }
}

// "zram0" of "/dev/zram0"; "" for a device that is not in RAM.
std::string device_in_ram(const std::string& source) {
  const std::string name = source.substr(source.rfind('/') + 1);
  for (const std::string kind : {"zram", "ram"})
    if (name.compare(0, kind.size(), kind) == 0 && is_digit(name[kind.size()])) return name;
  return "";
}

std::string ram_behind(const std::string& path, int layers);

std::string ram_behind(int descriptor, int layers) {
  struct statfs status{};
  if (fstatfs(descriptor, &status) != 0) return "";
  const auto type = static_cast<uint32_t>(status.f_type);
  if (const char* const name = file_system_in_ram(type); name != nullptr) return name;
  const std::optional<Mount> mount = mount_of(descriptor);
  if (!mount) return "";
  if (type != OVERLAYFS_SUPER_MAGIC) return device_in_ram(mount->source);
  const std::optional<std::string> upper = text_behind(mount->options, "upperdir=", ',');
  return upper && layers < kMostLayers ? ram_behind(unescaped(*upper), layers + 1) : "";
}

std::string ram_behind(const std::string& path, int layers) {
  const int descriptor = open(path.c_str(), O_PATH | O_CLOEXEC);
  if (descriptor < 0) return "";
  std::string found = ram_behind(descriptor, layers);
  close(descriptor);
  return found;
}

void require_no_ram(const std::string& directory, const std::string& kind) {
  if (!kind.empty())
    throw Error("the page directory " + directory + " is in RAM (" + kind +
                "), where pages take the memory that paging is to free: choose one on storage by page_dir or " +
                kVariable + ", or allow this one by PagingOptions(allow_ram=True) or " + kRamVariable + "=1");
}

}  // namespace

std::string ram_behind(int descriptor) { return ram_behind(descriptor, 0); }

std::string ram_behind(const std::string& path) { return ram_behind(path, 0); }

void require_storage(const std::string& directory) { require_no_ram(directory, ram_behind(directory)); }

void require_storage(const std::string& directory, int descriptor) {
  require_no_ram(directory, ram_behind(descriptor));
}

bool environment_allows_ram() {
  const std::string value = value_of(kRamVariable);
  if (value.empty() || value == "0") return false;
  if (value == "1") return true;
  throw Error(std::string("the environment variable ") + kRamVariable + " is '" + value + "', but must be 1 or 0");
}

std::string default_page_directory(bool allows_ram) {
  std::string directory = value_of(kVariable);
  if (!directory.empty()) return directory;
  directory = value_of("TMPDIR");
  if (directory.empty()) directory = "/tmp";
  if (allows_ram || ram_behind(directory).empty()) return directory;
  const bool is_there = access(kDurableTemporary, W_OK | X_OK) == 0;
  return is_there && ram_behind(kDurableTemporary).empty() ? kDurableTemporary : directory;
}

}  // namespace poet
