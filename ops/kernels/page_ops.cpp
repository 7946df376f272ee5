// The paging operators. All take one list of inputs: what they work on, then triggers, which only order them.
//
//   PageOut(X) -> token                             PageIn(token, trigger...) -> Y
//   PageOutStart(X) -> token                        PageInStart(token, trigger...) -> (Yraw, ticket)
//   PageOutEnd(token, X, trigger...) -> token       PageInEnd(Yraw, ticket, trigger...) -> Y, in Yraw's buffer
//
// The halves copy nothing: X stays alive as an input of its end, and ONNX Runtime allocates Yraw where the memory plan
// has it. A transfer runs beside the nodes between its halves only where the release of its buffer can be seen, because
// an aborted run releases it in mid-transfer: that is a block of its own of ONNX Runtime's plain CPU allocator. Parts
// of an arena and the caller's arrays are transferred within the start, which is as correct and only slower.
#include "kernels/kernel.h"
#include "runtime/allocation_tracker.h"
#include "store/page.h"
#include "store/pending_read.h"

namespace poet {
namespace {

int64_t require_slot(const NodeInfo& node) { return static_cast<int64_t>(node.require_nonnegative("slot")); }

// The store of the node's session, which no other session's nodes have.
std::shared_ptr<PageStore> open_store(const NodeInfo& node) {
  const void* const session = node.session();
  if (session == nullptr) throw Error("the runtime does not say which session the node belongs to");
  return PageStore::open(session, node.store_options());
}

bool is_watched(const Context& context, const OrtValue* value, const void* data, uint64_t bytes) {
  return context.has_own_block(value) && allocations::is_tracked(data, bytes);
}

// What the node says of its plan; the three attributes come together or not at all.
bool read_plan(const NodeInfo& node, PlanSize* plan, uint64_t* slot_bytes) {
  int64_t bytes = 0, file_bytes = 0;
  const bool has[] = {node.optional_int("bytes", &bytes), node.optional_int("plan_slots", &plan->slots),
                      node.optional_int("plan_bytes", &file_bytes)};
  if (!has[0] && !has[1] && !has[2]) return false;
  if (!has[0] || !has[1] || !has[2])
    throw Error("the attributes 'bytes', 'plan_slots' and 'plan_bytes' belong together, but not all of them are there");
  if (bytes < 0 || plan->slots < 1 || file_bytes < 0)
    throw Error("the attributes 'bytes', 'plan_slots' and 'plan_bytes' are " + std::to_string(bytes) + ", " +
                std::to_string(plan->slots) + " and " + std::to_string(file_bytes) +
                ", but must be 0, 1 and 0 or more");
  *slot_bytes = static_cast<uint64_t>(bytes);
  plan->bytes = static_cast<uint64_t>(file_bytes);
  return true;
}

// The page of a page-out node. Where the runtime knows the tensor's size, its room is reserved when the session is
// made, so that a full disk is found then and not in a step. What only the plan says of a size is a limit.
class OwnPage {
 public:
  explicit OwnPage(const NodeInfo& node) {
    const int64_t slot = require_slot(node);
    PlanSize plan;
    uint64_t slot_bytes = 0, bytes = 0;
    const bool is_planned = read_plan(node, &plan, &slot_bytes);
    const bool is_known = node.static_input_bytes(0, &bytes);
    if (is_planned && is_known && bytes != slot_bytes)
      throw Error("the tensor has " + std::to_string(bytes) + " bytes, but its slot " + std::to_string(slot) + " has " +
                  std::to_string(slot_bytes) + " by the plan");
    const auto store = open_store(node);
    store->declare(plan);
    if (is_planned) store->declare_slot(slot, slot_bytes);
    page_ = store->page(slot);
    try {
      if (is_known) page_->reserve(bytes);
    } catch (...) {
      page_->detach();
      throw;
    }
  }
  OwnPage(const OwnPage&) = delete;
  OwnPage& operator=(const OwnPage&) = delete;
  ~OwnPage() { page_->detach(); }
  Page* operator->() const { return page_.get(); }

 private:
  std::shared_ptr<Page> page_;
};

class PageOut final : public Kernel {
 public:
  explicit PageOut(const NodeInfo& node) : page_(node) {}
  void compute(Context& context) override {
    Tensor x = context.input(0);
    context.output_token(0, page_->write(x.data, std::move(x.layout)));
  }

 private:
  OwnPage page_;
};

class PageOutStart final : public Kernel {
 public:
  explicit PageOutStart(const NodeInfo& node) : page_(node) {}
  void compute(Context& context) override {
    Tensor x = context.input(0);
    const bool watched = is_watched(context, x.value, x.data, x.layout.bytes);
    context.output_token(0, page_->start_write(x.data, std::move(x.layout), watched));
  }

 private:
  OwnPage page_;
};

class PageOutEnd final : public Kernel {
 public:
  explicit PageOutEnd(const NodeInfo& node) : store_(open_store(node)) {}
  void compute(Context& context) override {
    const int64_t token = context.input_token(0);
    Page::find(token, *store_)->end_write(token, context.input(1).data);
    context.output_token(0, token);
  }

 private:
  const std::shared_ptr<PageStore> store_;
};

// What a page-in node declares, and its session's store.
struct PageSource {
  explicit PageSource(const NodeInfo& node)
      : store(open_store(node)),
        slot(require_slot(node)),
        layout(make_layout(node.require_int("dtype"), node.require_shape("shape"))) {}
  // Throws Error unless the token's page is what was declared: only then memory of that size is asked for.
  void require_readable(int64_t token) const { Page::find(token, *store)->require_readable(token, slot, layout); }

  const std::shared_ptr<PageStore> store;
  const int64_t slot;
  const TensorLayout layout;
};

class PageIn final : public Kernel {
 public:
  explicit PageIn(const NodeInfo& node) : source_(node) {}
  void compute(Context& context) override {
    const int64_t token = context.input_token(0);
    source_.require_readable(token);
    read_page(*source_.store, token, source_.slot, source_.layout, context.output(0, source_.layout.shape));
  }

 private:
  const PageSource source_;
};

class PageInStart final : public Kernel {
 public:
  explicit PageInStart(const NodeInfo& node) : source_(node), read_(PendingRead::make(source_.store)) {}
  ~PageInStart() override { read_->remove(); }
  void compute(Context& context) override {
    const int64_t token = context.input_token(0);
    source_.require_readable(token);
    const TensorLayout& layout = source_.layout;
    const OrtValue* y = context.output_value(0, layout.shape);
    void* data = context.output(0, layout.shape);
    const bool watched = is_watched(context, y, data, layout.bytes);
    context.output_token(1, read_->start(token, source_.slot, layout, data, watched));
  }

 private:
  const PageSource source_;
  const std::shared_ptr<PendingRead> read_;
};

class PageInEnd final : public Kernel {
 public:
  explicit PageInEnd(const NodeInfo& node) : store_(open_store(node)) {}
  void compute(Context& context) override {
    const Tensor y = context.input(0);
    const int64_t ticket = context.input_token(1);
    PendingRead::find(ticket, *store_)->end(ticket, y.data);
    context.forward(y);
  }

 private:
  const std::shared_ptr<PageStore> store_;
};

void infer_out(const Api& api, const OrtShapeInferContext* context) { infer_token(api, context, 0); }

void infer_in_start(const Api& api, const OrtShapeInferContext* context) {
  infer_from_attributes(api, context);
  infer_token(api, context, 1);
}

}  // namespace

const OpDefinition kPageOut{"PageOut", 1, {kInt64, kUndefined}, Sharing::kNone, create<PageOut>, infer_out};
const OpDefinition kPageIn{
    "PageIn", 1, {kUndefined, kUndefined}, Sharing::kNone, create<PageIn>, infer_from_attributes};
const OpDefinition kPageOutStart{"PageOutStart",       1,        {kInt64, kUndefined}, Sharing::kNone,
                                 create<PageOutStart>, infer_out};
const OpDefinition kPageOutEnd{"PageOutEnd", 1, {kInt64, kUndefined}, Sharing::kNone, create<PageOutEnd>, infer_out};
const OpDefinition kPageInStart{"PageInStart", 2, {kUndefined, kInt64}, Sharing::kNone, create<PageInStart>,
                                infer_in_start};
const OpDefinition kPageInEnd{"PageInEnd",          1, {kUndefined, kUndefined}, Sharing::kAlways, create<PageInEnd>,
                              infer_type_from_input};

}  // namespace poet
