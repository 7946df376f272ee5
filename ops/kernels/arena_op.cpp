// Arena(X) -> armed: the first node of a step. From here on the allocations of the thread come from the region that the
// node reserved when its session was made. Nobody needs the output, but the runtime's own operators crash on an input
// that was never made. It lives as long as the run, and is outside of every plan.
//
// Mark(X): the step with this number begins, where what is asked for would not tell. Other operators of ours say the
// same when they have ended, by an attribute `next_step` (registration.cpp).
#include <algorithm>

#include "arena/arenas.h"
#include "kernels/kernel.h"
#include "process/code_pages.h"
#include "process/heap.h"
#include "runtime/allocation_tracker.h"

namespace poet {
namespace {

struct Uncounted {
  Uncounted() { allocations::leave_uncounted(true); }
  Uncounted(const Uncounted&) = delete;
  Uncounted& operator=(const Uncounted&) = delete;
  ~Uncounted() { allocations::leave_uncounted(false); }
};

class ArenaKernel final : public Kernel {
 public:
  explicit ArenaKernel(const NodeInfo& node) : arena_(opened(node)) {}
  ~ArenaKernel() override { arena_.close(); }
  void compute(Context& context) override {
    const Uncounted uncounted;
    context.output_true();
    arenas::enter(arena_);
  }

 private:
  static Arena& opened(const NodeInfo& node) {
    const ArenaLayout layout(node.require_int("region_bytes"), node.require_ints("layout"));
    // Code that read the model, and what it has freed, are not in memory beside the region. What is taken past the
    // region counts by the most that lives at once.
    give_freed_memory_back();
    release_code_pages();
    return arenas::open(layout);
  }

  Arena& arena_;
};

class MarkKernel final : public Kernel {
 public:
  explicit MarkKernel(const NodeInfo& node)
      : step_(static_cast<uint32_t>(std::min<uint64_t>(node.require_nonnegative("step"), UINT32_MAX))) {}
  void compute(Context&) override { arenas::reach(step_); }

 private:
  const uint32_t step_;
};

}  // namespace

const OpDefinition kMark{"Mark", 0, {}, Sharing::kNone, create<MarkKernel>, infer_nothing};
const OpDefinition kArena{"Arena", 1, {kBool}, Sharing::kNone, create<ArenaKernel>, infer_flag};

}  // namespace poet
