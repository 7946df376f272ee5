// A model as a session loads it: the same nodes, without what only people and planners read.
//
// ONNX Runtime keeps a model's message beside the graph that it makes of it, so that each name, shape and attribute is
// in memory twice to six times: of a decoder of 24 layers (3,176 nodes, stock onnxruntime 1.31) names take 3.1 MiB,
// types and shapes of values 3.4, and an attribute .7 KB.
//
// Rules:
//   S1. A node is called "#<place in the graph>", and a value that the graph makes for itself "%<number>": names of
//       fifteen letters and fewer need no memory of their own. Where a graph is nested in a node, all names stay.
//   S2. The type and shape of a value stay where they are asked for: where a node of another domain reads or makes it,
//       for some of our operators (kShaped), and for what others infer them from (kInferring).
//   S3. The numbers among the attributes of a node of ours are one attribute, "packed" (kernels/packed_attributes.h).
//   S4. Documentation and metadata are left out.
//   S5. Constants that the session borrows are said to be in a file.
//   S6. An output that nobody reads but the Gate that lets go of it (rule L9 of poet_onnx.passes.layout) is not asked
//       for where the kernel can do without it (kOptionalOutputs): it has the output's place to itself while it runs.
//       The Gate is gone, and the node itself says which step begins where a Mark behind the Gate would have.
//   S7. That an update or a sum was done is not asked for where no node reads it (kSaying).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "session_model/messages.h"

namespace poet {

class FileWriter;

class SessionModel {
 public:
  // Messages of constants that stand in the place of others, by where these begin in the file.
  using References = std::map<uint64_t, std::string_view>;

  // `readable`: nodes and values stay as they are, for who looks at what the runtime says of them. Throws Error.
  SessionModel(int descriptor, References references, bool readable);

  // Whether constants lie in files by names that are relative to the model's.
  bool has_files() const { return has_files_; }
  void write(int descriptor);  // throws Error
  // The name that the model has for what a session calls "#12" or "%12"; empty where there is none.
  std::string long_name(std::string_view name);

 private:
  struct Value {
    int64_t number = -1;  // of its short name
    uint32_t reads = 0;
    bool is_kept = false, is_flag = false, is_shaped = false, is_unasked = false;
  };
  struct Inferred {  // of two values, one's type from the other's
    Value* made;
    Value* read;
  };
  struct Node;
  // A Gate right behind the node whose outputs it lets go of, and the step that a Mark behind it says begins.
  struct Gate {
    uint64_t place;
    std::vector<std::string> values;
    std::string made;
    std::optional<int64_t> begins;
  };

  template <class Look>
  void each_graph_field(Look&& look);
  Value& value(std::string_view name) { return values_[std::string(name)]; }
  void look(uint64_t place, const Node& node);
  int64_t next_number();
  void look_for_gate(uint64_t place, const Node& node);
  void decide();
  std::string name_of(std::string_view name);
  void write_graph(FileWriter& out, const Field& graph);
  std::string written(std::string_view message, uint64_t place);

  FileBytes file_;
  References references_;
  bool stays_, has_files_ = false;
  std::unordered_map<std::string, Value> values_;
  int64_t short_names_ = 0;
  std::vector<Inferred> inferred_;
  std::vector<Gate> gates_;
  std::unordered_set<uint64_t> gone_;             // places of nodes
  std::unordered_map<uint64_t, int64_t> begins_;  // steps that nodes say for what is gone behind them
  uint64_t maker_ = 0;                            // the place behind a node that may do without outputs
  std::vector<std::string> made_;                 // by it
};

}  // namespace poet
