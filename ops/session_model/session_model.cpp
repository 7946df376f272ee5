#include "session_model/session_model.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <utility>

#include "session_model/file_writer.h"

namespace poet {
namespace {

// Numbers of fields and kinds (onnx/onnx.proto in github.com/onnx/onnx).
namespace in_model {
constexpr uint32_t kDocumentation = 6, kGraph = 7, kMetadata = 14;
}
namespace in_graph {
constexpr uint32_t kNode = 1, kInitializer = 5, kDocumentation = 10, kInput = 11, kOutput = 12, kValueInfo = 13,
                   kMetadata = 16;
}
namespace in_node {
constexpr uint32_t kReads = 1, kMakes = 2, kName = 3, kOpType = 4, kAttribute = 5, kDocumentation = 6, kDomain = 7,
                   kMetadata = 9;
}
namespace in_value {
constexpr uint32_t kName = 1, kType = 2;
}
namespace in_tensor {
constexpr uint32_t kName = 8, kExternalData = 13;
}
namespace in_attribute {
constexpr uint32_t kName = 1, kFloat = 2, kInteger = 3, kText = 4, kGraph = 6, kIntegers = 8, kGraphs = 11, kKind = 20;
constexpr uint64_t kFloatKind = 1, kIntegerKind = 2, kTextKind = 3, kIntegersKind = 7;
}  // namespace in_attribute

constexpr std::string_view kOurDomain = "poet";
constexpr std::string_view kNextStep = "next_step", kStep = "step";
constexpr size_t kMostPackedBytes = 128, kGraphLengthBytes = 5, kPieceBytes = 1 << 18;

struct Count {
  std::string_view op_type;
  size_t count;
};

// Operators of ours of which types and shapes are asked for, of so many inputs and outputs: ONNX Runtime asks where
// they may share a buffer, a gather's type is nowhere else, and pages are sized by their tensor.
constexpr Count kShaped[] = {
    {"ActivationGradient", 1},
    {"AddLowRank", 1},
    {"AddLowRankGradient", 1},
    {"AddRows", 1},
    {"BatchNormalizeGradient", 1},
    {"CrossEntropyGradient", 1},
    {"Exponentiate", 1},
    {"GatedActivateGradient", 2},
    {"GatherStored", 1},
    {"LayerNormalizeGradient", 1},
    {"PageOut", 1},
    {"PageOutStart", 1},
    {"RectifierGradient", 1},
    {"RmsNormalizeGradient", 1},
    {"Rotate", 1},
    {"SoftmaxGradient", 1},
};

// Operators of ours whose output has the type of the input, and takes its shape with it (infer_type_from_input).
constexpr Count kInferring[] = {{"CountedDropout", 1}, {"Gate", 1}, {"PageInEnd", 1}};

// Operators of ours that do without outputs from so many on.
constexpr Count kOptionalOutputs[] = {{"AddLowRank", 1}, {"RmsNormalize", 1}};

// Beginnings of the names of operators of ours that say by their last output, one bool, that they are done.
constexpr std::string_view kSaying[] = {"Accumulate", "ConvStoredBackward", "LinearStoredBackward", "Update"};

bool is_saying(std::string_view op_type) {
  return std::any_of(std::begin(kSaying), std::end(kSaying),
                     [&](std::string_view begin) { return op_type.substr(0, begin.size()) == begin; });
}

template <size_t size>
size_t count_of(const Count (&counts)[size], std::string_view op_type, size_t otherwise) {
  for (const Count& each : counts)
    if (each.op_type == op_type) return each.count;
  return otherwise;
}

// The last number in a field of a message.
uint64_t last_number(std::string_view message, uint32_t number) {
  uint64_t found = 0;
  each_field(message, [&](const Field& field) {
    if (field.number != number || field.form != kVarint) return;
    uint64_t at = field.content;
    found = read_varint(message, &at, field.end);
  });
  return found;
}

// An attribute as text: "rank=8". Nothing where it is no number, or many, or shape inference reads it.
std::optional<std::string> packed(std::string_view attribute) {
  const std::string_view name = last_text(attribute, in_attribute::kName);
  const uint64_t kind = last_number(attribute, in_attribute::kKind);
  if (name == "dtype" || name == "shape") return std::nullopt;
  std::string said(name);
  said.push_back('=');
  if (kind == in_attribute::kFloatKind) {
    uint32_t bits = 0;
    each_field(attribute, [&](const Field& field) {
      if (field.number == in_attribute::kFloat && field.form == kFourBytes)
        std::memcpy(&bits, attribute.data() + field.content, sizeof bits);
    });
    said += std::to_string(bits);
  } else if (kind == in_attribute::kIntegerKind) {
    said += std::to_string(static_cast<int64_t>(last_number(attribute, in_attribute::kInteger)));
  } else if (kind == in_attribute::kIntegersKind) {
    const size_t first = said.size();
    each_field(attribute, [&](const Field& field) {
      if (field.number != in_attribute::kIntegers) return;
      for (uint64_t at = field.content; at < field.end;) {
        if (said.size() != first) said.push_back(',');
        said += std::to_string(static_cast<int64_t>(read_varint(attribute, &at, field.end)));
      }
    });
  } else {
    return std::nullopt;
  }
  if (said.size() > kMostPackedBytes) return std::nullopt;
  return said;
}

}  // namespace

struct SessionModel::Node {
  explicit Node(std::string_view message) {
    each_field(message, [&](const Field& field) {
      const std::string_view text = field.of(message);
      switch (field.number) {
        case in_node::kReads:
          reads.push_back(text);
          break;
        case in_node::kMakes:
          makes.push_back(text);
          break;
        case in_node::kOpType:
          op_type = text;
          break;
        case in_node::kDomain:
          is_ours = text == kOurDomain;
          break;
        case in_node::kAttribute:
          look_at(text);
          break;
        default:
          break;
      }
    });
  }

  std::vector<std::string_view> reads, makes;
  std::string_view op_type;
  std::optional<int64_t> begins;  // the step that it says begins
  bool is_ours = false, has_graph = false;

 private:
  void look_at(std::string_view attribute) {
    each_field(attribute, [&](const Field& field) {
      if (field.number == in_attribute::kGraph || field.number == in_attribute::kGraphs) has_graph = true;
      const bool is_step =
          field.number == in_attribute::kName && (field.of(attribute) == kNextStep || field.of(attribute) == kStep);
      if (is_step) begins = static_cast<int64_t>(last_number(attribute, in_attribute::kInteger));
    });
  }
};

SessionModel::SessionModel(int descriptor, References references, bool readable)
    : file_(descriptor), references_(std::move(references)), stays_(readable) {
  value("").is_kept = true;
  std::vector<Field> nodes;
  each_graph_field([&](const Field& field) {
    if (field.number == in_graph::kNode) nodes.push_back(field);
    if (field.number == in_graph::kInput || field.number == in_graph::kOutput)
      value(last_text(file_.read(field.content, field.end), in_value::kName)).is_kept = true;
    if (field.number != in_graph::kInitializer) return;
    uint64_t at = field.content;
    for (Field part{}; next_field(file_, &at, field.end, &part);) {
      if (part.number == in_tensor::kName) value(file_.read(part.content, part.end)).is_kept = true;
      if (part.number == in_tensor::kExternalData && references_.count(field.begin) == 0) has_files_ = true;
    }
  });
  for (uint64_t place = 0; place < nodes.size(); ++place) {
    const std::string message = file_.read(nodes[place].content, nodes[place].end);
    look(place, Node(message));
  }
  // From the last one on, for what a shape is inferred from may be inferred itself.
  for (auto each = inferred_.rbegin(); each != inferred_.rend(); ++each)
    if (each->made->is_shaped) each->read->is_shaped = true;
  decide();
}

template <class Look>
void SessionModel::each_graph_field(Look&& look) {
  uint64_t at = 0;
  for (Field graph{}; next_field(file_, &at, file_.size(), &graph);) {
    if (graph.number != in_model::kGraph) continue;
    uint64_t within = graph.content;
    for (Field field{}; next_field(file_, &within, graph.end, &field);) look(field);
  }
}

void SessionModel::look(uint64_t place, const Node& node) {
  stays_ = stays_ || node.has_graph;
  const size_t shaped = node.is_ours ? count_of(kShaped, node.op_type, 0) : SIZE_MAX;
  for (size_t i = 0; i < node.reads.size(); ++i) {
    Value& read = value(node.reads[i]);
    ++read.reads;
    read.is_shaped = read.is_shaped || i < shaped;
  }
  for (size_t i = 0; i < node.makes.size(); ++i) {
    Value& made = value(node.makes[i]);
    if (!made.is_kept && made.number < 0) made.number = next_number();
    made.is_shaped = made.is_shaped || i < shaped;
  }
  if (node.is_ours && !node.reads.empty() && !node.makes.empty()) {
    if (count_of(kInferring, node.op_type, 0) != 0) inferred_.push_back({&value(node.makes[0]), &value(node.reads[0])});
    if (is_saying(node.op_type)) value(node.makes.back()).is_flag = true;
  }
  look_for_gate(place, node);
}

// The number of a short name that no input, output or constant has.
int64_t SessionModel::next_number() {
  while (true) {
    const auto found = values_.find("%" + std::to_string(short_names_));
    if (found == values_.end() || !found->second.is_kept) return short_names_++;
    ++short_names_;
  }
}

void SessionModel::look_for_gate(uint64_t place, const Node& node) {
  if (node.is_ours && node.op_type == "Gate" && maker_ == place && !made_.empty() && node.makes.size() == 1 &&
      std::equal(node.reads.begin(), node.reads.end(), made_.begin(), made_.end()))
    gates_.push_back({place, made_, std::string(node.makes[0]), {}});
  else if (node.is_ours && node.op_type == "Mark" && !gates_.empty() && gates_.back().place + 1 == place)
    gates_.back().begins = node.begins;
  const size_t needed = node.is_ours ? count_of(kOptionalOutputs, node.op_type, SIZE_MAX) : SIZE_MAX;
  made_.clear();
  if (needed >= node.makes.size() || node.begins) return;
  maker_ = place + 1;
  made_.assign(node.makes.begin() + static_cast<ptrdiff_t>(needed), node.makes.end());
}

void SessionModel::decide() {
  if (stays_) return;
  for (auto& [name, its] : values_) its.is_unasked = its.is_flag && its.reads == 0;
  for (const Gate& gate : gates_) {
    const Value& made = value(gate.made);
    const bool is_last = std::all_of(gate.values.begin(), gate.values.end(), [&](const std::string& name) {
      const Value& its = value(name);
      return its.reads == 1 && !its.is_kept;
    });
    if (!is_last || made.reads != 0 || made.is_kept) continue;
    for (const std::string& name : gate.values) value(name).is_unasked = true;
    gone_.insert(gate.place);
    if (!gate.begins) continue;
    gone_.insert(gate.place + 1);
    begins_[gate.place - 1] = *gate.begins;
  }
}

std::string SessionModel::name_of(std::string_view name) {
  const auto found = values_.find(std::string(name));
  if (found == values_.end() || found->second.number < 0) return std::string(name);
  return "%" + std::to_string(found->second.number);
}

void SessionModel::write(int descriptor) {
  FileWriter out(descriptor);
  uint64_t at = 0;
  for (Field field{}; next_field(file_, &at, file_.size(), &field);) {
    if (field.number == in_model::kGraph) {
      std::string key;
      append_varint(&key, uint64_t{in_model::kGraph} << 3 | kMessage);
      out.add(key);
      const uint64_t length_at = out.position();
      out.add(std::string(kGraphLengthBytes, '\0'));
      write_graph(out, field);
      out.flush();
      const uint64_t length = out.position() - length_at - kGraphLengthBytes;
      char digits[kGraphLengthBytes];
      for (size_t i = 0; i < kGraphLengthBytes; ++i)
        digits[i] = static_cast<char>((length >> 7 * i & 0x7F) | (i + 1 < kGraphLengthBytes ? 0x80 : 0));
      out.write_at(length_at, {digits, kGraphLengthBytes});
    } else if (field.number != in_model::kDocumentation && field.number != in_model::kMetadata) {
      out.add(file_.read(field.begin, field.end));
    }
  }
  out.flush();
}

void SessionModel::write_graph(FileWriter& out, const Field& graph) {
  uint64_t at = graph.content, place = 0;
  for (Field field{}; next_field(file_, &at, graph.end, &field);) {
    const auto reference = references_.find(field.begin);
    std::string whole;
    if (field.number == in_graph::kNode) {
      if (gone_.count(place) == 0)
        append_text(
            &whole, in_graph::kNode,
            stays_ ? file_.read(field.content, field.end) : written(file_.read(field.content, field.end), place));
      ++place;
      out.add(whole);
    } else if (field.number == in_graph::kValueInfo && !stays_) {
      const std::string message = file_.read(field.content, field.end);
      const std::string_view name = last_text(message, in_value::kName);
      const Value& its = value(name);
      if (!its.is_shaped || its.is_unasked) continue;
      std::string said;
      append_text(&said, in_value::kName, name_of(name));
      append_text(&said, in_value::kType, last_text(message, in_value::kType));
      append_text(&whole, in_graph::kValueInfo, said);
      out.add(whole);
    } else if (field.number == in_graph::kOutput &&
               value(last_text(file_.read(field.content, field.end), in_value::kName)).is_unasked) {
      continue;
    } else if (field.number == in_graph::kInitializer && reference != references_.end()) {
      append_text(&whole, in_graph::kInitializer, reference->second);
      out.add(whole);
    } else if (field.number != in_graph::kDocumentation && field.number != in_graph::kMetadata) {
      for (uint64_t from = field.begin; from < field.end; from += kPieceBytes)
        out.add(file_.read(from, std::min<uint64_t>(field.end, from + kPieceBytes)));
    }
  }
}

std::string SessionModel::written(std::string_view message, uint64_t place) {
  const Node node(message);
  std::string out, numbers;
  const auto begins = begins_.find(place);
  if (begins != begins_.end()) numbers.append(kNextStep).append("=").append(std::to_string(begins->second));
  each_field(message, [&](const Field& field) {
    const std::string_view text = field.of(message);
    if (field.number == in_node::kReads || field.number == in_node::kMakes) {
      if (field.number == in_node::kReads || !value(text).is_unasked) append_text(&out, field.number, name_of(text));
    } else if (field.number == in_node::kAttribute) {
      const std::optional<std::string> said = node.is_ours ? packed(text) : std::nullopt;
      if (said) numbers.append(numbers.empty() ? "" : ";").append(*said);
      if (!said) append_text(&out, in_node::kAttribute, text);
    } else if (field.number != in_node::kName && field.number != in_node::kDocumentation &&
               field.number != in_node::kMetadata) {
      out.append(message.substr(field.begin, field.end - field.begin));
    }
  });
  append_text(&out, in_node::kName, "#" + std::to_string(place));
  if (numbers.empty()) return out;
  std::string attribute;
  append_text(&attribute, in_attribute::kName, "packed");
  append_text(&attribute, in_attribute::kText, numbers);
  append_varint(&attribute, uint64_t{in_attribute::kKind} << 3 | kVarint);
  append_varint(&attribute, in_attribute::kTextKind);
  append_text(&out, in_node::kAttribute, attribute);
  return out;
}

std::string SessionModel::long_name(std::string_view name) {
  uint64_t wanted = 0, place = 0;
  if (stays_ || name.size() < 2) return "";
  const auto read = std::from_chars(name.data() + 1, name.data() + name.size(), wanted);
  if (read.ec != std::errc() || read.ptr != name.data() + name.size()) return "";
  if (name[0] == '%') {
    for (const auto& [long_one, its] : values_)
      if (its.number >= 0 && static_cast<uint64_t>(its.number) == wanted) return long_one;
    return "";
  }
  std::string found;
  each_graph_field([&](const Field& field) {
    if (field.number == in_graph::kNode && place++ == wanted)
      found = last_text(file_.read(field.content, field.end), in_node::kName);
  });
  return found;
}

}  // namespace poet
