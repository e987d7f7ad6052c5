// Streams of records: order, ranks, workers, resuming, and damaged or changed shards.
#include <algorithm>
#include <set>
#include <thread>

#include "data/loader.h"
#include "data/text.h"
#include "extensions/files/stream.h"
#include "tensor/ops.h"
#include "tests/data/util.h"

using namespace lockstep;
using namespace lockstep::data;

namespace {

/// Shards of `sizes` lines that count up from 0; some with blank lines, the last without a newline at its end.
std::vector<std::string> shards_of(const TempDir& dir, const std::vector<int>& sizes) {
  std::vector<std::string> shards;
  int next = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    std::string text = i % 2 ? "\n" : "";
    for (int k = 0; k < sizes[i]; ++k) text += std::to_string(next++) + (k + 1 < sizes[i] || i % 3 ? "\n" : "");
    shards.push_back(dir.write("shard-" + std::to_string(i), text));
  }
  return shards;
}

StreamingDataset<Example> numbers_in(const std::vector<std::string>& shards, StreamOptions options) {
  return stream_lines<Example>(shards, options, [](const Record& record) {
    const int64_t value = std::stoll(std::string(record.bytes));
    const PhiloxKey key = next_random_key();
    return Example{Tensor::from<int64_t>({value}, {}),
                   Tensor::from<int64_t>({int64_t((key.seed ^ key.stream) >> 1)}, {})};
  });
}

std::vector<int64_t> first_of(const StreamingDataset<Example>& stream, int64_t count, int64_t from = 0) {
  std::vector<int64_t> all;
  for (int64_t i = from; i < from + count; ++i) all.push_back(stream.get(i).input.item<int64_t>());
  return all;
}

std::vector<int64_t> values_of(const Example& batch) {
  auto all = batch.input.to_vector<int64_t>();
  for (const int64_t value : batch.target.to_vector<int64_t>()) all.push_back(value);
  return all;
}

}  // namespace

TEST_CASE("stream: each round has every record once, in its own order") {
  TempDir dir;
  const auto shards = shards_of(dir, {5, 0, 17, 1, 9, 3, 0, 13});
  for (const int64_t block : {1, 2, 7, 1000})
    for (const bool shuffled : {false, true}) {
      const auto all = first_of(numbers_in(shards, {.block = block, .shuffle_shards = shuffled, .seed = 3}), 3 * 48);
      std::vector<std::vector<int64_t>> rounds;
      for (int r = 0; r < 3; ++r) {
        rounds.emplace_back(all.begin() + 48 * r, all.begin() + 48 * (r + 1));
        auto sorted = rounds.back();
        std::sort(sorted.begin(), sorted.end());
        for (int64_t i = 0; i < 48; ++i) CHECK(sorted[size_t(i)] == i);
      }
      CHECK((rounds[0] == rounds[1]) == (block == 1 && !shuffled));
      if (block == 1 && !shuffled) CHECK(std::is_sorted(rounds[0].begin(), rounds[0].end()));
    }
  const StreamOptions two{.block = 4, .lanes = 2, .run = 3, .seed = 8};
  CHECK(first_of(numbers_in(shards, two), 200) == first_of(numbers_in(shards, two), 200));
  CHECK(first_of(numbers_in(shards, two), 200) !=
        first_of(numbers_in(shards, {.block = 4, .lanes = 2, .run = 3, .seed = 9}), 200));
  // Lanes alternate: lane 0 reads shards 0, 2, 4, 6, lane 1 the others.
  const auto plain = first_of(numbers_in(shards, {.lanes = 2, .run = 3}), 12);
  CHECK(plain == std::vector<int64_t>{0, 1, 2, 22, 32, 33, 3, 4, 5, 34, 35, 36});
}

TEST_CASE("stream: record i does not depend on earlier reads or on the reader") {
  TempDir dir;
  const auto shards = shards_of(dir, {300, 20, 700, 90});
  for (const StreamOptions& options :
       {StreamOptions{.block = 16, .shuffle_shards = true, .lanes = 3, .run = 4, .seed = 1},
        StreamOptions{.lanes = 2}}) {
    const auto want = first_of(numbers_in(shards, options), 4000);
    const auto stream = numbers_in(shards, options);
    manual_seed(2);
    for (int i = 0; i < 300; ++i) {
      const int64_t at = randint(0, 4000, {}).item<int64_t>();
      CHECK(stream.get(at).input.item<int64_t>() == want[size_t(at)]);
    }
    const auto shared = numbers_in(shards, options);
    std::vector<std::thread> threads;
    std::vector<int> wrong(4, 0);
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        for (int64_t i = t; i < 4000; i += 4)
          wrong[size_t(t)] += shared.get(i).input.item<int64_t>() != want[size_t(i)];
      });
    for (auto& thread : threads) thread.join();
    CHECK(wrong == std::vector<int>(4, 0));
  }
}

TEST_CASE("stream: the same micro-batches for any ranks and workers, and after a resume with others") {
  TempDir dir;
  const auto shards = shards_of(dir, {40, 11, 60, 33, 25});
  const StreamOptions options{.block = 10, .shuffle_shards = true, .lanes = 4, .run = 3, .seed = 6};
  constexpr int64_t samples = 3 * 4 * 5, micro_batches = 4;  // 5 steps of 4 micro-batches of 3
  using Steps = std::vector<std::vector<int64_t>>;           // the values of each micro-batch, in order
  // Runs one loader per rank, from a state or from the start; returns the micro-batches of epochs 0 and 1, or the rest.
  const auto run = [&](int64_t world, int workers, const LoaderState* from, int64_t stop_after, LoaderState* at) {
    std::vector<DataLoader<Example>> loaders;
    for (int64_t rank = 0; rank < world; ++rank) {
      loaders.emplace_back(
          numbers_in(shards, options),
          LoaderOptions<Example>{
              .batch_size = 3,
              .sampler = stream_sampler(
                  {.samples = samples, .micro_batch = 3, .micro_batches = micro_batches, .world = world, .rank = rank}),
              .workers = workers,
              .seed = 4,
              .world = world});
      if (from) loaders.back().load_state(*from);
    }
    std::vector<RepeatingLoader<Example>> endless;
    for (auto& loader : loaders) endless.emplace_back(loader);
    Steps all;
    for (int64_t step = 0; step < stop_after; ++step)
      for (auto& loader : endless)
        for (int64_t m = 0; m < micro_batches / world; ++m) all.push_back(values_of(loader.next()));
    if (at) *at = loaders[0].state();
    return all;
  };
  const Steps want = run(1, 0, nullptr, 10, nullptr);
  for (const auto& [world, workers] : {std::pair<int64_t, int>{1, 1}, {1, 4}, {2, 0}, {2, 2}, {4, 0}, {4, 1}})
    CHECK(run(world, workers, nullptr, 10, nullptr) == want);
  for (const auto& [first, second] : {std::pair<int64_t, int64_t>{1, 4}, {4, 1}, {2, 4}, {2, 2}})
    for (const int64_t steps : {0, 1, 4, 5, 7}) {
      LoaderState state;
      Steps all = run(first, 1, nullptr, steps, &state);
      for (auto& more : run(second, 0, &state, 10 - steps, nullptr)) all.push_back(more);
      CHECK(all == want);
    }
  const auto stream = numbers_in(shards, options);
  for (int64_t number : {0, 7, 3, 19}) {  // random access, as Trainer::batches does it
    manual_seed(uint64_t(number));
    const RandomState before = random_state();
    const Example batch = stream.micro_batch(number);
    CHECK(random_state() == before);
    manual_seed(99);
    // the random numbers of a batch do not depend on the global generator
    CHECK(equal(stream.micro_batch(number).target, batch.target));
    const auto values = batch.input.to_vector<int64_t>();
    CHECK(std::equal(values.begin(), values.end(), want[size_t(number)].begin()));
  }
}

TEST_CASE("stream: places make a resume start where it was") {
  TempDir dir;
  const auto shards = shards_of(dir, {400, 110, 600, 330});
  const StreamOptions options{.block = 50, .shuffle_shards = true, .lanes = 2, .run = 2, .seed = 6};
  const auto begun = numbers_in(shards, options);
  const auto want = first_of(begun, 5000);
  for (const int64_t at : {0, 1, 999, 1000, 3000, 4900}) {
    const Json places = parse_json(begun.records().places(at).dump(), "places");
    const auto resumed = numbers_in(shards, options);
    resumed.records().load_places(places);
    CHECK(first_of(resumed, 50, at) == std::vector<int64_t>(want.begin() + at, want.begin() + at + 50));
    CHECK(first_of(resumed, 20) == std::vector<int64_t>(want.begin(), want.begin() + 20));  // going back works, too
    const auto& lane = places.at("lanes").as_array()[0].as_array();
    CHECK(lane[0].as_int() <= at / 2 + 2);
    CHECK(lane[0].as_int() >= at / 2 - 52);
  }
  Json places = begun.records().places(3000);
  CHECK_ERROR(numbers_in(shards, {.block = 51, .shuffle_shards = true, .lanes = 2, .run = 2, .seed = 6})
                  .records()
                  .load_places(places),
              "[stream] places: expected the places of a stream with the same shards and options");
  Json bad = places;
  bad["lanes"] = Json::Array{Json::Array{1, 2, 3, 1 << 30}, Json::Array{0, 0, 0, 0}};
  CHECK_ERROR(begun.records().load_places(bad), "[stream] places: expected a place in the shards for lane 0");
  bad["lanes"] = Json::Array{};
  CHECK_ERROR(begun.records().load_places(bad), "[stream] places: expected 2 lanes, got 0");
}

TEST_CASE("stream: JSON Lines, tokens, and rejected files") {
  TempDir dir;
  const std::string json = dir.write("a.jsonl", "{\"x\": 1}\n\n{\"x\": 2}\n");
  const auto values = stream_json_lines<Tensor>({json}, {}, [](const Json& value, const std::string& where) {
    return full({}, value.at("x", where).as_number());
  });
  CHECK(values.get(3).item() == 2);
  const auto broken = stream_json_lines<Tensor>({dir.write("b.jsonl", "{\"x\": 1}\n{")}, {},
                                                [](const Json&, const std::string&) { return zeros({}); });
  CHECK_ERROR(broken.get(1), "b.jsonl, byte 9:1:2:");

  const ByteTokenizer bytes;
  std::vector<std::string> shards;
  std::set<std::string> windows;
  for (const char* text : {"abcdefghijk", "0123456", "xy"}) {
    shards.push_back(dir / str(text[0], ".tokens"));
    tokenize_file(dir.write("text", text), shards.back(), bytes, "bytes");
  }
  const auto tokens = stream_tokens(shards, 3, bytes, "bytes");
  for (int64_t i = 0; i < 5; ++i) {
    const auto [x, y] = tokens.get(i);
    CHECK(equal(x.narrow(0, 1, 2), y.narrow(0, 0, 2)));
    std::string window;
    for (const int64_t c : x.to_vector<int64_t>()) window += char(c);
    windows.insert(window + char(y[2].item<int64_t>()));
  }
  CHECK(windows == std::set<std::string>{"abcd", "defg", "ghij", "0123", "3456"});
  CHECK(equal(tokens.get(5).input, tokens.get(0).input));  // the next epoch
  CHECK_ERROR(stream_tokens(shards, 3, bytes, "others"), "expected tokens of the tokenizer (others; 256 tokens)");
  CHECK_ERROR(stream_tokens(shards, 20, bytes, "bytes").get(0), "[stream] expected shards with records, found none in");

  const std::string empty = dir.write("empty", "\n \n");
  CHECK_ERROR(numbers_in({empty}, {}).get(0), "[stream] expected shards with records, found none in");
  CHECK_ERROR(numbers_in({}, {}), "[stream] expected at least one shard, got none");
  CHECK_ERROR(numbers_in({dir.str()}, {}), "[stream] expected shards that are files, got ");
  CHECK_ERROR(numbers_in({empty}, {.lanes = 2}), "[stream] expected lanes from 1 to the number of shards, 1, got 2");
  CHECK_ERROR(numbers_in({empty}, {.block = 0}), "[stream] expected block and run >= 1, got block 0 and run 1");
  CHECK_ERROR(stream_sampler({.samples = 10, .micro_batch = 4}),
              "samples in a multiple of their product, 4, got 4, 1 and 10");
  const auto lines = numbers_in({dir.write("lines", "1\n2\n")}, {});
  CHECK_ERROR(DataLoader(lines, {.batch_size = 2}), "[DataLoader] expected a sampler for an endless dataset");
  CHECK_ERROR(MicroBatchSampler({.samples = lines.size()})(0), "[sampler] expected a finite dataset, got a stream");
  dir.write("lines", "1\n2\n3\n");
  CHECK_ERROR(lines.get(0), "lines: expected 4 bytes as when it was opened, got 6: shards must stay as they are");
}
