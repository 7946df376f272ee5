#include "runtime/session_config.h"

#include <algorithm>
#include <charconv>

#include "store/page_directory.h"

namespace poet {
namespace {

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

constexpr uint64_t kMostThreads = 1024;

uint64_t number_of(const Api& api, const OrtSessionOptions* options, const char* key) {
  const std::string value = entry_of(api, options, key);
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (!value.empty() && (error != std::errc() || end != value.data() + value.size()))
    throw Error(std::string("the session configuration entry '") + key + "' is '" + value +
                "', but must be a whole number of 0 or more");
  return number;
}

// The one of these names that an entry has; the first where there is no entry.
template <class Kind, size_t count>
Kind choice_of(const Api& api, const OrtSessionOptions* options, const char* key,
               const std::pair<const char*, Kind> (&choices)[count]) {
  const std::string value = entry_of(api, options, key);
  std::string names;
  for (const auto& [name, kind] : choices) {
    if (value == name || value.empty()) return kind;
    names += std::string(names.empty() ? "" : ", ") + name;
  }
  throw Error(std::string("the session configuration entry '") + key + "' is '" + value + "', but must be one of " +
              names);
}

constexpr std::pair<const char*, BackendKind> kBackends[] = {{"auto", BackendKind::kAuto},
                                                             {"cached", BackendKind::kCached},
                                                             {"uncached", BackendKind::kUncached},
                                                             {"direct", BackendKind::kDirect}};
constexpr const char* kInRamKey = "poet.page_in_ram";
constexpr std::pair<const char*, bool> kSwitch[] = {{"1", true}, {"0", false}};
constexpr std::pair<const char*, CipherKind> kCiphers[] = {{"none", CipherKind::kNone},
                                                           {"aes-256-gcm", CipherKind::kAes256Gcm},
                                                           {"chacha20-poly1305", CipherKind::kChaCha20Poly1305}};

}  // namespace

SessionConfig read_session_config(const Api& api, const OrtSessionOptions* options) {
  SessionConfig config;
  StoreOptions& store = config.store_options;
  store.allows_ram = entry_of(api, options, kInRamKey).empty() ? environment_allows_ram()
                                                               : choice_of(api, options, kInRamKey, kSwitch);
  store.directory = entry_of(api, options, "poet.page_dir");
  if (store.directory.empty()) store.directory = default_page_directory(store.allows_ram);
  Throttle& throttle = store.throttle;
  const std::pair<const char*, uint64_t*> numbers[] = {
      {"poet.threads", &config.threads},
      {"poet.page_out_bytes_per_second", &throttle.page_out_bytes_per_second},
      {"poet.page_in_bytes_per_second", &throttle.page_in_bytes_per_second},
      {"poet.page_out_latency_nanoseconds", &throttle.page_out_latency_nanoseconds},
      {"poet.page_in_latency_nanoseconds", &throttle.page_in_latency_nanoseconds},
      {"poet.page_most_bytes", &store.most_bytes},
  };
  for (const auto& [key, number] : numbers) {
    *number = number_of(api, options, key);
    config.text += std::to_string(*number) + " ";
  }
  config.threads = std::clamp<uint64_t>(config.threads, 1, kMostThreads);
  store.backend = choice_of(api, options, "poet.page_backend", kBackends);
  store.has_checksum = choice_of(api, options, "poet.page_checksum", kSwitch);
  store.cipher = choice_of(api, options, "poet.page_cipher", kCiphers);
  for (const int choice : {static_cast<int>(store.backend), static_cast<int>(store.has_checksum),
                           static_cast<int>(store.cipher), static_cast<int>(store.allows_ram)})
    config.text += std::to_string(choice) + " ";
  config.text += store.directory;
  return config;
}

}  // namespace poet
