// Updates that pages of a table get later than the step that they belong to, to the same bits.
//
// A batch reads few rows of a large table of embeddings. The gradient of all others is zero; yet an optimizer changes
// them in every step, by their momentum and by weight decay. To read and write the whole table for that is most of what
// a step moves. So a page on which no row has a gradient misses the update. The file has how many it missed; the rates
// of the last updates are a tensor of the store. Before anybody sees the page, it gets what it missed: the optimizer's
// own arithmetic with a gradient of zero, once for each update, in their order.
#pragma once

#include <cstdint>
#include <vector>

#include "parameters/parameter_file.h"

namespace poet {

// A table, what its optimizer keeps for it, the tensors behind it, and the rates behind these.
class DeferredTable {
 public:
  // A page gets what it missed after so many updates at the latest. poet_onnx/description/optimizers.py has the same
  // number.
  static constexpr uint64_t kMostMissed = 1024;

  // Reads the rates from tensor `rates_tensor` of a file; `block` has room for a page. Throws Error where it is none.
  DeferredTable(ParameterFile& file, uint64_t rates_tensor, Staging& block);

  uint64_t first() const { return first_; }  // the table; its optimizer's tensors are behind it
  uint64_t tensors() const { return tensors_; }
  uint64_t rate_count() const;
  // Whether these are the table and all of its optimizer's tensors.
  bool is(uint64_t tensor, uint64_t tensors) const { return tensor == first_ && tensors == tensors_; }
  bool has(uint64_t tensor) const { return tensor >= first_ && tensor < first_ + tensors_; }
  uint64_t missed(const ParameterFile& file, uint64_t page) const { return file.missed(first_, page); }

  // Makes `missed` updates of `count` elements of the tensors, the newest last.
  void make_up(float* const* tensors, uint64_t count, uint64_t missed) const;
  // The pages whose turn it is in the next update: each has one in kMostMissed of them.
  struct Pages {
    uint64_t first, end;
  };
  Pages due(uint64_t page_count) const;
  // Notes the rates of an update, and writes them to the file, through a block.
  void add(ParameterFile& file, const float* rates, Staging& block);

 private:
  const uint64_t rates_tensor_, tensors_, first_;
  uint32_t place_ = 0;        // of the next update's rates
  std::vector<float> rates_;  // of the last updates, in a ring
};

}  // namespace poet
