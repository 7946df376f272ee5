// Gate(X, trigger...) -> Y: Y is X, in X's own buffer, but not before the triggers have been computed.
#include "kernels/kernel.h"

namespace poet {
namespace {

class Gate final : public Kernel {
 public:
  void compute(Context& context) override { context.forward(context.input(0)); }
};

}  // namespace

const OpDefinition kGate{"Gate", 1, {kUndefined, kUndefined}, Sharing::kAlways, create<Gate>, infer_type_from_input};

}  // namespace poet
