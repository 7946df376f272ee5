#include "kernels/parallel.h"

#include <exception>
#include <mutex>

namespace poet {
namespace {

struct Job {
  void (*call)(const void* body, uint64_t index);
  const void* body;
  std::mutex mutex;
  uint64_t failed;
  std::exception_ptr error;
};

// The runtime's threads know nothing of exceptions.
void run_block(void* raw, size_t index) noexcept {
  auto* job = static_cast<Job*>(raw);
  try {
    job->call(job->body, index);
  } catch (...) {
    const std::lock_guard<std::mutex> lock(job->mutex);
    if (job->error != nullptr && job->failed < index) return;
    job->failed = index;
    job->error = std::current_exception();
  }
}

}  // namespace

void run_blocks(const Workers& workers, uint64_t count, void (*call)(const void* body, uint64_t index),
                const void* body) {
  if (count == 0) return;
  if (count == 1) return call(body, 0);
  Job job{call, body, {}, 0, nullptr};
  constexpr size_t kAsTheyCome = 0;  // a thread takes the next block when it is done with one
  workers.api.check(workers.api.kernel_context_parallel_for(workers.context, run_block, count, kAsTheyCome, &job));
  if (job.error != nullptr) std::rethrow_exception(job.error);
}

}  // namespace poet
