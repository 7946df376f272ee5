#include "parameters/parameter_file.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "faults/faults.h"
#include "process/error.h"
#include "process/fork.h"
#include "process/memory_left.h"
#include "store/checksum.h"

namespace poet {
namespace {

constexpr char kMagic[8] = {'P', 'O', 'E', 'T', 'S', 'T', 'O', 'R'};
constexpr uint64_t kVersion = 2;                       // 1 had other checksums of pages
constexpr uint64_t kCommitMagic = 0x54494d4d4f435450;  // "PTCOMMIT"
constexpr uint64_t kMostBytes = uint64_t{1} << 56;     // of a file: sums of sizes below do not overflow
constexpr uint64_t kMostDescribedBytes = 1 << 28;      // of the description, of a commit's text: they are read whole
// Of a page in a commit's table: checksum, copy, zeros, and how many updates the page missed.
constexpr uint64_t kEntryBytes = 16, kMissedPlace = 12;
// With fewer pages of tensors of at least half a page, a file takes no memory to read ahead; costing/process.py has the
// same numbers.
constexpr uint64_t kFewPages = 64, kLargeBytes = kParameterPageBytes / 2;
// Of the available memory, the file may fill this share of the page cache without pushing out much else.
constexpr uint64_t kCacheShare = 8;

// Whether this process has a second core, on which the kernel's copies from and to the page cache can be made.
bool has_spare_core() {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof cores, &cores) != 0 || CPU_COUNT(&cores) > 1;
}

int open_named(const std::string& path, int flags) {
  constexpr mode_t kOwnerOnly = 0600;
  int descriptor = -1;
  do {
    errno = faults::status([] { return 0; });
    if (errno == 0) descriptor = ::open(path.c_str(), flags | O_RDWR | O_CLOEXEC | O_NOFOLLOW, kOwnerOnly);
  } while (descriptor < 0 && errno == EINTR);
  return descriptor;
}

}  // namespace

struct ParameterFile::Superblock {
  char magic[8];
  uint64_t version, page_bytes, tensors, description_bytes, text_room, file_bytes;
  uint64_t described;  // checksum of tensors and description
  uint64_t own;        // checksum of all before it
};

struct ParameterFile::Head {
  uint64_t magic, number, text_bytes;
  uint64_t body;  // checksum of text and table
  uint64_t own;   // checksum of all before it

  uint64_t expected() const { return checksum_of(this, offsetof(Head, own), kCommitMagic); }
  bool is_whole() const { return magic == kCommitMagic && own == expected(); }
  bool is_empty() const { return magic == 0 && number == 0 && text_bytes == 0 && body == 0 && own == 0; }
};

ParameterFile::ParameterFile(int descriptor, const std::string& directory)
    : file_(directory, descriptor), lock_(descriptor, directory), fork_depth_(fork_depth()) {}

// A child of fork() has the channel's memory, but not its thread.
ParameterFile::~ParameterFile() {
  if (fork_depth_ != fork_depth()) static_cast<void>(channel_.release());
}

std::unique_ptr<ParameterFile> ParameterFile::make(const std::string& directory, const std::string& name,
                                                   std::vector<StoredTensor> tensors, std::string description,
                                                   uint64_t text_room, ParameterAccess access) {
  const int descriptor = open_named(directory + "/" + name, O_CREAT | O_EXCL);
  if (descriptor < 0) throw Error("a store cannot be made in " + directory + ": " + error_text(errno));
  std::unique_ptr<ParameterFile> file(new ParameterFile(descriptor, directory));
  file->tensors_ = std::move(tensors);
  file->description_ = std::move(description);
  file->text_room_ = text_room;
  if (std::max<uint64_t>({file->tensors_.size(), file->description_.size(), text_room}) > kMostDescribedBytes)
    throw Error("the description of the store in " + directory + " is too long");
  file->lay_out();
  file->require_room();
  const uint64_t listed = file->tensors_.size() * sizeof(uint64_t) * 2;
  const Staging block(file->slots_);
  std::memset(block.data(), 0, block.bytes());
  auto* numbers = reinterpret_cast<uint64_t*>(block.data() + kBlockBytes);
  for (const StoredTensor& tensor : file->tensors_) {
    *numbers++ = tensor.bytes;
    *numbers++ = tensor.changes ? 1 + tensor.rates_of : 0;
  }
  std::memcpy(numbers, file->description_.data(), file->description_.size());
  Superblock head{};
  std::memcpy(head.magic, kMagic, sizeof kMagic);
  head.version = kVersion;
  head.page_bytes = kParameterPageBytes;
  head.tensors = file->tensors_.size();
  head.description_bytes = file->description_.size();
  head.text_room = text_room;
  head.file_bytes = file->end_;
  head.described = checksum_of(block.data() + kBlockBytes, listed + file->description_.size(), kVersion);
  head.own = checksum_of(&head, offsetof(Superblock, own), kVersion);
  std::memcpy(block.data(), &head, sizeof head);
  file->write(block.data(), block.bytes(), 0);
  file->use(access);
  return file;
}

std::unique_ptr<ParameterFile> ParameterFile::open(const std::string& directory, const std::string& name,
                                                   ParameterAccess access) {
  const int descriptor = open_named(directory + "/" + name, 0);
  if (descriptor < 0) throw Error("the store in " + directory + " cannot be opened: " + error_text(errno));
  std::unique_ptr<ParameterFile> file(new ParameterFile(descriptor, directory));
  file->read_superblock();
  file->require_room();
  file->use(access);
  file->open_newest_commit();
  return file;
}

// Finds places for everything, as tensors, description and room for text say.
void ParameterFile::lay_out() {
  slots_ = kBlockBytes + whole_blocks(tensors_.size() * 2 * sizeof(uint64_t) + description_.size());
  first_page_.assign(1, 0);
  uint64_t all = 0;
  for (const StoredTensor& tensor : tensors_) {
    if (tensor.bytes > kMostBytes - all) throw Error("the tensors of the store are larger than any file");
    all += tensor.bytes;
    first_page_.push_back(first_page_.back() + (tensor.bytes + kParameterPageBytes - 1) / kParameterPageBytes);
  }
  slot_bytes_ = kBlockBytes + whole_blocks(text_room_ + first_page_.back() * kEntryBytes);
  end_ = slots_ + 2 * slot_bytes_;
  for (std::vector<uint64_t>* copy : {&first_, &second_}) {
    copy->clear();
    for (const StoredTensor& tensor : tensors_) {
      copy->push_back(end_);
      if (copy == &first_ || tensor.changes) end_ += whole_blocks(tensor.bytes);
    }
  }
}

// Makes sure that the disk has room for the whole file, before anything depends on it, and memory for its table.
void ParameterFile::require_room() {
  struct stat status{};
  if (fstat(file_.descriptor(), &status) != 0)
    throw Error("the store in " + file_.directory() + " cannot be read: " + error_text(errno));
  if (static_cast<uint64_t>(status.st_blocks) * 512 < end_) file_.reserve(0, end_);
  working_.assign(first_page_.back(), {});
  committed_.assign(first_page_.back(), Copy::kZeros);
  any_page_.assign(tensors_.size(), false);
  commit_ = std::make_unique<Staging>(slot_bytes_ - kBlockBytes);
}

// Uses the page cache, or goes past it where the file would fill it and the file system can.
void ParameterFile::use(ParameterAccess access) {
  const bool fits_cache = end_ <= cache_room_bytes() / kCacheShare;
  const bool is_cached = access == ParameterAccess::kCached || (access == ParameterAccess::kAuto && fits_cache);
  if (access == ParameterAccess::kDirect || (is_worth_a_channel() && (!is_cached || has_spare_core())))
    channel_ = std::make_unique<PageChannel>(
        kParameterPageBytes, !is_cached,
        [this](const MemoryParts& parts, uint64_t offset) { return transfer_in(parts, offset); },
        [this](const MemoryParts& parts, uint64_t offset) { return transfer_out(parts, offset); });
  if (is_cached) return;
  const int error = file_.set_direct(true);
  const Staging probe(kBlockBytes);
  is_direct_ = error == 0 && file_.read(probe.data(), kBlockBytes, 0).error == 0;
  if (is_direct_) return;
  static_cast<void>(file_.set_direct(false));
  if (access == ParameterAccess::kDirect)
    throw Error("direct I/O is not possible in " + file_.directory() + (error == 0 ? "" : ": " + error_text(error)));
  drops_cache_ = true;
}

// Whether so much is transferred that it takes time worth hiding behind the step's own work.
bool ParameterFile::is_worth_a_channel() const {
  uint64_t large = 0;
  for (uint64_t tensor = 0; tensor < tensors_.size(); ++tensor)
    if (tensors_[tensor].bytes >= kLargeBytes) large += page_count(tensor);
  return large >= kFewPages;
}

void ParameterFile::read_superblock() {
  const std::string damaged = "the store in " + file_.directory() + " is damaged: ";
  struct stat status{};
  if (fstat(file_.descriptor(), &status) != 0) throw Error(damaged + error_text(errno));
  Superblock head{};
  const auto size = static_cast<uint64_t>(status.st_size);
  if (!S_ISREG(status.st_mode) || size < kBlockBytes) throw Error(damaged + "its file is cut off");
  read(&head, sizeof head, 0);
  if (std::memcmp(head.magic, kMagic, sizeof kMagic) != 0) throw Error(damaged + "its file does not begin as one does");
  if (head.own != checksum_of(&head, offsetof(Superblock, own), head.version)) throw Error(damaged + "its first block");
  if (head.version != kVersion || head.page_bytes != kParameterPageBytes)
    throw Error("the store in " + file_.directory() + " was made by another version of poet-onnx");
  if (head.file_bytes != size)
    throw Error(damaged + "its file has " + std::to_string(size) + " bytes of " + std::to_string(head.file_bytes));
  const uint64_t listed = head.tensors * sizeof(uint64_t) * 2, bytes = listed + head.description_bytes;
  if (std::max({head.tensors, head.description_bytes, head.text_room}) > kMostDescribedBytes ||
      bytes > size - kBlockBytes)
    throw Error(damaged + "its first block");
  std::string text(bytes, '\0');
  read(text.data(), bytes, kBlockBytes);
  if (checksum_of(text.data(), bytes, kVersion) != head.described) throw Error(damaged + "its description");
  for (uint64_t i = 0; i < head.tensors; ++i) {
    uint64_t numbers[2];
    std::memcpy(numbers, text.data() + i * sizeof numbers, sizeof numbers);
    tensors_.push_back({numbers[0], numbers[1] != 0, numbers[1] > 1 ? numbers[1] - 1 : 0});
  }
  description_ = text.substr(listed);
  text_room_ = head.text_room;
  lay_out();
  if (end_ != size) throw Error(damaged + "its first block");
}

ParameterFile::Head ParameterFile::head_at(uint64_t slot) {
  const Staging block(kBlockBytes);
  read(block.data(), kBlockBytes, slot_place(slot));
  Head head;
  std::memcpy(&head, block.data(), sizeof head);
  return head;
}

void ParameterFile::write_head(const Head& head) {
  const Staging block(kBlockBytes);
  std::memset(block.data(), 0, kBlockBytes);
  std::memcpy(block.data(), &head, sizeof head);
  write(block.data(), kBlockBytes, slot_place(head.number));
  sync();
}

// Takes text and table of a commit in; false where they are not whole.
bool ParameterFile::read_commit(const Head& head) {
  const uint64_t table = first_page_.back() * kEntryBytes;
  if (!head.is_whole() || head.text_bytes > text_room_) return false;
  read(commit_->data(), commit_->bytes(), slot_place(head.number) + kBlockBytes);
  if (checksum_of(commit_->data(), head.text_bytes + table, head.number) != head.body) return false;
  text_.assign(reinterpret_cast<const char*>(commit_->data()), head.text_bytes);
  for (uint64_t page = 0; page < working_.size(); ++page) {
    const unsigned char* from = commit_->data() + head.text_bytes + page * kEntryBytes;
    std::memcpy(&working_[page].checksum, from, sizeof(uint64_t));
    working_[page].copy = static_cast<Copy>(from[sizeof(uint64_t)]);
    std::memcpy(&working_[page].missed, from + kMissedPlace, sizeof(uint32_t));
    committed_[page] = working_[page].copy;
  }
  commits_ = head.number;
  return true;
}

void ParameterFile::open_newest_commit() {
  const Head heads[] = {head_at(0), head_at(1)};
  const uint64_t newer = heads[1].is_whole() && (!heads[0].is_whole() || heads[1].number > heads[0].number) ? 1 : 0;
  const Head &newest = heads[newer], &other = heads[1 - newer];
  if (!read_commit(newest)) throw Error("the store in " + file_.directory() + " is damaged: it has no whole commit");
  // A head that is neither whole nor empty was torn while it was written, and all of the commit before it is there; or
  // it was damaged afterwards, and pages of that commit may be overwritten.
  if (!other.is_whole() && !other.is_empty()) verify();
  // It may be in the page cache alone; the other commit's pages must not be overwritten before it is durable.
  write_head(newest);
}

void ParameterFile::commit(const std::string& text) {
  require_usable();
  if (text.size() > text_room_)
    throw Error("a commit to the store in " + file_.directory() + " has a text of " + std::to_string(text.size()) +
                " bytes, but there is room for " + std::to_string(text_room_));
  has_failed_ = true;  // until it has not
  if (channel_ != nullptr) require_written(channel_->finish_writes());
  unsigned char* const block = commit_->data();
  std::memset(block, 0, commit_->bytes());
  std::memcpy(block, text.data(), text.size());
  for (uint64_t page = 0; page < working_.size(); ++page) {
    unsigned char* to = block + text.size() + page * kEntryBytes;
    std::memcpy(to, &working_[page].checksum, sizeof(uint64_t));
    to[sizeof(uint64_t)] = static_cast<unsigned char>(working_[page].copy);
    std::memcpy(to + kMissedPlace, &working_[page].missed, sizeof(uint32_t));
  }
  Head head{kCommitMagic, commits_ + 1, text.size(), 0, 0};
  head.body = checksum_of(block, text.size() + working_.size() * kEntryBytes, head.number);
  head.own = head.expected();
  write(block, commit_->bytes(), slot_place(head.number) + kBlockBytes);
  sync();
  write_head(head);
  for (uint64_t page = 0; page < working_.size(); ++page) committed_[page] = working_[page].copy;
  commits_ = head.number;
  text_ = text;
  has_uncommitted_ = false;
  commits_steps_ = true;
  has_failed_ = false;
}

void ParameterFile::sync() {
  int error = 0;
  do {
    error = faults::status([&] { return fdatasync(file_.descriptor()) == 0 ? 0 : errno; });
  } while (error == EINTR);
  if (error != 0) {
    has_failed_ = true;
    throw Error("what was written to the store in " + file_.directory() +
                " cannot be made durable: " + error_text(error) + "; it opens at its last commit");
  }
  faults::log_sync();
}

void ParameterFile::require_usable() const {
  if (fork_depth_ != fork_depth())
    throw Error("the store in " + file_.directory() + " belongs to the process that opened it, not to its children");
  if (has_failed_)
    throw Error("a change of the store in " + file_.directory() + " failed earlier: open it again, at its last commit");
}

}  // namespace poet
