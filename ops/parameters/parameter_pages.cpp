// The pages of a parameter file: how they are found, read and written, ahead of the step and behind it where there is a
// channel.
#include <algorithm>
#include <cstring>

#include "faults/faults.h"
#include "parameters/page_sum.h"
#include "parameters/parameter_file.h"
#include "process/error.h"

namespace poet {

uint64_t ParameterFile::page_count(uint64_t tensor) const { return first_page_[tensor + 1] - first_page_[tensor]; }

uint64_t ParameterFile::page_bytes(uint64_t tensor, uint64_t page) const {
  return std::min(kParameterPageBytes, tensors_[tensor].bytes - page * kParameterPageBytes);
}

uint64_t ParameterFile::place(uint64_t tensor, uint64_t page, Copy copy) const {
  return (copy == Copy::kSecond ? second_ : first_)[tensor] + page * kParameterPageBytes;
}

PageChannel::Page ParameterFile::in_file(uint64_t tensor, uint64_t page, Copy copy) const {
  const uint64_t bytes = page_bytes(tensor, page);
  return {place(tensor, page, copy), whole_blocks(bytes), bytes, page};
}

void ParameterFile::read_page_to(uint64_t tensor, uint64_t page, unsigned char* to, Staging& block) {
  require_usable();
  const uint64_t index = first_page_[tensor] + page;
  const PageEntry& entry = working_[index];
  const uint64_t bytes = page_bytes(tensor, page), from = place(tensor, page, entry.copy);
  unsigned char* const target = to == nullptr ? block.data() : to;
  if (entry.copy == Copy::kZeros) {
    std::memset(target, 0, bytes);
    return;
  }
  bool is_here = false;
  if (channel_ != nullptr) {
    if (!any_page_[tensor]) order_.note(index);
    if (to == nullptr) {
      is_here = channel_->take(from, entry.checksum, block);
    } else if (const unsigned char* const found = channel_->find(from, entry.checksum)) {
      std::memcpy(to, found, bytes);
      is_here = true;
    }
    if (is_here) read_ahead_bytes_ += bytes;
  }
  if (!is_here) {
    unsigned char* const side = is_direct_ ? block.data() : target;
    read(side, is_direct_ ? whole_blocks(bytes) : bytes, from);
    if (page_sum(side, bytes, page) != entry.checksum) {
      if (channel_ != nullptr) require_written(channel_->failure());
      throw Error("page " + std::to_string(page) + " of tensor " + std::to_string(tensor) + " of the store in " +
                  file_.directory() + " is damaged: " + error_text(IoResult::kAltered));
    }
    if (side != target) std::memcpy(target, side, bytes);
  }
  if (channel_ != nullptr) read_ahead();
}

void ParameterFile::begin_step() {
  require_usable();
  if (has_uncommitted_) commits_steps_ = false;
  if (channel_ == nullptr) return;
  channel_->forget_before(~uint64_t{0});
  order_.begin_step();
  read_ahead();
}

// Has the pages that come next on their way, as many as there is room for.
void ParameterFile::read_ahead() {
  channel_->forget_before(order_.place());
  while (order_.has_next() && channel_->has_room()) {
    const uint64_t place_in_step = order_.next_place(), index = order_.next();
    const Copy copy = working_[index].copy;
    const uint64_t tensor = static_cast<uint64_t>(std::upper_bound(first_page_.begin(), first_page_.end(), index) -
                                                  first_page_.begin() - 1);
    const uint64_t page = index - first_page_[tensor];
    if (copy != Copy::kZeros) channel_->read_ahead(in_file(tensor, page, copy), place_in_step);
  }
}

void ParameterFile::require_trained(uint64_t tensor) const {
  if (!tensors_[tensor].changes && commits_ != 0)
    throw Error("tensor " + std::to_string(tensor) + " of the store in " + file_.directory() + " is not trained");
}

void ParameterFile::write_page(uint64_t tensor, uint64_t page, Staging& block) {
  require_usable();
  const uint64_t index = first_page_[tensor] + page, bytes = page_bytes(tensor, page);
  const Copy to = committed_[index] == Copy::kFirst ? Copy::kSecond : Copy::kFirst;
  has_uncommitted_ = true;
  std::memset(block.data() + bytes, 0, whole_blocks(bytes) - bytes);
  if (channel_ != nullptr) require_written(channel_->failure());
  if (channel_ == nullptr || !channel_->write(in_file(tensor, page, to), block, &working_[index].checksum)) {
    write(block.data(), whole_blocks(bytes), place(tensor, page, to));
    working_[index].checksum = page_sum(block.data(), bytes, page);
  }
  working_[index].copy = to;
}

void ParameterFile::verify() {
  Staging block(kParameterPageBytes);
  for (uint64_t tensor = 0; tensor < tensors_.size(); ++tensor)
    for (uint64_t page = 0; page < page_count(tensor); ++page) read_page(tensor, page, block);
}

IoResult ParameterFile::transfer_in(const MemoryParts& parts, uint64_t offset) {
  const IoResult result = file_.read(parts, offset);
  read_bytes_ += result.done_bytes;
  if (drops_cache_) file_.drop_cache(offset, parts.bytes());
  return result;
}

IoResult ParameterFile::transfer_out(const MemoryParts& parts, uint64_t offset) {
  uint64_t place = offset;
  for (int i = 0; i < parts.count; ++i) {
    faults::log_write(place, parts.parts[i].iov_base, parts.parts[i].iov_len);
    place += parts.parts[i].iov_len;
  }
  const IoResult result = file_.write(parts, offset);
  written_bytes_ += result.done_bytes;
  if (drops_cache_ || (commits_steps_ && !is_direct_)) file_.write_back(offset, parts.bytes());
  return result;
}

void ParameterFile::read(void* data, uint64_t bytes, uint64_t offset) {
  MemoryParts whole;
  whole.add(data, bytes);
  const IoResult result = transfer_in(whole, offset);
  if (result.error != 0)
    throw Error("the store in " + file_.directory() + " cannot be read: " + error_text(result.error) + " at offset " +
                std::to_string(offset + result.done_bytes));
}

void ParameterFile::write(const void* data, uint64_t bytes, uint64_t offset) {
  MemoryParts whole;
  whole.add(data, bytes);
  const IoResult result = transfer_out(whole, offset);
  require_written({result.error, offset + result.done_bytes});
}

void ParameterFile::require_written(const PageChannel::Failure& failure) {
  if (failure.error == 0) return;
  has_failed_ = true;
  throw Error("the store in " + file_.directory() + " cannot be written: " + error_text(failure.error) + " at offset " +
              std::to_string(failure.offset) + "; it opens at its last commit");
}

}  // namespace poet
