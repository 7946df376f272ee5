// RegisterCustomOps, the function that ONNX Runtime looks up in a custom-op library, and the OrtCustomOp of each
// operator.
#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

#include "arena/arenas.h"
#include "kernels/kernel.h"
#include "process/fork.h"
#include "runtime/allocation_tracker.h"
#include "runtime/session_config.h"

namespace poet {
namespace {

constexpr const char* kDomain = "poet";
constexpr int kLastVersion = 0x7fffffff;

// The operators as one session sees them: with the runtime's functions and its options.
struct OpSet;
struct Op : OrtCustomOp {
  const OpDefinition* definition = nullptr;
  const OpSet* set = nullptr;
};
struct OpSet {
  explicit OpSet(const OrtApi* table) : api(table) {}
  Api api;
  SessionConfig config;
  std::vector<Op> ops;
  OrtCustomOpDomain* domain = nullptr;
};

struct KernelHandle {
  const Api* api;
  std::unique_ptr<Kernel> kernel;
  bool has_next_step;
  uint32_t next_step;  // that begins when the node has ended
};

const Op& self(const OrtCustomOp* op) { return *static_cast<const Op*>(op); }

OrtStatus* create_kernel(const OrtCustomOp* raw, const OrtApi*, const OrtKernelInfo* info, void** kernel) {
  const Op& op = self(raw);
  const Api& api = op.set->api;
  return guarded(api, [&] {
    const NodeInfo node(api, info, op.set->config);
    try {
      int64_t next = 0;
      const bool has_next = node.optional_int("next_step", &next) && next >= 0;
      *kernel = new KernelHandle{&api, op.definition->create(node), has_next,
                                 static_cast<uint32_t>(std::min<int64_t>(next, UINT32_MAX))};
    } catch (const Error& error) {
      throw Error(std::string(op.definition->name) + " node '" + node.name() + "': " + error.what());
    }
  });
}

OrtStatus* compute(void* raw, OrtKernelContext* raw_context) {
  const auto* handle = static_cast<const KernelHandle*>(raw);
  return guarded(*handle->api, [&] {
    Context context(*handle->api, raw_context);
    handle->kernel->compute(context);
    if (handle->has_next_step) arenas::reach(handle->next_step);
  });
}

OrtStatus* infer(const OrtCustomOp* raw, OrtShapeInferContext* context) {
  const Op& op = self(raw);
  return guarded(op.set->api, [&] {
    try {
      op.definition->infer(op.set->api, context);
    } catch (const Error& error) {
      throw Error(std::string(op.definition->name) + ": " + error.what());
    }
  });
}

// Output 0 shares the buffer of input 0. The arrays are constants, so there is nothing to release.
size_t share_first(int** inputs, int** outputs) {
  static int first = 0;
  *inputs = &first;
  *outputs = &first;
  return 1;
}

// And output 1 that of input 1.
size_t share_first_two(int** inputs, int** outputs) {
  static int first_two[] = {0, 1};
  *inputs = first_two;
  *outputs = first_two;
  return 2;
}

void release_nothing(int*, int*) {}

Op make_op(const OpDefinition& definition, const OpSet& set) {
  Op op{};
  op.definition = &definition;
  op.set = &set;
  op.version = kOrtApiVersion;
  op.GetName = [](const OrtCustomOp* raw) { return self(raw).definition->name; };
  op.GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };
  // One variadic input of any types: the tensors an operator works on, then triggers.
  op.GetInputTypeCount = [](const OrtCustomOp*) -> size_t { return 1; };
  op.GetInputType = [](const OrtCustomOp*, size_t) -> int { return kUndefined; };
  op.GetInputCharacteristic = [](const OrtCustomOp*, size_t) -> int { return kVariadic; };
  op.GetInputMemoryType = [](const OrtCustomOp*, size_t) -> int { return 0; };
  op.GetVariadicInputMinArity = [](const OrtCustomOp*) -> int { return 1; };
  op.GetVariadicInputHomogeneity = [](const OrtCustomOp*) -> int { return 0; };
  op.GetOutputTypeCount = [](const OrtCustomOp* raw) { return self(raw).definition->output_count; };
  op.GetOutputType = [](const OrtCustomOp* raw, size_t index) -> int {
    return self(raw).definition->output_types[index];
  };
  // A kernel that needs one that is absent says so. That an update was done is one bool.
  op.GetOutputCharacteristic = [](const OrtCustomOp* raw, size_t index) -> int {
    return index == 0 && self(raw).definition->output_types[0] != kBool ? kRequired : kOptional;
  };
  op.GetVariadicOutputMinArity = [](const OrtCustomOp*) -> int { return 1; };
  op.GetVariadicOutputHomogeneity = [](const OrtCustomOp*) -> int { return 0; };
  op.GetStartVersion = [](const OrtCustomOp*) -> int { return 1; };
  op.GetEndVersion = [](const OrtCustomOp*) -> int { return kLastVersion; };
  op.CreateKernelV2 = create_kernel;
  op.KernelComputeV2 = compute;
  op.KernelDestroy = [](void* raw) { delete static_cast<KernelHandle*>(raw); };
  op.InferOutputShapeFn = infer;
  if (definition.sharing == Sharing::kAllowed) {
    op.GetMayInplace = share_first;
    op.ReleaseMayInplace = release_nothing;
  } else if (definition.sharing == Sharing::kAllowedTwice) {
    op.GetMayInplace = share_first_two;
    op.ReleaseMayInplace = release_nothing;
  } else if (definition.sharing == Sharing::kAlways) {
    op.GetAliasMap = share_first;
    op.ReleaseAliasMap = release_nothing;
  }
  return op;
}

// The operators for a session's options. ONNX Runtime keeps pointers to them for as long as any session lives, which it
// does not tell, so a set is made once per runtime and options and kept.
const OpSet& op_set(const OrtApi* table, const Api& api, const SessionConfig& config) {
  static std::mutex mutex;
  static auto* const sets = new std::map<std::pair<const OrtApi*, std::string>, std::unique_ptr<OpSet>>;
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<OpSet>& set = (*sets)[{table, config.text}];
  if (set == nullptr) {
    auto made = std::make_unique<OpSet>(table);
    made->config = config;
    for (const OpDefinition* definition : {&kArena,
                                           &kMark,
                                           &kGate,
                                           &kPageOut,
                                           &kPageIn,
                                           &kPageOutStart,
                                           &kPageOutEnd,
                                           &kPageInStart,
                                           &kPageInEnd,
                                           &kAccumulate,
                                           &kAccumulateRows,
                                           &kAddLowRank,
                                           &kAddLowRankGradient,
                                           &kAddLowRankWeightGradient,
                                           &kUpdateSgd,
                                           &kUpdateMomentum,
                                           &kUpdateAdam,
                                           &kUpdateRowsSgd,
                                           &kUpdateRowsMomentum,
                                           &kUpdateRowsAdam,
                                           &kBatchNormalize,
                                           &kBatchNormalizeGradient,
                                           &kConvDataGradient,
                                           &kConvWeightGradient,
                                           &kCountedDropout,
                                           &kCountedNormal,
                                           &kCountedUniform,
                                           &kCrossEntropyGradient,
                                           &kDepthwiseDataGradient,
                                           &kDepthwiseWeightGradient,
                                           &kExponentiate,
                                           &kActivationGradient,
                                           &kSoftmaxGradient,
                                           &kGatedActivate,
                                           &kGatedActivateGradient,
                                           &kAddRows,
                                           &kGatherGradient,
                                           &kLayerNormalizeGradient,
                                           &kMaxPoolTaps,
                                           &kMaxPoolGradient,
                                           &kRectifierGradient,
                                           &kRmsNormalize,
                                           &kRmsNormalizeGradient,
                                           &kRmsNormalizeScaleGradient,
                                           &kRotate,
                                           &kLoadStored,
                                           &kGatherStored,
                                           &kUpdateStoredSgd,
                                           &kUpdateStoredMomentum,
                                           &kUpdateStoredAdam,
                                           &kUpdateRowsStoredSgd,
                                           &kUpdateRowsStoredMomentum,
                                           &kUpdateRowsStoredAdam,
                                           &kAccumulateStored,
                                           &kAccumulateRowsStored,
                                           &kLinearStored,
                                           &kLinearStoredBackwardSgd,
                                           &kLinearStoredBackwardMomentum,
                                           &kLinearStoredBackwardAdam,
                                           &kLinearQuantized,
                                           &kGatherQuantized,
                                           &kComparePanels,
                                           &kConvStored,
                                           &kConvStoredBackwardSgd,
                                           &kConvStoredBackwardMomentum,
                                           &kConvStoredBackwardAdam,
                                           &kCompareConvolution,
                                           &kAttend,
                                           &kAttendGradient,
                                           &kVocabularyLoss,
                                           &kVocabularyLossGradient})
      made->ops.push_back(make_op(*definition, *made));
    api.check(api.create_custom_op_domain(kDomain, &made->domain));
    for (const Op& op : made->ops) api.check(api.custom_op_domain_add(made->domain, &op));
    set = std::move(made);
  }
  return *set;
}

// Tracks the runtime's allocations, and shows the tracker its allocator at work.
void track_allocations(const Api& api, const OrtApiBase* base) {
  allocations::track_module(reinterpret_cast<const void*>(base->GetApi));
  OrtAllocator* allocator = nullptr;
  api.check(api.get_allocator_with_default_options(&allocator));
  void* block = nullptr;
  constexpr size_t kAskedBytes = 1;
  allocations::learn_caller(kAskedBytes);
  const bool is_made = api.succeeded(api.allocator_alloc(allocator, kAskedBytes, &block));
  allocations::learn_caller(0);
  if (is_made) api.check(api.allocator_free(allocator, block));
}

}  // namespace
}  // namespace poet

extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(OrtSessionOptions* options,
                                                                               const OrtApiBase* base) {
  using namespace poet;
  const OrtApi* table = base->GetApi(kOrtApiVersion);
  if (table == nullptr) {
    return Api::create_status_of(base->GetApi(1))(kOrtFail, "the poet ops library needs ONNX Runtime 1.18 or newer");
  }
  const Api api(table);
  return guarded(api, [&] {
    fork_depth();  // installs the handlers before the first lock is taken
    const OpSet& set = op_set(table, api, read_session_config(api, options));
    track_allocations(api, base);
    api.check(api.add_custom_op_domain(options, set.domain));
  });
}
