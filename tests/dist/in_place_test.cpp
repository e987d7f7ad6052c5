// Tensors in memory shared by ranks: segments, their mappings, and collectives in place, which give the same bits as
// collectives over messages.
#include "dist/in_place.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "dist/job.h"
#include "dist/process_group.h"
#include "dist/shard.h"
#include "tensor/convert.h"
#include "tensor/ops.h"
#include "tests/dist/outcomes.h"
#include "tests/dist/values.h"
#include "tests/environment.h"
#include "tests/fork.h"
#include "tests/messages.h"

using namespace lockstep;
using namespace lockstep::dist;
using testing::all_dtypes;
using testing::all_ops;
using testing::check_ranks;
using testing::outcome;

namespace {

using Kind = SpawnOptions::Kind;

std::span<std::byte> bytes_of(const Tensor& t) {
  return {static_cast<std::byte*>(t.raw_data()), size_t(t.numel() * size_of(t.dtype()))};
}

int64_t blocks_of(int fd) {
  struct stat status {};
  return fstat(fd, &status) == 0 ? int64_t(status.st_blocks) : -1;
}

size_t mappings() {  // of segments into this process
  std::ifstream maps("/proc/self/maps");
  size_t n = 0;
  for (std::string line; std::getline(maps, line);) n += contains(line, "memfd:lockstep-tensor");
  return n;
}

/// Random bits, which include NaN, infinities, subnormals and zeros of both signs.
Tensor random_bits(DType dtype, int64_t n, uint32_t seed) {
  const Tensor t = empty({n}, {.dtype = dtype});
  std::mt19937 random(seed);
  for (std::byte& b : bytes_of(t))
    b = std::byte(dtype == boolean ? random() & 1 : random() % 5 == 0 ? 0xff * (random() & 1) : random());
  return t;
}

/// A copy of t inside a shared tensor, `shift` elements from its beginning; or in ordinary memory.
Tensor home(ProcessGroup& g, const Tensor& t, bool shared, int64_t shift = 3) {
  if (!shared) return t.clone();
  const Tensor copy = g.shared_empty({t.numel() + 2 * shift}, t.dtype()).narrow(0, shift, t.numel());
  copy.copy_(t);
  return copy;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.numel() == b.numel() && (a.numel() == 0 || std::memcmp(a.raw_data(), b.raw_data(), bytes_of(a).size()) == 0);
}

void expect(bool condition, const std::string& what) { LOCKSTEP_CHECK(condition, what); }

/// Runs the collectives on ordinary and on shared tensors and compares the results.
void compare(ProcessGroup& g, DType dtype, dist::ReduceOp op, int64_t count, Algorithm algorithm = Algorithm::direct) {
  const int n = g.size(), rank = g.rank();
  const std::string what = str("rank ", rank, " of ", n, ": ", dtype, " x ", count, " ", name_of(op));
  const Tensor given = random_bits(dtype, count, uint32_t(count * 100 + rank));
  const Range own = shard_range(count, n, rank);
  std::map<std::string, Tensor> results[2];
  for (const bool shared : {false, true}) {
    auto& result = results[shared];
    // The reference over messages always uses `direct`.
    const CollectiveOptions o{.op = op, .algorithm = shared ? algorithm : Algorithm::direct};
    const int64_t before = g.traffic().in_place;
    const auto home_of = [&](const char* name, const Tensor& t, bool in_segment, int64_t shift = 3) {
      return result[name] = home(g, t, in_segment, shift);
    };
    g.all_reduce(home_of("all_reduce", given, shared), o);
    // only the output needs to be shared
    g.all_reduce(home_of("all_reduce out of place", zeros({count}, {.dtype = dtype}), shared, 0), given, o);
    const Tensor full = home(g, given, shared, 1), part = full.narrow(0, own.begin, own.size());
    g.reduce_scatter(home_of("reduce_scatter", zeros({own.size()}, {.dtype = dtype}), false), full, o);
    expect(same_bits(full, given), what + ": reduce_scatter leaves its input alone");
    g.reduce_scatter(part, full, o);
    result["reduce_scatter in place"] = part.clone();
    g.all_gather(home_of("all_gather", zeros({count}, {.dtype = dtype}), shared),
                 given.narrow(0, own.begin, own.size()).clone());
    g.broadcast(home_of("broadcast from rank 0", given, shared && rank == 0), 0);  // only the root's must be shared
    g.broadcast(home_of("broadcast from the last rank", given, shared), n - 1);
    expect(g.traffic().in_place - before == (shared && n > 1 && count > 0 ? 7 : 0), what + ": done in place, or not");
  }
  for (const auto& [name, expected] : results[false])
    expect(same_bits(expected, results[true].at(name)), what + ": " + name + " has other bits");
}

void compare_all(ProcessGroup& g) {
  for (const DType dtype : all_dtypes)
    for (const dist::ReduceOp op : all_ops) {
      if (dtype == boolean && op == dist::ReduceOp::mean) continue;
      for (const int64_t count : {0, 1, 2, 13, 1009}) compare(g, dtype, op, count);
    }
  for (const int64_t count : {1, 13, 1009}) compare(g, bf16, dist::ReduceOp::mean, count, Algorithm::in_place);
  // More than one block per rank.
  for (const DType dtype : {f32, bf16, i8}) compare(g, dtype, dist::ReduceOp::mean, 50021);
  g.barrier();
}

}  // namespace

TEST_CASE("segments: positions of bytes, and their owners") {
  const Tensor t = shared_tensor({3, 1000}, f32), other = shared_tensor({7}, i8), ordinary = zeros({5});
  const auto bytes = bytes_of(t);
  const SegmentRange full = placement_of(bytes), part = placement_of(bytes.subspan(4000, 8));
  CHECK(bool(full));
  CHECK(full.offset == 0);
  CHECK(part.offset == 4000);
  CHECK(part.serial == full.serial);
  CHECK(bool(placement_of(bytes.subspan(12000))));  // empty, at the end of the tensor
  CHECK_FALSE(bool(placement_of({bytes.data() + 8, 12000})));
  CHECK_FALSE(bool(placement_of(bytes_of(ordinary))));
  CHECK(placement_of(bytes_of(other)).serial != full.serial);
  CHECK(shared_tensor({0, 4}, f64).shape() == Shape{0, 4});
  CHECK(shared_tensor({}, f64).numel() == 1);
  CHECK_ERROR(shared_tensor({int64_t(1) << 62}, f32), "[shared_empty] expected fewer than 2^62 bytes");
  CHECK_ERROR(shared_tensor({-1}, f32), "shared_empty");
  CHECK_ERROR(shared_tensor({int64_t(1) << 58}, u8),
              "[shared_empty] expected 288230376151711744 bytes of memory to share with other ranks, got: ");
}

TEST_CASE("segments: a peer sees the same bytes, and unmaps segments that their owner has freed") {
  PeerSegments peer(getpid(), 4);
  const size_t before = mappings();
  {
    const Tensor t = shared_tensor({100000}, f32), u = shared_tensor({1}, f32);
    t.fill_(1);
    const SegmentRange at = placement_of(bytes_of(t.narrow(0, 10, 5)));
    auto* there = reinterpret_cast<float*>(peer.reach(at, 20));
    REQUIRE(there != t.data<float>() + 10);  // a separate mapping
    CHECK(there[4] == 1);
    there[4] = 2;
    CHECK(t.data<float>()[14] == 2);
    CHECK(peer.reach(at, 20) == reinterpret_cast<std::byte*>(there));
    peer.reach(placement_of(bytes_of(u)), 4);
    CHECK(peer.size() == 2);
    CHECK(mappings() == before + 4);
    CHECK_ERROR(peer.reach(at, 400000),
                "[transport] expected 400000 bytes at offset 40 of a tensor of rank 4, which has 400000");
    SegmentRange wrong = at;
    wrong.serial ^= 1;
    CHECK_ERROR(peer.reach(wrong, 4), "got another file: that rank has released a tensor that is still in use");
    wrong.fd = 1 << 20;
    CHECK_ERROR(peer.reach(wrong, 4), "[transport] expected to share a tensor's memory with rank 4 through /proc/");
  }
  const Tensor v = shared_tensor({1}, f32);
  peer.reach(placement_of(bytes_of(v)), 4);
  CHECK(peer.size() == 1);
  CHECK(mappings() == before + 2);
}

TEST_CASE("segments: memory is given back at once, also while a peer maps it") {
  Tensor t = shared_tensor({1 << 20}, u8);
  t.fill_(1);
  PeerSegments peer(getpid(), 0);
  const SegmentRange at = placement_of(bytes_of(t));
  std::byte* there = peer.reach(at, 1 << 20);
  const int fd = dup(at.fd);
  CHECK(blocks_of(fd) >= (1 << 20) / 512);
  t = Tensor();
  CHECK(blocks_of(fd) <= 16);
  CHECK(there[12345] == std::byte(0));  // no fault although the pages were released
  close(fd);
}

TEST_CASE("segments: a forked copy of the owner takes nothing with it") {
  Tensor t = shared_tensor({4096}, f32);
  t.fill_(7);
  CHECK(testing::in_fork([&] {
          const bool mine = bool(placement_of(bytes_of(t)));
          t = Tensor();
          if (mine) _exit(1);
        }) == 0);
  CHECK(t.data<float>()[4095] == 7);
}

TEST_CASE("in place: the same bits as on ordinary tensors, every dtype, worlds of 1 to 8") {
  for (int n = 1; n <= 8; ++n) {
    CAPTURE(n);
    check_ranks(n, [](int) { compare_all(world()); });
  }
  for (const int n : {2, 3, 4}) {
    CAPTURE(n);
    check_ranks(n, [](int) { compare_all(world()); }, {.kind = Kind::processes, .transport = "shm"});
  }
  CHECK(mappings() == 0);
}

TEST_CASE("in place: ranks share the schedule out so that none waits for another") {
  for (const Collective c :
       {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather, Collective::broadcast}) {
    for (int n = 1; n <= 33; ++n) {
      const CollectiveRequest request{c, n, has_root(c) ? n / 2 : 0, is_reduction(c), {}};
      INFO("c ", name_of(c), ", n ", n);
      struct Use {
        std::set<int> readers, writers;  // ranks that do the reads and writes of this place
      };
      std::map<std::array<int, 3>, Use> places;
      size_t transfers = 0;
      for (int rank = 0; rank < n; ++rank) {
        const Share share = share_in_place(request, rank);
        transfers += share.transfers.size();
        for (const Transfer& t : share.transfers) {
          places[{t.from, t.source.chunk, t.source.slot}].readers.insert(rank);
          places[{t.to, t.target.chunk, t.target.slot}].writers.insert(rank);
        }
      }
      CHECK(transfers == make_schedule(Algorithm::in_place, request).size());
      for (auto& [place, use] : places) {
        if (use.writers.empty()) continue;
        use.readers.merge(use.writers);
        CHECK(use.readers.size() == 1);
      }
    }
  }
}

TEST_CASE("in place: groups of some ranks, asynchronous calls, tensors that come and go") {
  const auto body = [](int) {
    ProcessGroup& g = world();
    const auto pairs = g.split(g.rank() / 2, 0, "pair");
    for (int round = 0; round < 30; ++round) {
      const Tensor a = g.shared_empty({1000 + round}), b = pairs->shared_empty({500});
      a.fill_(g.rank() + 1);
      b.fill_(g.rank() + 1);
      Work x = g.all_reduce(a, {.algorithm = Algorithm::direct, .async = true}),
           y = pairs->all_reduce(b, {.op = dist::ReduceOp::max, .algorithm = Algorithm::direct, .async = true});
      x.wait();
      y.wait();
      expect(a.data<float>()[999 + round] == 10, "sum over 1 to 4");
      expect(b.data<float>()[0] == float(g.rank() / 2 * 2 + 2), "maximum of a pair");
    }
    expect(g.traffic().in_place == 30 && pairs->traffic().in_place == 30, "all in place");
    expect(mappings() < 40, "what was given back is not mapped any more");
    g.barrier();
  };
  check_ranks(4, body, {.kind = Kind::processes, .transport = "shm"});
}

TEST_CASE("in place: only when every rank's tensor is there, no checksum is asked for, and memory can be shared") {
  struct Row {
    const char* what;
    std::function<Tensor(ProcessGroup&)> make;
    Algorithm algorithm;
    std::string transport;
    std::optional<std::string> checksum = {};
  };
  const auto shared = [](ProcessGroup& g) { return g.shared_empty({999}); };
  const Row rows[] = {
      {"one rank has an ordinary tensor", [](auto& g) { return g.rank() == 1 ? zeros({999}) : g.shared_empty({999}); },
       Algorithm::direct, "shm"},
      {"one rank has a shared tensor", [](auto& g) { return g.rank() == 1 ? g.shared_empty({999}) : zeros({999}); },
       Algorithm::direct, "shm"},
      {"another algorithm", shared, Algorithm::ring, "shm"},
      {"sockets", shared, Algorithm::direct, "tcp"},
      {"sockets, but shared tensors", [](auto&) { return shared_tensor({999}, f32); }, Algorithm::direct, "tcp"},
      {"through the fifos, with a checksum", shared, Algorithm::automatic, "shm", "1"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.what);
    const testing::EnvironmentVariable checksum("LOCKSTEP_COMM_CHECKSUM", row.checksum);
    const auto body = [&](int rank) {
      const Tensor t = row.make(world());
      for (int i = 0; i < 3; ++i) {
        t.fill_(rank + 1);
        world().all_reduce(t, {.algorithm = row.algorithm});
        expect(t.data<float>()[998] == 6, "sum over 1 to 3");
      }
      expect(world().traffic().in_place == 0, "not in place");
      world().barrier();
    };
    check_ranks(3, body, {.kind = Kind::processes, .transport = row.transport});
  }
}

TEST_CASE("in place: ranks that disagree are told before anything is touched") {
  for (const bool other_size : {true, false}) {
    CAPTURE(other_size);
    const std::string text = outcome(
        3,
        [&](int rank) {
          const Tensor t = world().shared_empty({rank == 2 && other_size ? 50001 : 50000}).fill_(rank + 1);
          const std::string reported =
              message([&] { world().all_reduce(t, {.tag = rank == 2 && !other_size ? "b" : "a"}); });
          const auto values = t.to_vector<float>();
          expect(std::all_of(values.begin(), values.end(), [&](float x) { return x == float(rank + 1); }), "untouched");
          fail(reported);
        },
        {.kind = Kind::processes, .transport = "shm"});
    CHECK_MESSAGE(contains(text, other_size ? "rank 2 calls all_reduce f32 x 50001 sum, tag a"
                                            : "rank 2 calls all_reduce f32 x 50000 sum, tag b"),
                  text);
  }
}

TEST_CASE("in place: a rank that does not come is named") {
  const std::string text =
      outcome(3,
              [&](int rank) {
                const Tensor t = world().shared_empty({50000}).fill_(1);
                world().barrier();
                if (rank == 2) std::this_thread::sleep_for(std::chrono::seconds(2));
                world().all_reduce(t);
              },
              {.kind = Kind::processes, .transport = "shm", .timeout = Seconds(0.5), .heartbeat = Seconds(0.2)});
  CHECK_MESSAGE(contains(text, "this rank waits to hear from rank 2"), text);
}
