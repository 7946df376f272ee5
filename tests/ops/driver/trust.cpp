// Scenarios of what a model from a stranger may say: sizes that nothing needs, tokens of other sessions, transfers that
// it never ends.
#include <cstdio>
#include <limits>
#include <vector>

#include "harness.h"
#include "scenarios.h"

namespace driver {

void slots_keep_to_their_plan() {
  const auto store = make_store();
  store->declare({3, 3 * 4096});
  store->declare({3, 3 * 4096});
  REQUIRE(fails([&] { store->declare({2, 3 * 4096}); }, "belongs to a plan of 2 slots and 12288 bytes"));
  REQUIRE(fails([&] { store->declare({}); }, "belongs to no plan, but other nodes"));
  REQUIRE(fails([&] { store->page(3); }, "slot 3 does not exist in a plan of 3 slots"));
  REQUIRE(fails([&] { store->declare_slot(3, 1); }, "slot 3 does not exist in a plan of 3 slots"));
  store->declare_slot(0, 1);
  store->declare_slot(0, 1);
  REQUIRE(fails([&] { store->declare_slot(0, 2); }, "has 1 bytes by another node's word, but 2 by this one's"));
  store->declare_slot(1, 4097);
  REQUIRE(fails([&] { store->declare_slot(2, 1); }, "slot 2 needs 1 bytes, but 0 are left of a plan of 3 slots"));
  REQUIRE(fails([&] { store->declare_slot(2, ~uint64_t{0}); }, "slot 2 needs 18446744073709551615 bytes, but 0"));
  Node first(store, 0), again(store, 0), third(store, 2);
  REQUIRE(first.page == again.page);
  Block block(2);
  REQUIRE(fails([&] { out(first, block, false); }, "8 bytes does not fit into slot 0, which has 1 bytes by its plan"));
  REQUIRE(fails([&] { store->take(0, ~uint64_t{0}); }, "a tensor of 18446744073709551615 bytes does not fit"));
  REQUIRE(fails([&] { third.page->reserve(1); }, "slot 2 has no size in a plan of 3 slots"));
  REQUIRE(fails([&] { make_store()->declare({0, 4096}); }, "a plan cannot have 0 slots and 4096 bytes"));
  // A slot that grows is somewhere else: what it held cannot be read any more.
  const auto growing = make_store();
  Node grown(growing, 0), next(growing, 1);
  const int64_t token = out(grown, block, false);
  next.page->reserve(1);
  grown.page->reserve(5000);
  REQUIRE(fails([&] { read_page(*growing, token, 0, block.layout(), block.data()); }, "is stale: slot 0"));
  REQUIRE(fails([&] { grown.page->end_write(token, block.data()); }, "is stale: slot 0"));
  REQUIRE(fails([&] { growing->declare({1, 4096}); }, "but other nodes of the model to no plan"));
  const auto free = make_store();
  REQUIRE(free->take(0, 1) == 0 && free->take(1, 4097) == 4096 && free->take(1, 4096) == 4096);
  REQUIRE(fails([&] { free->take(0, ~uint64_t{0}); }, "slot 0 needs 18446744073709551615 bytes beside 8192 of other"));
  REQUIRE(fails([&] { free->take(0, uint64_t{1} << 62); }, "cannot reserve 4611686018427387904 bytes"));
}

// Room is taken for tensors, never for what a model says, and never beyond the cap.
void room_is_taken_for_tensors_alone() {
  const auto store = make_store();
  store->declare({2, uint64_t{20} << 30});
  store->declare_slot(0, uint64_t{10} << 30);
  store->declare_slot(1, uint64_t{10} << 30);
  Node first(store, 0), second(store, 1);
  REQUIRE(held_bytes(*store) == 0);
  Block small(1000), large(3000), target(3000);
  large.fill(2);
  out(first, small, false);
  REQUIRE(held_bytes(*store) == 4096);
  const int64_t token = out(first, large, false);
  out(second, small, true);
  REQUIRE(held_bytes(*store) == 4 * 4096);
  read_page(*store, token, 0, target.layout(), target.data());
  REQUIRE(target.is_all(2));
  // Slots that are not what the plan says of all.
  const auto boasting = make_store();
  boasting->declare({2, uint64_t{20} << 30});
  boasting->declare_slot(1, 40000);
  REQUIRE(fails([&] { boasting->declare_slot(0, 1); }, "2 slots and 21474836480 bytes need 45056 bytes"));
  // Growth gives back what it leaves behind.
  const auto growing = make_store();
  Node grown(growing, 0);
  for (uint64_t blocks = 1; blocks <= 64; ++blocks) grown.page->reserve(blocks * kBlockBytes);
  REQUIRE(held_bytes(*growing) == 64 * kBlockBytes);
  // The cap of the session, of plans and of slots without one.
  StoreOptions options;
  options.most_bytes = 3 * kBlockBytes + 1;
  REQUIRE(fails([&] { make_store(options)->declare({1, 4 * kBlockBytes}); },
                "a plan of 1 slots and 16384 bytes needs more than the 12289 bytes that the session allows"));
  const auto capped = make_store(options);
  Node one(capped, 0), other(capped, 1);
  one.page->reserve(2 * kBlockBytes);
  const int64_t kept = out(one, small, false);
  other.page->reserve(1);
  REQUIRE(fails([&] { other.page->reserve(kBlockBytes + 1); },
                "slot 1 needs 4097 bytes beside 8192 of other slots, but the page file may have no more than 12289"));
  REQUIRE(fails([&] { one.page->reserve(std::numeric_limits<uint64_t>::max()); }, "slot 0 needs 1844674407370955161"));
  REQUIRE(fails([&] { read_page(*capped, kept, 0, small.layout(), small.data()); }, "is stale"));
  REQUIRE(held_bytes(*capped) <= options.most_bytes);
  out(one, small, true);
  // What the disk does not have is told with what it has.
  Node asking(make_store(), 0);
  REQUIRE(
      fails([&] { asking.page->reserve(uint64_t{1} << 60); }, " bytes are free there: free more or choose another"));
}

// A store's tokens and tickets mean nothing to another, and neither does a number that somebody made up.
void tokens_are_their_stores_own() {
  const auto mine = make_store(), other = make_store();
  Node my_node(mine, 0), other_node(other, 0);
  ReadNode my_reader(mine), other_reader(other);
  Block secret(1000), target(1000);
  secret.fill(7);
  target.fill(1);
  const int64_t token = out(my_node, secret, true);
  const int64_t ticket = my_reader.start(token, 0, target);
  const int64_t others = other_node.page->start_write(secret.data(), secret.layout(), true);
  Block stolen(1000);
  stolen.fill(1);
  const auto is_refused = [&](int64_t forged) {
    return fails([&] { read_page(*other, forged, 0, stolen.layout(), stolen.data()); }, "of this session") &&
           fails([&] { other_reader.start(forged, 0, stolen); }, "of this session") &&
           fails([&] { Page::find(forged, *other)->end_write(forged, secret.data()); }, "of this session");
  };
  REQUIRE(is_refused(token) && is_refused(ticket));
  REQUIRE(fails([&] { other_reader.end(ticket, target.data()); }, "names no page-in of this session"));
  for (int64_t near = -40; near <= 40; ++near) {
    const auto forged = static_cast<int64_t>(static_cast<uint64_t>(others) + static_cast<uint64_t>(near));
    if (near != 0) REQUIRE(fails([&] { Page::find(forged, *other)->end_write(forged, secret.data()); }, "is stale"));
  }
  REQUIRE(stolen.is_all(1));
  Page::find(others, *other)->end_write(others, secret.data());
  my_reader.end(ticket, target.data());
  REQUIRE(target.is_all(7));
}

// A graph that reads what no PageInEnd has given it finds zeros, as long as the page has not come, and not what was in
// that memory before.
void memory_of_a_page_in_shows_nothing_else() {
  const auto store = make_store();
  Node writer(store, 0), slow(store, 1);
  ReadNode reader(store);
  Block page(5000), source(5000), target(5000);
  page.fill(5);
  const int64_t token = out(writer, page, false);
  target.fill(9);
  faults::set_delay_microseconds(1000000);
  slow.page->start_write(source.data(), source.layout(), true);  // which the read waits for
  const int64_t ticket = reader.start(token, 0, target);
  REQUIRE(target.is_all(0));
  faults::set_delay_microseconds(0);
  reader.end(ticket, target.data());
  REQUIRE(target.is_all(5));
}

// Neither a read nor a write without its end touches memory that has gone away.
void transfers_may_have_no_end() {
  for (const StoreOptions& options : every_kind_of_store()) {
    const auto store = make_store(options);
    Node writer(store, 0), never_ended(store, 1);
    ReadNode reader(store);
    constexpr size_t kCount = 30000;
    Block page(kCount);
    page.fill(5);
    const int64_t token = out(writer, page, false);
    for (int turn = 0; turn < 8; ++turn) {
      faults::set_delay_microseconds(turn % 2 == 0 ? 500 : 0);
      Block source(kCount), target(kCount);
      never_ended.page->start_write(source.data(), source.layout(), true);
      reader.start(token, 0, target);
      source.release();
      target.release();
      Block scratch(kCount);  // very likely where they were
      scratch.fill(3);
      REQUIRE(scratch.is_all(3));
    }
    faults::set_delay_microseconds(0);
    Block target(kCount);
    in(reader, token, 0, target, true);
    REQUIRE(target.is_all(5));
  }
}

}  // namespace driver
