// Sources: proc(5), getrlimit(2), and the kernel's Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
#include "process/memory_left.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace poet {
namespace {

constexpr size_t kLongestLine = 4352;  // a path and what stands before it

// Calls `use` with every line of a file, without its end; a file that cannot be read has none.
template <class Use>
void for_each_line(const std::string& path, Use&& use) {
  std::FILE* const file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return;
  char line[kLongestLine];
  while (std::fgets(line, sizeof line, file) != nullptr) {
    line[std::strcspn(line, "\n")] = '\0';
    use(line);
  }
  std::fclose(file);
}

// The number behind `key` at the start of a line of a file; 0 where there is none.
uint64_t value_of(const std::string& path, const char* key) {
  unsigned long long value = 0;
  for_each_line(path, [&](const char* line) {
    const size_t length = std::strlen(key);
    if (std::strncmp(line, key, length) == 0) std::sscanf(line + length, " %llu", &value);
  });
  return value;
}

// The one number of a file; false where it has none ("max") or cannot be read.
bool read_number(const std::string& path, uint64_t* number) {
  unsigned long long value = 0;
  bool is_read = false;
  for_each_line(path, [&](const char* line) { is_read = std::sscanf(line, "%llu", &value) == 1; });
  *number = value;
  return is_read;
}

uint64_t less(uint64_t limit, uint64_t used) { return limit - std::min(limit, used); }

void lower(MemoryLeft* left, uint64_t limit, uint64_t used, std::string name) {
  const uint64_t bytes = less(limit, used), missing_bytes = less(used, limit);
  if (bytes < left->bytes || missing_bytes > left->missing_bytes) *left = {bytes, missing_bytes, std::move(name)};
}

// How one version of control groups names things.
struct GroupFiles {
  const char* mount;
  const char* limit;
  const char* soft_limit;
  const char* use;
  const char* active_cache;  // keys of memory.stat: the page cache, which gives way
  const char* inactive_cache;
};
constexpr GroupFiles kSecond{"/sys/fs/cgroup", "memory.max",   "memory.high",
                             "memory.current", "active_file ", "inactive_file "};
constexpr GroupFiles kFirst{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.soft_limit_in_bytes",
                            "memory.usage_in_bytes", "total_active_file ",    "total_inactive_file "};

void lower_by_group(MemoryLeft* left, const GroupFiles& files, const std::string& group, const char* limit_file) {
  uint64_t limit = 0, used = 0;
  if (!read_number(group + limit_file, &limit) || !read_number(group + files.use, &used)) return;
  const std::string statistics = group + "memory.stat";
  const uint64_t cache = value_of(statistics, files.active_cache) + value_of(statistics, files.inactive_cache);
  lower(left, limit, less(used, cache), "the control group's limit in " + group + limit_file);
}

// A group's limit holds for all groups below it, too.
void lower_by_groups(MemoryLeft* left, Limits limits, const std::string& mount, const GroupFiles& files,
                     std::string path) {
  for (;;) {
    const std::string group = mount + (path == "/" ? "" : path) + "/";
    lower_by_group(left, files, group, files.limit);
    if (limits == Limits::kSoft) lower_by_group(left, files, group, files.soft_limit);
    if (path.size() <= 1) return;
    path.erase(std::max<size_t>(path.rfind('/'), 1));
    if (path.back() == '/' && path.size() > 1) path.pop_back();
  }
}

void lower_by_groups(MemoryLeft* left, Limits limits, const std::string& root) {
  for_each_line(root + "/proc/self/cgroup", [&](const char* line) {  // number:controllers:path
    const char* const controllers = std::strchr(line, ':');
    const char* const path = controllers == nullptr ? nullptr : std::strchr(controllers + 1, ':');
    if (path == nullptr || path[1] != '/') return;
    const std::string names = "," + std::string(controllers + 1, path) + ",";
    if (names == ",,") lower_by_groups(left, limits, root + kSecond.mount, kSecond, path + 1);
    if (names.find(",memory,") != std::string::npos) {
      lower_by_groups(left, limits, root + kFirst.mount, kFirst, path + 1);
    }
  });
}

void lower_by_resource(MemoryLeft* left, int resource, const char* key, const char* name) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  lower(left, limit.rlim_cur, value_of("/proc/self/status", key) << 10, name);
}

uint64_t system_bytes(const std::string& root) { return value_of(root + "/proc/meminfo", "MemAvailable:") << 10; }

}  // namespace

uint64_t cache_room_bytes() {
  MemoryLeft left{system_bytes({}), 0, {}};
  lower_by_groups(&left, Limits::kHard, {});
  return left.bytes;
}

MemoryLeft memory_left(Limits limits, const std::string& root) {
  MemoryLeft left;
  if (const uint64_t available = system_bytes(root)) lower(&left, available, 0, "MemAvailable of /proc/meminfo");
  lower_by_groups(&left, limits, root);
  if (!root.empty()) return left;
  lower_by_resource(&left, RLIMIT_DATA, "VmData:", "the resource limit RLIMIT_DATA");
  lower_by_resource(&left, RLIMIT_AS, "VmSize:", "the resource limit RLIMIT_AS");
  return left;
}

}  // namespace poet
