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
constexpr uint64_t kBlocks = 4;  // three tensors of an update, and one for parts of pages
constexpr uint64_t kNoTensor = ~uint64_t{0};

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

ParameterStore::ParameterStore(const std::string& directory)
    : directory_(directory), fork_depth_(fork_depth()), blocks_(kBlocks * kParameterPageBytes) {
  constexpr mode_t kOwnerOnly = 0600;
  const std::string path = directory + "/" + kLockName;
  lock_ = ::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC | O_NOFOLLOW, kOwnerOnly);
  if (lock_ < 0) throw Error("the store in " + directory + " cannot be locked: " + error_text(errno));
  try {
    lock_for_store(lock_, directory);
  } catch (const Error&) {
    ::close(lock_);
    throw;
  }
}

ParameterStore::~ParameterStore() {
  file_.reset();
  if (is_new_ && fork_depth_ == fork_depth()) unlink((directory_ + "/" + kNewName).c_str());
  ::close(lock_);
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
  return add(std::move(store));
}

uint64_t ParameterStore::open(const std::string& directory, ParameterAccess access) {
  if (!has_store(directory)) throw Error("there is no store in " + directory);
  std::unique_ptr<ParameterStore> store(new ParameterStore(directory));
  store->file_ = ParameterFile::open(directory, kName, access);
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

void ParameterStore::read(uint64_t tensor, uint64_t offset, void* to, uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  require_range(tensor, offset, bytes);
  auto* target = static_cast<unsigned char*>(to);
  while (bytes != 0) {
    const uint64_t page = offset / kParameterPageBytes, begin = offset % kParameterPageBytes;
    const uint64_t some = std::min(bytes, kParameterPageBytes - begin);
    if (begin == 0 && some == file_->page_bytes(tensor, page)) {
      file_->read_page_to(tensor, page, target, block(0));
    } else {
      if (held_tensor_ != tensor || held_page_ != page) {
        held_tensor_ = kNoTensor;
        file_->read_page(tensor, page, block(kBlocks - 1));
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
    file_->read_page(tensor, page, block(0));
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
    if (some != file_->page_bytes(tensor, page)) file_->read_page(tensor, page, block(0));
    std::memcpy(block(0) + begin, source, some);
    file_->write_page(tensor, page, block(0));
    source += some;
    offset += some;
    bytes -= some;
  }
  whole.finish();
}

void ParameterStore::update(uint64_t tensor, uint64_t tensors, uint64_t first, uint64_t count, const float* known,
                            const std::function<void(const Part&)>& change, bool overwrites) {
  constexpr uint64_t kPageElements = kParameterPageBytes / sizeof(float);
  const std::lock_guard<std::mutex> lock(mutex_);
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
    Part part{{}, reinterpret_cast<float*>(block(kBlocks - 1)), first, some};
    const bool is_whole = some * sizeof(float) == file_->page_bytes(tensor, page);
    for (uint64_t i = 0; i < tensors; ++i) {
      if (i == 0 && known != nullptr && is_whole)
        std::memcpy(block(i), known + (first - begun), some * sizeof(float));
      else if (i != 0 || !overwrites || !is_whole)
        file_->read_page(tensor + i, page, block(i));
      part.tensors[i] = reinterpret_cast<float*>(block(i)) + begin;
    }
    change(part);
    for (uint64_t i = 0; i < tensors; ++i) file_->write_page(tensor + i, page, block(i));
    first += some;
  }
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
          blocks_.bytes() + file_->buffer_bytes(),
          file_->is_direct() ? uint64_t{1} : uint64_t{0}};
}

}  // namespace poet
