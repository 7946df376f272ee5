// Makes one system call or one allocation of this library fail, for tests: each place where it may go wrong must be
// seen to go wrong well. Only in builds with the CMake option POET_FAULT_INJECTION; in others, nothing is left of it.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#if defined(POET_FAULT_INJECTION)

#include <atomic>
#include <cerrno>

namespace poet::faults {

// The numbers are part of the exported test function's interface.
enum class Kind : int {
  kNone = 0,
  kInterrupted = 1,
  kShort = 2,  // half of the bytes are transferred
  kIoError = 3,
  kDiskFull = 4,
  kQuota = 5,
  kEndOfFile = 6,
  kOutOfMemory = 7,  // of an allocation; the kinds without a word are of system calls for data
  kUnsupported = 8,
  kNoMapping = 9,  // of an arena's region
};

// From now on calls of the kind's family are counted, and the one after `calls_before` others fails, once.
void arm(Kind kind, uint64_t calls_before);
// Ends that, and returns how many calls of the family were made since arm().
uint64_t disarm();
// Every system call for data takes this much longer.
void set_delay_microseconds(int delay);

extern std::atomic<bool> is_armed;
Kind next_call_counted();

// What the system call that is about to be made shall do.
inline Kind next_call() { return is_armed.load(std::memory_order_relaxed) ? next_call_counted() : Kind::kNone; }
int errno_of(Kind kind);

// Whether the region that is about to be mapped shall be refused.
bool mapping_fails();

// Keeps a write to the parameter store's file, or that everything written before is durable, where a test asks for it.
void log_write(uint64_t offset, const void* data, uint64_t bytes);
void log_sync();

// A system call that returns a number of bytes, or -1 and errno.
template <class Call>
ssize_t transfer(size_t bytes, Call&& call) {
  switch (const Kind kind = next_call()) {
    case Kind::kNone:
      return call(bytes);
    case Kind::kShort:
      return call(bytes > 1 ? bytes / 2 : bytes);
    case Kind::kEndOfFile:
      return 0;
    default:
      errno = errno_of(kind);
      return -1;
  }
}

// One that returns an errno value.
template <class Call>
int status(Call&& call) {
  const Kind kind = next_call();
  return kind == Kind::kNone || kind == Kind::kShort || kind == Kind::kEndOfFile ? call() : errno_of(kind);
}

}  // namespace poet::faults

#else

namespace poet::faults {

inline bool mapping_fails() { return false; }
inline void log_write(uint64_t, const void*, uint64_t) {}
inline void log_sync() {}

template <class Call>
ssize_t transfer(size_t bytes, Call&& call) {
  return call(bytes);
}

template <class Call>
int status(Call&& call) {
  return call();
}

}  // namespace poet::faults

#endif
