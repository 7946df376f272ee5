// Requests for direct I/O, several of them under way at once, by Linux's asynchronous I/O; one after the other where
// the system forbids that. io_uring is not used: containers forbid it by default (github.com/moby/moby, pull request
// 46762), and what it gained over these calls changed from run to run.
// Source of the interface: the manual pages io_setup(2), io_submit(2), io_getevents(2) and io_destroy(2).
#pragma once

#include <linux/aio_abi.h>

#include <array>
#include <cstdint>

namespace poet {

constexpr unsigned kMostRequests = 4;  // under way

struct Request {
  bool is_write = false;
  int file = -1;
  void* data = nullptr;
  uint64_t bytes = 0;
  uint64_t offset = 0;
  uint64_t number = 0;   // of the caller's, to know it again
  bool is_only = false;  // no other will be under way beside it
};

// Requests that have ended, or never began, before anybody waits for them.
class Ended {
 public:
  void add(uint64_t number, int64_t result) noexcept { ended_[count_++] = {number, result}; }
  bool take(uint64_t* number, int64_t* result) noexcept {
    if (count_ == 0) return false;
    --count_;
    *number = ended_[count_].number;
    *result = ended_[count_].result;
    return true;
  }

 private:
  struct Entry {
    uint64_t number;
    int64_t result;
  };
  std::array<Entry, kMostRequests> ended_{};
  unsigned count_ = 0;
};

class Requests {
 public:
  Requests();
  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;
  ~Requests();

  // They neither throw nor allocate. At most kMostRequests are queued and not ended.
  void queue(const Request& request) noexcept;
  // Has the system begin with what was queued. Without it, next_completion does so.
  void submit() noexcept;
  // Waits for a request to end: its number, and the bytes that it moved or an errno value below 0. Returns 0, or the
  // errno value of a way that does not work any more.
  int next_completion(uint64_t* number, int64_t* result) noexcept;

 private:
  void carry_out(const Request& request) noexcept;

  aio_context_t context_ = 0;
  bool is_possible_ = false;
  std::array<iocb, kMostRequests> entries_{};
  std::array<iocb*, kMostRequests> pointers_{};
  unsigned queued_ = 0;
  Ended ended_;
};

}  // namespace poet
