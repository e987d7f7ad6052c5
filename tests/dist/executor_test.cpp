// The executor: rejected programs, results and traffic over every transport, and ranks that misbehave.
// A number in a test's name is a row of docs/faults.md.
#include "dist/executor.h"

#include <doctest/doctest.h>

#include "dist/program.h"
#include "tests/dist/at_once.h"
#include "tests/dist/every_schedule.h"
#include "tests/dist/job.h"
#include "tests/dist/ranks.h"
#include "tests/messages.h"

using namespace lockstep;
using namespace lockstep::dist;

namespace {

const Rendezvous brisk{.heartbeat = Seconds(0.05)};

/// An execution over one flat tensor, divided into chunks by shard_range.
template <class T> struct RankJob {
  Program program;
  std::vector<int> world;
  std::string describe = "all_reduce of a test", group = "world";
  Execution execution;

  RankJob(const CollectiveRequest& request, int rank, std::vector<T>& data, Control& control, Transport& transport,
          uint64_t sequence = 1, Algorithm algorithm = Algorithm::direct, DType dtype = f32)
      : program(program_of(algorithm, request, rank), rank, request.ranks) {
    const int64_t chunks = chunk_count(algorithm, request), count = int64_t(data.size());
    execution.program = &program;
    execution.transport = &transport;
    execution.dtype = dtype;
    execution.memory = [&data, chunks, count](int32_t chunk) {
      const Range r = shard_range(count, chunks, chunk);
      return std::span(reinterpret_cast<std::byte*>(data.data() + r.begin), size_t(r.size()) * sizeof(T));
    };
    execution.chunk_bytes = [chunks, count](int32_t chunk) {
      return size_t(shard_range(count, chunks, chunk).size()) * sizeof(T);
    };
    execution.header.kind = uint8_t(request.collective);
    execution.header.dtype = uint8_t(dtype);
    execution.header.sequence = sequence;
    execution.header.count = count;
    execution.header.rank = uint32_t(rank);
    execution.control = &control;
    execution.timeout = Seconds(60);
    execution.describe = &describe;
    execution.group = &group;
    for (int i = 0; i < request.ranks; ++i) world.push_back(i);
    execution.world_ranks = world;
  }
};

/// The bytes of an object, or `size` bytes of an array that begins with it.
template <class T> std::string as_text(const T& object, size_t size = sizeof(T)) {
  return std::string(reinterpret_cast<const char*>(&object), size);
}

/// Rank 0 of two waits for 16 bytes of a reduce_scatter. In their place rank 1 sends what stream() makes of the header
/// of its call, and calls then().
Seats::Body instead_of_data(const std::function<std::string(Header&)>& stream,
                            const std::function<void(Control&)>& then) {
  return [=](int rank, Control& control, Transport& link) {
    std::vector<float> data(8);
    RankJob<float> job({.collective = Collective::reduce_scatter, .ranks = 2}, rank, data, control, link);
    if (rank == 0) return void(execute(job.execution));
    job.execution.header.payload = 16;
    const std::string bytes = stream(job.execution.header);
    link.channel(0).send(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size());
    then(control);
  };
}

}  // namespace

TEST_CASE("program: a transfer waits only for earlier steps that use its places") {
  const ChunkSlot a{0, 0}, b{1, 0}, scratch{0, 1};
  const std::vector<Transfer> program = {
      {.step = 0, .from = 0, .to = 1, .source = a, .target = a},        // 0: reads a, depends on nothing
      {.step = 0, .from = 1, .to = 0, .source = b, .target = scratch},  // 1: writes scratch, depends on nothing
      // 2: depends on 1, which writes its source, and 0, which reads its target
      {.step = 1, .from = 0, .to = 0, .source = scratch, .target = a, .action = TransferAction::reduce},
      {.step = 2, .from = 0, .to = 1, .source = a, .target = a},  // 3: depends on 2
      {.step = 2, .from = 1, .to = 0, .source = b, .target = b},  // 4: depends on nothing
      // 5: depends on 3, which reads its target, and through 3 on 2
      {.step = 3, .from = 2, .to = 0, .source = a, .target = a},
      {.step = 4, .from = 0, .to = 0, .source = a, .target = a, .action = TransferAction::scale},  // 6: depends on 5
  };
  const Program prepared(program, 0, 3);
  const std::vector<std::vector<uint32_t>> expected = {{}, {}, {0, 1}, {2}, {}, {3}, {5}};
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto needs = prepared.needs(prepared.items[i]);
    CHECK(std::vector<uint32_t>(needs.begin(), needs.end()) == expected[i]);
  }
  REQUIRE(prepared.peers.size() == 2);
  CHECK(prepared.peers[0].sends == std::vector<uint32_t>{0, 3});
  CHECK(prepared.peers[0].receives == std::vector<uint32_t>{1, 4});
  CHECK(prepared.locals == std::vector<uint32_t>{2, 6});
}

TEST_CASE("program: programs that break a rule are refused") {
  const ChunkSlot a{0, 0}, b{1, 0};
  const auto refusal = [](std::vector<Transfer> program) { return message([&] { Program(program, 0, 2); }); };
  CHECK(contains(refusal({{.step = 0, .from = 1, .to = 1, .source = a, .target = b}}),
                 "expected transfers of rank 0 only, got one from rank 1 to 1"));
  CHECK(contains(refusal({{.step = 0, .from = 0, .to = 2, .source = a, .target = b}}),
                 "expected ranks from 0 to 1, got a transfer with rank 2"));
  CHECK(contains(refusal({{.step = 1, .from = 0, .to = 1, .source = a, .target = b},
                          {.step = 0, .from = 0, .to = 1, .source = a, .target = b}}),
                 "expected ascending steps"));
  CHECK(contains(refusal({{.step = 0, .from = 0, .to = 1, .source = a, .target = a},
                          {.step = 0, .from = 1, .to = 0, .source = a, .target = a}}),
                 "read and written, or written twice, in step 0"));
  CHECK(contains(refusal({{.step = 0, .from = 0, .to = 0, .source = a, .target = a}}), "expected two places"));
  CHECK(contains(refusal({{.step = 0, .from = 0, .to = 0, .source = a, .target = b, .action = TransferAction::scale}}),
                 "expected scale to work on one place"));
  CHECK(contains(refusal({{.step = 0, .from = 0, .to = 1, .source = {-1, 0}, .target = b}}),
                 "expected a chunk and a slot of at least 0"));
}

TEST_CASE(
    "executor: all_reduce by every algorithm, of sizes around the blocks, over memory; bytes as the schedule says") {
  for (const char* transport : {"threads", "shm"})
    for (int n = 1; n <= 8; ++n) {
      INFO("transport ", transport, ", n ", n);
      Seats(n, transport).check([&](int rank, Control& control, Transport& link) {
        uint64_t sequence = 0;
        for (const Algorithm algorithm : all_algorithms()) {
          if (!has_schedule(algorithm, Collective::all_reduce)) continue;
          for (const int64_t count : {0, 1, 2, 7, 1009, 16384 * 2 + 1, 150001}) {
            std::vector<float> data(static_cast<size_t>(count));
            for (int64_t i = 0; i < count; ++i) data[size_t(i)] = float((i * 7 + rank) % 1000);
            const CollectiveRequest request{.collective = Collective::all_reduce, .ranks = n};
            RankJob<float> job(request, rank, data, control, link, ++sequence, algorithm);
            const CallTraffic moved = execute(job.execution);
            int64_t differ = 0;
            for (int64_t i = 0; i < count; ++i) {
              float sum = 0;
              for (int r = 0; r < n; ++r) sum += float((i * 7 + r) % 1000);
              differ += data[size_t(i)] != sum;
            }
            const std::string traffic = traffic_text(moved.sent, moved.received, moved.messages);
            LOCKSTEP_CHECK(differ == 0, name_of(algorithm), " of ", count, ": ", differ, " differ");
            LOCKSTEP_CHECK(traffic == expected_traffic(algorithm, request, rank, count), name_of(algorithm), " of ",
                           count, ": ", traffic);
          }
        }
      });
    }
}

TEST_CASE("executor: two-byte elements at odd places, mean, and checksums") {
  for (const bool checksum : {false, true}) {
    Seats(3).check([&](int rank, Control& control, Transport& link) {
      uint64_t sequence = 0;
      for (const int64_t count : {1, 5, 100003}) {
        std::vector<uint16_t> data(size_t(count), BFloat16(float(3 * rank)).bits);
        RankJob<uint16_t> job({.collective = Collective::all_reduce, .ranks = 3, .mean = true}, rank, data, control,
                              link, ++sequence, Algorithm::direct, bf16);
        job.execution.op = dist::ReduceOp::mean;
        job.execution.checksum = checksum;
        execute(job.execution);
        for (const uint16_t x : data) LOCKSTEP_CHECK(x == BFloat16(3.0f).bits, "wrong mean: ", x);
      }
    });
  }
}

TEST_CASE("executor 16, 17: bytes that are not ours, damaged or announced wrongly are refused before they are used") {
  struct Row {
    const char* what;
    std::function<void(Header&)> spoil;
    std::string after;  // sent after the header
    const char* expected;
  };
  const std::vector<float> ones(4, 1.0f), flipped{1.0f, 1.0f, 1.5f, 1.0f};
  const Row rows[] = {
      {"magic", [](Header& h) { seal(h), h.magic = 7; }, "", "magic number"},
      {"flipped bit", [](Header& h) { seal(h), h.count ^= 1; }, "", "its checksum does not match"},
      {"length of 2^62", [](Header& h) { h.payload = uint64_t(1) << 62, seal(h); }, "",
       "rank 0 expects 16 bytes from rank 1, which sends 4611686018427387904"},
      {"length", [](Header& h) { h.payload += 4, seal(h); }, "", "rank 0 expects 16 bytes from rank 1, which sends 20"},
      {"flipped payload", [](Header& h) { h.payload_crc = 1, seal(h); },
       as_text(*flipped.data(), 16) + as_text(crc32c(ones.data(), 16)),
       "damaged data from rank 1: its checksum does not match"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.what);
    const auto stream = [&](Header& header) {
      row.spoil(header);
      return as_text(header) + row.after;
    };
    Seats(2).check(instead_of_data(stream, until_failed), row.expected);
  }
}

TEST_CASE("executor 15: a rank whose side closes is named, also in the middle of its data") {
  at_once(std::vector{size_t(0), sizeof(Header) - 1, sizeof(Header) + 5}, [](size_t bytes) {
    CAPTURE(bytes);
    const auto stream = [&](Header& header) {
      seal(header);
      return (as_text(header) + std::string(16, '\0')).substr(0, bytes);
    };
    // the error destroys rank 1's transport
    const auto errors = Seats(2, "threads", brisk).run(instead_of_data(stream, [](Control&) { throw Error("gone"); }));
    CHECK_MESSAGE(contains(errors[0], "rank 1 closed its side"), errors[0]);
  });
}

TEST_CASE("executor: memory that does not fit the chunks is refused before anything moves") {
  Seats(2).check([&](int rank, Control& control, Transport& link) {
    std::vector<float> data(8);
    RankJob<float> job({.collective = Collective::all_reduce, .ranks = 2}, rank, data, control, link);
    job.execution.memory = [&](int32_t) { return std::span<std::byte>(); };
    CHECK_ERROR(execute(job.execution), "expected 16 bytes of memory for chunk 0, got 0");
    job.execution.chunk_bytes = [&](int32_t) { return size_t(3); };
    CHECK_ERROR(execute(job.execution), "expected whole elements of 4 bytes, got a chunk of 3 bytes");
  });
}
