#include "parameters/parameter_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>

#include "faults/faults.h"
#include "process/error.h"
#include "process/fork.h"

namespace poet {
namespace {

constexpr const char* kName = "parameters.poet";
constexpr const char* kNewName = "parameters.poet.new";
constexpr const char* kLockName = "lock";
constexpr uint64_t kNoTensor = ~uint64_t{0};
constexpr uint64_t kPageElements = kParameterPageBytes / sizeof(float);

std::mutex registry_mutex;

std::map<uint64_t, std::shared_ptr<ParameterStore>>& open_stores() {
  static auto* const stores = new std::map<uint64_t, std::shared_ptr<ParameterStore>>;
  return *stores;
}

bool has_store(const std::string& directory) {
  struct stat status{};
  return lstat((directory + "/" + kName).c_str(), &status) == 0;
}

void sync_directory(const std::string& directory) {
  const int error = faults::status([&] {
    const int descriptor = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) return errno;
    const int failed = fsync(descriptor) == 0 ? 0 : errno;
    ::close(descriptor);
    return failed;
  });
  if (error != 0) throw Error("the store's directory " + directory + " cannot be made durable: " + error_text(error));
}

}  // namespace

ParameterStore::ParameterStore(const std::string& directory) : directory_(directory), fork_depth_(fork_depth()) {
  for (Staging& block : blocks_) block = Staging(kParameterPageBytes);
  constexpr mode_t kOwnerOnly = 0600;
  const std::string path = directory + "/" + kLockName;
  descriptor_ = ::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC | O_NOFOLLOW, kOwnerOnly);
  if (descriptor_ < 0) throw Error("the store in " + directory + " cannot be locked: " + error_text(errno));
  try {
    lock_.emplace(descriptor_, directory);
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

ParameterStore::~ParameterStore() {
  file_.reset();
  if (is_new_ && fork_depth_ == fork_depth()) unlink((directory_ + "/" + kNewName).c_str());
  lock_.reset();
  ::close(descriptor_);
}

uint64_t ParameterStore::add(std::unique_ptr<ParameterStore> store) {
  static uint64_t last = 0;
  const std::lock_guard<std::mutex> lock(registry_mutex);
  open_stores()[++last] = std::move(store);
  return last;
}

uint64_t ParameterStore::make(const std::string& directory, std::vector<StoredTensor> tensors, std::string description,
                              uint64_t text_room, ParameterAccess access) {
  std::unique_ptr<ParameterStore> store(new ParameterStore(directory));
  if (has_store(directory)) throw Error("there is a store in " + directory);
  unlink((directory + "/" + kNewName).c_str());
  store->is_new_ = true;
  store->file_ =
      ParameterFile::make(directory, kNewName, std::move(tensors), std::move(description), text_room, access);
  store->find_deferred();
  return add(std::move(store));
}

uint64_t ParameterStore::open(const std::string& directory, ParameterAccess access) {
  if (!has_store(directory)) throw Error("there is no store in " + directory);
  std::unique_ptr<ParameterStore> store(new ParameterStore(directory));
  store->file_ = ParameterFile::open(directory, kName, access);
  store->find_deferred();
  return add(std::move(store));
}

void ParameterStore::close(uint64_t number) {
  std::shared_ptr<ParameterStore> closed;  // outlives the lock
  const std::lock_guard<std::mutex> lock(registry_mutex);
  const auto found = open_stores().find(number);
  if (found == open_stores().end()) return;
  closed = std::move(found->second);
  open_stores().erase(found);
}

std::shared_ptr<ParameterStore> ParameterStore::find(uint64_t number) {
  const std::lock_guard<std::mutex> lock(registry_mutex);
  const auto found = open_stores().find(number);
  if (found == open_stores().end())
    throw Error("no parameter store is open under the number " + std::to_string(number));
  return found->second;
}

std::shared_ptr<ParameterStore> ParameterStore::of(Handle handle, uint64_t* tensor) {
  const auto value = static_cast<uint64_t>(handle);
  std::shared_ptr<ParameterStore> store = find(value >> 32);
  *tensor = value & 0xffffffff;
  return store;
}

void ParameterStore::require_range(uint64_t tensor, uint64_t offset, uint64_t bytes) const {
  const auto& tensors = file_->tensors();
  if (tensor >= tensors.size() || offset > tensors[tensor].bytes || bytes > tensors[tensor].bytes - offset)
    throw Error(std::to_string(bytes) + " bytes at offset " + std::to_string(offset) + " are not within tensor " +
                std::to_string(tensor) + " of the store in " + directory_);
}

void ParameterStore::find_deferred() {
  for (uint64_t tensor = 0; tensor < file_->tensors().size(); ++tensor) {
    if (file_->tensors()[tensor].rates_of == 0) continue;
    const DeferredTable& table = deferred_.emplace_back(*file_, tensor, blocks_[0]);
    for (uint64_t i = 0; i < table.tensors(); ++i) file_->expect_any_page(table.first() + i);
  }
}

DeferredTable* ParameterStore::deferred(uint64_t tensor) {
  for (DeferredTable& table : deferred_)
    if (table.has(tensor)) return &table;
  return nullptr;
}

const DeferredTable* ParameterStore::lagging(uint64_t tensor, uint64_t page) {
  const DeferredTable* const table = deferred(tensor);
  return table != nullptr && table->missed(*file_, page) != 0 ? table : nullptr;
}

void ParameterStore::read_made_up(const DeferredTable& table, uint64_t page, uint64_t begin, uint64_t count) {
  float* parts[kBlocks] = {};
  for (uint64_t i = 0; i < table.tensors(); ++i) {
    file_->read_page(table.first() + i, page, blocks_[i]);
    parts[i] = elements(i) + begin;
  }
  const uint64_t there = file_->page_bytes(table.first(), page) / sizeof(float) - begin;
  table.make_up(parts, std::min(count, there), table.missed(*file_, page));
}

void ParameterStore::read_page(uint64_t tensor, uint64_t page, unsigned char* to) {
  const DeferredTable* const table = lagging(tensor, page);
  if (table == nullptr) {
    file_->read_page_to(tensor, page, to, blocks_[0]);
    return;
  }
  read_made_up(*table, page);
  const uint64_t index = tensor - table->first();
  if (to == nullptr)
    blocks_[0].swap(blocks_[index]);
  else
    std::memcpy(to, block(index), file_->page_bytes(tensor, page));
}

// Writes a page of neighbouring tensors from the first blocks; what it missed is made up for.
void ParameterStore::write_pages(uint64_t tensor, uint64_t tensors, uint64_t page) {
  for (uint64_t i = 0; i < tensors; ++i) file_->write_page(tensor + i, page, blocks_[i]);
  file_->set_missed(tensor, page, 0);
}

void ParameterStore::read(uint64_t tensor, uint64_t offset, void* to, uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  require_range(tensor, offset, bytes);
  auto* target = static_cast<unsigned char*>(to);
  while (bytes != 0) {
    const uint64_t page = offset / kParameterPageBytes, begin = offset % kParameterPageBytes;
    const uint64_t some = std::min(bytes, kParameterPageBytes - begin);
    if (begin == 0 && some == file_->page_bytes(tensor, page)) {
      read_page(tensor, page, target);
    } else if (const DeferredTable* const table = lagging(tensor, page)) {
      const uint64_t first = begin / sizeof(float), end = (begin + some + sizeof(float) - 1) / sizeof(float);
      read_made_up(*table, page, first, end - first);
      std::memcpy(target, block(tensor - table->first()) + begin, some);
    } else {
      if (held_tensor_ != tensor || held_page_ != page) {
        held_tensor_ = kNoTensor;
        file_->read_page(tensor, page, blocks_[kBlocks - 1]);
        held_tensor_ = tensor;
        held_page_ = page;
      }
      std::memcpy(target, block(kBlocks - 1) + begin, some);
    }
    target += some;
    offset += some;
    bytes -= some;
  }
}

void ParameterStore::read_pages(uint64_t tensor, const std::function<void(const void*, uint64_t, uint64_t)>& take) {
  const std::lock_guard<std::mutex> lock(mutex_);
  require_range(tensor, 0, 0);
  const uint64_t bytes = file_->tensors()[tensor].bytes;
  for (uint64_t offset = 0; offset < bytes; offset += kParameterPageBytes) {
    const uint64_t page = offset / kParameterPageBytes;
    read_page(tensor, page, nullptr);
    take(block(0), offset, file_->page_bytes(tensor, page));
  }
}

void ParameterStore::write(uint64_t tensor, uint64_t offset, const void* from, uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  require_range(tensor, offset, bytes);
  file_->require_trained(tensor);
  held_tensor_ = kNoTensor;
  const auto* source = static_cast<const unsigned char*>(from);
  ParameterFile::Change whole(*file_);
  while (bytes != 0) {
    const uint64_t page = offset / kParameterPageBytes, begin = offset % kParameterPageBytes;
    const uint64_t some = std::min(bytes, kParameterPageBytes - begin);
    if (const DeferredTable* const table = lagging(tensor, page)) {
      read_made_up(*table, page);
      write_pages(table->first(), table->tensors(), page);
    }
    if (some != file_->page_bytes(tensor, page)) file_->read_page(tensor, page, blocks_[0]);
    std::memcpy(block(0) + begin, source, some);
    file_->write_page(tensor, page, blocks_[0]);
    source += some;
    offset += some;
    bytes -= some;
  }
  whole.finish();
}

void ParameterStore::update(uint64_t tensor, uint64_t tensors, uint64_t first, uint64_t count, const float* known,
                            const std::function<void(const Part&)>& change, bool overwrites) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const DeferredTable* const table = deferred(tensor);
  if (table != nullptr && !table->is(tensor, tensors))
    throw Error("tensor " + std::to_string(tensor) + " of the store in " + directory_ + " has other moments");
  for (uint64_t i = 0; i < tensors; ++i) {
    require_range(tensor + i, first * sizeof(float), count * sizeof(float));
    file_->require_trained(tensor + i);
    if (file_->tensors()[tensor + i].bytes != file_->tensors()[tensor].bytes)
      throw Error("tensor " + std::to_string(tensor) + " of the store in " + directory_ + " has other moments");
  }
  held_tensor_ = kNoTensor;
  ParameterFile::Change whole(*file_);
  const uint64_t begun = first;
  for (const uint64_t end = first + count; first < end;) {
    const uint64_t page = first / kPageElements, begin = first % kPageElements;
    const uint64_t some = std::min(end - first, kPageElements - begin);
    const bool is_whole = some * sizeof(float) == file_->page_bytes(tensor, page);
    if (lagging(tensor, page) != nullptr)
      read_made_up(*table, page);
    else
      for (uint64_t i = 0; i < tensors; ++i)
        if (i == 0 && known != nullptr && is_whole)
          std::memcpy(block(i), known + (first - begun), some * sizeof(float));
        else if (i != 0 || !overwrites || !is_whole)
          file_->read_page(tensor + i, page, blocks_[i]);
    change({{elements(0) + begin, elements(1) + begin, elements(2) + begin}, elements(kBlocks - 1), first, some});
    write_pages(tensor, tensors, page);
    first += some;
  }
  whole.finish();
}

void ParameterStore::update_pages(uint64_t tensor, uint64_t tensors, const std::vector<uint64_t>& pages,
                                  const float* rates, const std::function<void(const Part&)>& change) {
  const std::lock_guard<std::mutex> lock(mutex_);
  DeferredTable* const table = deferred(tensor);
  if (table == nullptr || !table->is(tensor, tensors))
    throw Error("the store in " + directory_ + " has no rates of the updates of tensor " + std::to_string(tensor));
  held_tensor_ = kNoTensor;
  ParameterFile::Change whole(*file_);
  const uint64_t count = file_->page_count(tensor);
  const auto [first_due, end_due] = table->due(count);
  auto given = pages.begin();
  for (uint64_t page = 0; page < count; ++page) {
    const bool is_given = given != pages.end() && *given == page;
    if (is_given) ++given;
    if (!is_given && (page < first_due || page >= end_due)) {
      file_->set_missed(tensor, page, table->missed(*file_, page) + 1);
      continue;
    }
    const uint64_t some = file_->page_bytes(tensor, page) / sizeof(float);
    read_made_up(*table, page);
    change({{elements(0), elements(1), elements(2)}, elements(kBlocks - 1), page * kPageElements, some});
    write_pages(tensor, tensors, page);
  }
  table->add(*file_, rates, blocks_[0]);
  whole.finish();
}

void ParameterStore::commit(const std::string& text) {
  const std::lock_guard<std::mutex> lock(mutex_);
  file_->commit(text);
  if (!is_new_) return;
  const int error = faults::status([&] {
    return rename((directory_ + "/" + kNewName).c_str(), (directory_ + "/" + kName).c_str()) == 0 ? 0 : errno;
  });
  if (error != 0) throw Error("the store in " + directory_ + " cannot be finished: " + error_text(error));
  is_new_ = false;
  sync_directory(directory_);
}

void ParameterStore::begin_step() {
  const std::lock_guard<std::mutex> lock(mutex_);
  file_->begin_step();
}

void ParameterStore::verify() {
  const std::lock_guard<std::mutex> lock(mutex_);
  file_->verify();
}

ParameterStatistics ParameterStore::statistics() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return {file_->read_bytes(),
          file_->read_ahead_bytes(),
          file_->written_bytes(),
          file_->commits(),
          file_->file_bytes(),
          kBlocks * blocks_[0].bytes() + file_->buffer_bytes(),
          file_->is_direct() ? uint64_t{1} : uint64_t{0}};
}

}  // namespace poet
