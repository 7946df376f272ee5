// Models as sessions load them: of any bytes one is written, or an error says that there is none.
#include <sys/mman.h>

#include <random>

#include "harness.h"
#include "scenarios.h"
#include "session_model/session_model.h"

namespace driver {
namespace {

std::string number_field(uint32_t number, uint64_t value) {
  std::string out;
  append_varint(&out, uint64_t{number} << 3 | kVarint);
  append_varint(&out, value);
  return out;
}

std::string field(uint32_t number, const std::string& content) {
  std::string out;
  append_text(&out, number, content);
  return out;
}

std::string node(const std::string& op_type, const std::vector<std::string>& reads,
                 const std::vector<std::string>& makes, const std::string& attribute) {
  std::string out;
  for (const std::string& name : reads) out += field(1, name);
  for (const std::string& name : makes) out += field(2, name);
  return out + field(4, op_type) + field(5, field(1, attribute) + number_field(3, 7) + number_field(20, 2)) +
         field(7, "poet");
}

// A graph with a Gate and a Mark that a session does without, and an update whose flag it does not ask for.
std::string sample() {
  std::string graph = field(1, node("AddLowRank", {"base", "x", "A", "B", "scale"}, {"y", "low"}, "rank"));
  graph += field(1, node("Gate", {"low"}, {"released"}, "odd")) + field(1, node("Mark", {"x"}, {}, "step"));
  graph += field(1, node("UpdateSgd", {"y", "x"}, {"done"}, "offset")) + field(5, field(8, "A"));
  for (const char* name : {"base", "x", "B", "scale"}) graph += field(11, field(1, name));
  for (const char* name : {"y", "done"}) graph += field(12, field(1, name));
  return number_field(1, 9) + field(7, graph + field(13, field(1, "low") + field(2, "type"))) + field(14, "said");
}

struct File {
  File() : descriptor(memfd_create("model", 0)) { REQUIRE(descriptor >= 0); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() { close(descriptor); }
  int descriptor;
};

std::string written(const std::string& model) {
  const File from, to;
  REQUIRE(write(from.descriptor, model.data(), model.size()) == static_cast<ssize_t>(model.size()));
  SessionModel read(from.descriptor, {}, false);
  read.long_name("#0");
  read.long_name("%0");
  read.write(to.descriptor);
  FileBytes bytes(to.descriptor);
  return bytes.read(0, bytes.size());
}

}  // namespace

void models_of_any_bytes_are_written_or_refused() {
  const std::string whole = sample(), good = written(whole);
  REQUIRE(good.find("next_step=7;rank=7") != std::string::npos && good.find("released") == std::string::npos);
  REQUIRE(good.find("done") == std::string::npos && good.find("low") == std::string::npos);
  REQUIRE(fails([&] { written("\xff\xff\xff"); }, "no protobuf message"));
  std::mt19937 random(0);
  for (int turn = 0; turn < 3000; ++turn) {
    std::string damaged = whole.substr(0, turn % 3 == 0 ? random() % whole.size() : whole.size());
    for (int flips = static_cast<int>(random() % 4); flips > 0 && !damaged.empty(); --flips)
      damaged[random() % damaged.size()] = static_cast<char>(random());
    try {
      written(damaged);
    } catch (const Error&) {
    }
  }
}

}  // namespace driver
