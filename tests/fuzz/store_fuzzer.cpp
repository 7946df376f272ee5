// libFuzzer target: a page store under a sequence of calls that the input spells out, with arguments a model could
// hold: slots, plans, element types, shapes, tokens and tickets, those of another store among them. What a read returns
// must be what was written last, or an Error; the file never has more than its cap; the other
// store shows nothing; nothing may crash, hang or leak.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>

#include <cstdlib>
#include <limits>
#include <memory>

#include "../ops/driver/harness.h"

namespace {

using namespace driver;

constexpr rlim_t kMostFileBytes = 8 << 20;  // an input may ask for any size; no disk shall be filled
constexpr size_t kMostCalls = 40;

class Input {
 public:
  Input(const uint8_t* data, size_t bytes) : next_(data), end_(data + bytes) {}
  bool is_at_end() const { return next_ == end_; }
  uint8_t byte() { return is_at_end() ? 0 : *next_++; }
  uint8_t below(uint8_t bound) { return static_cast<uint8_t>(byte() % bound); }
  // Any number, but the small and the largest ones often.
  int64_t number() {
    const uint8_t first = byte();
    if (first < 200) return first % 8;
    uint64_t value = 0;
    for (int i = 0; i < first % 9; ++i) value = value << 8 | byte();
    return static_cast<int64_t>(first % 2 == 0 ? value : ~value);
  }

 private:
  const uint8_t* next_;
  const uint8_t* end_;
};

struct Memory {
  std::unique_ptr<Block> block;
  int version = 0;  // of what is in it
};

// A page-out node, and what it wrote last as far as nothing else has written there.
struct Place {
  std::unique_ptr<Node> node;
  int64_t slot = 0;
  int64_t token = 0;  // 0: unknown
  size_t memory = 0;  // what was written, and its version
  int version = 0;
  size_t count = 0;
};

class Session {
 public:
  explicit Session(Input& input) : input_(input) {
    options_.backend = static_cast<BackendKind>(input.below(5));
    options_.cipher = static_cast<CipherKind>(input.below(3));
    options_.has_checksum = input.below(8) != 0;
    options_.most_bytes = input.below(4) == 0 ? 1 + uint64_t{input.byte()} * 512 : 0;
    store_ = make_store(options_);
    reader_ = std::make_unique<ReadNode>(store_);
    others_node_ = std::make_unique<Node>(others_, 0);
    others_token_ = out(*others_node_, secret_, false);
    others_ticket_ = others_reader_.start(others_token_, 0, shown_);
    for (size_t which = 0; which < 2; ++which) refill(which, 1 + size_t{input.byte()} * 8);
  }

  void call() {
    switch (input_.below(14)) {
      case 0:
        return store_->declare({input_.number(), static_cast<uint64_t>(input_.number())});
      case 1:
        return open_page();
      case 2:
        return write(false);
      case 3:
        return write(true);
      case 4:
        return end_write();
      case 5:
        return read();
      case 6:
        return start_read();
      case 7:
        return end_read();
      case 8:
        return refill(input_.below(2), 1 + size_t{input_.byte()} * 64);
      case 9:
        return faults::arm(static_cast<faults::Kind>(1 + input_.below(7)), input_.below(16));
      case 10:
        static_cast<void>(make_layout(input_.number(), shape()));
        return;
      case 11:
        return store_->declare_slot(slot(), static_cast<uint64_t>(input_.number()));
      case 12:
        return steal();
      default:
        return input_.below(2) == 0 ? alter() : reserve();
    }
  }

  // The file system may take a block to note where the others are.
  void check_room() const {
    if (options_.most_bytes != 0) REQUIRE(held_bytes(*store_) <= options_.most_bytes + kBlockBytes);
  }

 private:
  static constexpr size_t kSecretCount = 50;

  // No node has a slot below 0: it says so before it asks the store.
  int64_t slot() { return input_.number() & std::numeric_limits<int64_t>::max(); }
  // A token or ticket: of nobody, or of the other store.
  int64_t forged() {
    switch (input_.below(4)) {
      case 0:
        return others_token_;
      case 1:
        return others_ticket_;
      case 2:
        return others_token_ + input_.below(9) - 4;
      default:
        return input_.number();
    }
  }

  // The other store is out of reach by its own true numbers, whatever else fits.
  void steal() {
    Block target(kSecretCount);
    target.fill(0);
    REQUIRE(fails([&] { read_page(*store_, others_token_, 0, target.layout(), target.data()); }, "of this session"));
    REQUIRE(fails([&] { reader_->start(others_token_, 0, target); }, "of this session"));
    REQUIRE(fails([&] { reader_->end(others_ticket_, shown_.data()); }, "of this session"));
    REQUIRE(target.is_all(0));
  }

  Shape shape() {
    Shape made(input_.below(12));
    for (size_t i = 0; i < made.rank(); ++i) made.data()[i] = input_.number();
    return made;
  }
  Place& pick() { return places_[input_.below(3)]; }

  void refill(size_t which, size_t count) {
    Memory& memory = memories_[which];
    if (memory.block != nullptr) memory.block->release();
    memory.block = nullptr;
    memory.block = std::make_unique<Block>(count);
    memory.version = ++last_version_;
    memory.block->fill(static_cast<float>(memory.version));
  }

  void open_page() {
    Place& place = pick();
    place = Place{};
    place.slot = slot();
    place.node = std::make_unique<Node>(store_, place.slot);
  }

  void reserve() {
    Place& place = pick();
    if (place.node != nullptr) place.node->page->reserve(static_cast<uint64_t>(input_.number()));
  }

  void write(bool is_asynchronous) {
    Place& place = pick();
    if (place.node == nullptr) return;
    Page& page = *place.node->page;
    for (Place& other : places_)
      if (other.node != nullptr && other.node->page == place.node->page) other.token = 0;
    place.memory = input_.below(2);
    Memory& memory = memories_[place.memory];
    if (memory.block == nullptr) return;
    place.version = memory.version;
    place.count = static_cast<size_t>(memory.block->layout().bytes / sizeof(float));
    place.token = is_asynchronous ? page.start_write(memory.block->data(), memory.block->layout(),
                                                     input_.below(2) == 0 && memory.block->is_watched())
                                  : page.write(memory.block->data(), memory.block->layout());
  }

  void end_write() {
    Place& place = pick();
    const Memory& memory = memories_[place.memory];
    if (place.token == 0 || memory.block == nullptr || input_.below(4) == 0) {
      const int64_t token = forged();
      Page::find(token, *store_)->end_write(token, nullptr);
      return;
    }
    const int64_t token = place.token;
    if (memory.version != place.version) place.token = 0;  // what was written is gone, or was half gone
    Page::find(token, *store_)->end_write(token, memory.block->data());
  }

  void read() {
    Place& place = pick();
    if (place.token == 0 || input_.below(4) == 0) {
      Block target(1 + size_t{input_.byte()});
      read_page(*store_, forged(), input_.number(), target.layout(), target.data());
      return;
    }
    Block target(place.count);
    read_page(*store_, place.token, place.slot, target.layout(), target.data());
    REQUIRE(target.is_all(static_cast<float>(place.version)));
  }

  void start_read() {
    const Place& place = pick();
    target_ = std::make_unique<Block>(place.token == 0 ? 1 + size_t{input_.byte()} : place.count);
    const int64_t token = place.token == 0 ? forged() : place.token;
    const int64_t slot = input_.below(4) == 0 ? input_.number() : place.slot;
    ticket_ = reader_->read->start(token, slot, target_->layout(), target_->data(),
                                   input_.below(2) == 0 && target_->is_watched());
    expected_version_ = place.token == 0 ? 0 : place.version;
  }

  void end_read() {
    const int64_t ticket = input_.below(4) == 0 ? forged() : ticket_;
    reader_->end(ticket, target_ == nullptr ? nullptr : target_->data());
    if (ticket == ticket_ && expected_version_ != 0) REQUIRE(target_->is_all(static_cast<float>(expected_version_)));
  }

  // Flips a bit of the file, past everything that checks it.
  void alter() {
    if (!options_.has_checksum && options_.cipher == CipherKind::kNone) return;
    const int file = store_->device().file().descriptor();
    const int flags = fcntl(file, F_GETFL);
    fcntl(file, F_SETFL, flags & ~O_DIRECT);
    const auto at = static_cast<off_t>(input_.byte()) * 37;
    unsigned char byte = 0;
    if (pread(file, &byte, 1, at) == 1) {
      byte = static_cast<unsigned char>(byte ^ 1 << input_.below(8));
      REQUIRE(pwrite(file, &byte, 1, at) == 1);
    }
    fcntl(file, F_SETFL, flags);
  }

  Input& input_;
  const std::shared_ptr<PageStore> others_ = make_store();
  Block secret_{kSecretCount}, shown_{kSecretCount};
  std::unique_ptr<Node> others_node_;
  ReadNode others_reader_{others_};
  int64_t others_token_ = 0, others_ticket_ = 0;
  StoreOptions options_;
  std::shared_ptr<PageStore> store_;
  Memory memories_[2];
  Place places_[3];
  std::unique_ptr<ReadNode> reader_;
  std::unique_ptr<Block> target_;
  int64_t ticket_ = 0;
  int expected_version_ = 0;
  int last_version_ = 0;
};

// Runs `body`; failures that are told are fine.
template <class Body>
void allow_errors(Body&& body) {
  try {
    body();
  } catch (const Error&) {
  } catch (const std::bad_alloc&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char* const chosen = std::getenv("POET_PAGE_DIR");
  directory = chosen != nullptr ? chosen : "/tmp";
  const rlimit limit{kMostFileBytes, kMostFileBytes};
  return setrlimit(RLIMIT_FSIZE, &limit);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  // A file beyond the limit is an error to handle; libFuzzer took the signal for a finding of its own until now.
  signal(SIGXFSZ, SIG_IGN);
  Input input(data, bytes);
  std::unique_ptr<Session> session;
  allow_errors([&] { session = std::make_unique<Session>(input); });
  for (size_t calls = 0; session != nullptr && calls < kMostCalls && !input.is_at_end(); ++calls)
    allow_errors([&] {
      session->call();
      session->check_room();
    });
  session.reset();
  faults::disarm();
  return 0;
}
