// Arena(X) -> armed: the first node of a step. From here on the allocations of the thread come from the region that the
// node reserved when its session was made. Nobody reads its output, which is never made.
#include "arenas.h"
#include "kernel.h"

namespace poet {
namespace {

class ArenaKernel final : public Kernel {
 public:
  explicit ArenaKernel(const NodeInfo& node)
      : arena_(arenas::open(ArenaLayout(node.require_int("region_bytes"), node.require_ints("layout")))) {}
  ~ArenaKernel() override { arena_.close(); }
  void compute(Context&) override { arenas::enter(arena_); }

 private:
  Arena& arena_;
};

std::unique_ptr<Kernel> create(const NodeInfo& node) { return std::make_unique<ArenaKernel>(node); }

}  // namespace

const OpDefinition kArena{"Arena", 1, {kBool}, false, create, infer_flag};

}  // namespace poet
