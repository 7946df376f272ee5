#include "session_config.h"

#include <charconv>
#include <cstdlib>

namespace poet {
namespace {

constexpr const char* kPageDirectoryKey = "poet.page_dir";
constexpr const char* kPageDirectoryVariable = "POET_PAGE_DIR";

// The value of an entry, "" where there is none.
std::string entry_of(const Api& api, const OrtSessionOptions* options, const char* key) {
  int has = 0;
  if (!api.succeeded(api.has_session_config_entry(options, key, &has)) || has == 0) return "";
  size_t size = 0;
  api.succeeded(api.get_session_config_entry(options, key, nullptr, &size));
  std::string value(size, '\0');
  api.check(api.get_session_config_entry(options, key, value.data(), &size));
  value.resize(value.find('\0') == std::string::npos ? value.size() : value.find('\0'));
  return value;
}

std::string page_directory_of(const Api& api, const OrtSessionOptions* options) {
  std::string value = entry_of(api, options, kPageDirectoryKey);
  if (!value.empty()) return value;
  for (const char* variable : {kPageDirectoryVariable, "TMPDIR"}) {
    const char* found = std::getenv(variable);
    if (found != nullptr && *found != '\0') return found;
  }
  return "/tmp";
}

uint64_t number_of(const Api& api, const OrtSessionOptions* options, const char* key) {
  const std::string value = entry_of(api, options, key);
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (!value.empty() && (error != std::errc() || end != value.data() + value.size()))
    throw Error(std::string("the session configuration entry '") + key + "' is '" + value +
                "', but must be a whole number of 0 or more");
  return number;
}

}  // namespace

SessionConfig read_session_config(const Api& api, const OrtSessionOptions* options) {
  SessionConfig config;
  StoreOptions& store = config.store_options;
  store.directory = page_directory_of(api, options);
  Throttle& throttle = store.throttle;
  const std::pair<const char*, uint64_t*> numbers[] = {
      {"poet.page_out_bytes_per_second", &throttle.page_out_bytes_per_second},
      {"poet.page_in_bytes_per_second", &throttle.page_in_bytes_per_second},
      {"poet.page_out_latency_nanoseconds", &throttle.page_out_latency_nanoseconds},
      {"poet.page_in_latency_nanoseconds", &throttle.page_in_latency_nanoseconds},
  };
  for (const auto& [key, number] : numbers) {
    *number = number_of(api, options, key);
    config.text += std::to_string(*number) + " ";
  }
  config.text += store.directory;
  return config;
}

}  // namespace poet
