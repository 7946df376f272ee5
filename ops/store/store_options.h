// What a session asks of its page store: parsed from the session's configuration entries by session_config.cpp.
#pragma once

#include <cstdint>
#include <string>

#include "store/backend.h"
#include "store/cipher.h"

namespace poet {

// Makes the storage as slow as a given one; 0 where a figure is not limited.
struct Throttle {
  uint64_t page_out_bytes_per_second = 0;
  uint64_t page_in_bytes_per_second = 0;
  uint64_t page_out_latency_nanoseconds = 0;  // added to every transfer
  uint64_t page_in_latency_nanoseconds = 0;

  bool is_on() const {
    return page_out_bytes_per_second != 0 || page_in_bytes_per_second != 0 || page_out_latency_nanoseconds != 0 ||
           page_in_latency_nanoseconds != 0;
  }
};

struct StoreOptions {
  std::string directory;    // of the page file
  bool allows_ram = false;  // the directory may be in RAM
  uint64_t most_bytes = 0;  // of the page file; 0: what the disk has
  Throttle throttle;
  BackendKind backend = BackendKind::kAuto;
  bool has_checksum = true;
  CipherKind cipher = CipherKind::kNone;
};

}  // namespace poet
