// Requests for direct I/O, several of them under way at once: what the direct back ends (direct.cpp) are made of.
#pragma once

#include <cstdint>
#include <memory>

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

class Requests {
 public:
  Requests() = default;
  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;
  virtual ~Requests() = default;

  // They neither throw nor allocate. At most kMostRequests are queued and not ended.
  virtual void queue(const Request& request) noexcept = 0;
  // Has the system begin with what was queued. Without it, next_completion does so.
  virtual void submit() noexcept = 0;
  // Waits for a request to end: its number, and the bytes that it moved or an errno value below 0. Returns 0, or the
  // errno value of a way that does not work any more.
  virtual int next_completion(uint64_t* number, int64_t* result) noexcept = 0;
};

// By the system's asynchronous I/O, or one after the other where it is forbidden.
std::unique_ptr<Requests> make_aio_requests();
// By io_uring. Throws Error where the system cannot do that.
std::unique_ptr<Requests> make_uring_requests();

}  // namespace poet
