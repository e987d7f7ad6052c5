// Datasets and DataLoader: order, workers, errors and exact resuming.
// A number in a test's name is a row of docs/faults.md.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

#include "base/threads.h"
#include "data/loader.h"
#include "data/prefetch.h"
#include "data/text.h"
#include "data/to_device.h"
#include "tensor/ops.h"
#include "tests/fork.h"
#include "tests/threads.h"
#include "util.h"

using namespace lockstep;
using namespace lockstep::data;

namespace {

/// Sample i is (i, 10 i).
TensorDataset numbers(int64_t n) { return {arange(n), arange(0, double(10 * n), 10)}; }

/// A dataset without a fast path for batches; it may fail, be slow or draw random numbers.
struct Slow : Dataset<Example> {
  int64_t n = 10, bad = -1;
  double seconds = 0;
  bool random = false;
  Slow(int64_t n) : n(n) {}
  int64_t size() const override { return n; }
  Example get(int64_t index) const override {
    if (index == bad) throw std::runtime_error("disk on fire");
    if (seconds > 0 && index % 3 == 0) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    const PhiloxKey key = random ? next_random_key() : PhiloxKey{};
    const Tensor value = random ? Tensor::from<int64_t>({int64_t((key.stream ^ key.seed) >> 1)})
                                : arange(double(index), double(index + 1));
    return {value, Tensor::from({index}, {})};
  }
};

/// A sample with names, as a program would write it.
struct Named {
  Tensor left, right, label;
  void each_tensor(const auto& fn) { fn("left", left), fn("right", right), fn("label", label); }
};
Named sample_of(const Example& one, const Named*) { return {one.input, one.more_inputs.at(0), one.target}; }
std::vector<Tensor> sample_of(const Example& one, const std::vector<Tensor>*) { return one.inputs(); }
Example sample_of(const Example& one, const Example*) { return one; }
/// The samples of a dataset one by one, as samples of this type.
template <class S> struct SamplesAs : Dataset<S> {
  explicit SamplesAs(TensorDataset dataset) : source(std::move(dataset)) {}
  int64_t size() const override { return source.size(); }
  S get(int64_t index) const override { return sample_of(source.get(index), static_cast<const S*>(nullptr)); }
  TensorDataset source;
};

std::vector<int64_t> shifted(const Tensor& x, int64_t by) {
  std::vector<int64_t> all = x.to_vector<int64_t>();
  for (int64_t& value : all) value += by;
  return all;
}

/// The inputs, or the targets, of a loader's next epoch.
template <class Loader> std::vector<int64_t> epoch_of(Loader&& loader, Tensor Example::*part = &Example::input) {
  std::vector<int64_t> observed;
  for (const Example& batch : loader)
    for (const int64_t value : (batch.*part).to_vector<int64_t>()) observed.push_back(value);
  return observed;
}

}  // namespace

TEST_CASE("the loop of the manual") {
  const auto train = numbers(10);
  int64_t count = 0;
  for (auto& [x, y] : DataLoader(train, {.batch_size = 4, .shuffle = true, .workers = 2})) {
    CHECK(x.shape() == Shape{count == 2 ? 2 : 4});
    CHECK(y.to_vector<int64_t>()[0] == 10 * x.to_vector<int64_t>()[0]);
    ++count;
  }
  CHECK(count == 3);
}

TEST_CASE("workers, prefetch and dataset type change nothing; epochs differ; each sample comes once") {
  const auto train = numbers(23);
  const Slow slow(23);
  for (const bool shuffle : {false, true}) {
    DataLoader reference(train, {.batch_size = 4, .shuffle = shuffle, .seed = 7});
    std::vector<std::vector<int64_t>> want;
    for (int epoch = 0; epoch < 3; ++epoch) want.push_back(epoch_of(reference));
    CHECK((want[0] != want[1]) == shuffle);
    for (const int workers : {0, 1, 2, 5}) {
      for (const int prefetch : {0, 1, 7}) {
        if (prefetch && !workers) continue;
        const LoaderOptions<Example> options{
            .batch_size = 4, .shuffle = shuffle, .workers = workers, .prefetch = prefetch, .seed = 7};
        DataLoader fast(train, options), one_by_one(slow, options);
        for (const auto& epoch : want) {
          CHECK(epoch_of(fast) == epoch);
          CHECK(epoch_of(one_by_one) == epoch);
        }
      }
    }
    std::sort(want[0].begin(), want[0].end());
    for (int64_t i = 0; i < 23; ++i) CHECK(want[0][size_t(i)] == i);
  }
  CHECK(DataLoader(train, {.batch_size = 4}).size() == 6);
  CHECK(DataLoader(train, {.batch_size = 4, .drop_last = true}).size() == 5);
  CHECK(epoch_of(DataLoader(train, {.batch_size = 4, .drop_last = true})).size() == 20);
  CHECK(DataLoader(numbers(0)).size() == 0);
  CHECK(epoch_of(DataLoader(numbers(0), {.workers = 2})).empty());
}

TEST_CASE("out of order: every sample still comes once") {
  Slow slow(20);
  slow.seconds = 0.002;
  auto observed = epoch_of(DataLoader(slow, {.batch_size = 3, .workers = 3, .in_order = false}));
  std::sort(observed.begin(), observed.end());
  CHECK(observed == epoch_of(DataLoader(numbers(20))));
}

TEST_CASE("random numbers in get() do not depend on the workers, and leave the caller's generator alone") {
  Slow slow(12);
  slow.random = true;
  const RandomState before = random_state();
  const auto want = epoch_of(DataLoader(slow, {.batch_size = 5, .seed = 3}));
  CHECK(random_state() == before);
  CHECK(std::set<int64_t>(want.begin(), want.end()).size() == 12);
  CHECK(epoch_of(DataLoader(slow, {.batch_size = 2, .workers = 3, .seed = 3})) == want);
  CHECK(epoch_of(DataLoader(slow, {.batch_size = 5, .seed = 4})) != want);
}

TEST_CASE("operations in workers use as many threads as the thread that made the workers") {
  const Threads four(4);
  const ThreadLimit limit(2);
  Prefetcher<int> made([](int64_t, std::atomic<int64_t>&) { return get_threads(); }, 0, 3, {});
  for (int i = 0; i < 3; ++i) CHECK(made.next() == 2);
}

TEST_CASE("a state saved after any batch resumes without a sample skipped or repeated") {
  const auto train = numbers(22);
  for (const int workers : {0, 2}) {
    const auto make = [&](uint64_t seed) {
      return DataLoader(train, {.batch_size = 4, .shuffle = true, .workers = workers, .seed = seed});
    };
    auto full = make(5);
    std::vector<int64_t> want;
    for (int epoch = 0; epoch < 3; ++epoch)
      for (const int64_t value : epoch_of(full)) want.push_back(value);
    for (int stop = 0; stop <= 12; ++stop) {
      CAPTURE(stop);
      auto first = make(5);
      std::vector<int64_t> observed;
      LoaderState state = first.state();
      for (int epoch = 0, batches = 0; epoch < 3 && batches < stop; ++epoch) {
        for (auto& [x, y] : first) {
          for (const int64_t value : x.to_vector<int64_t>()) observed.push_back(value);
          state = first.state();
          if (++batches == stop) break;
        }
      }
      auto second = make(99);  // the state's seed replaces 99
      second.load_state(state);
      CHECK(second.state() == state);
      while (second.epoch() < 3)
        for (const int64_t value : epoch_of(second)) observed.push_back(value);
      CHECK(observed == want);
    }
  }
}

TEST_CASE("a state holds for another number of ranks") {
  const auto train = numbers(48);
  const auto make = [&](int64_t world, int64_t rank) {
    return DataLoader(train, {.batch_size = 2,
                              .sampler = MicroBatchSampler(
                                  {.samples = 48, .micro_batch = 2, .micro_batches = 4, .world = world, .rank = rank}),
                              .world = world});
  };
  auto one = make(1, 0);
  int count = 0;
  std::vector<std::vector<int64_t>> rest;
  LoaderState state;
  for (auto& [x, y] : one) {
    if (++count == 8) state = one.state();  // after two steps
    if (count > 8) rest.push_back(x.to_vector<int64_t>());
  }
  CHECK(state.samples == 16);
  for (int64_t rank = 0; rank < 2; ++rank) {
    auto half = make(2, rank);
    half.load_state(state);
    int64_t at = 0;  // rank r gets micro-batches 2r and 2r+1 of the 4 of each step
    for (auto& [x, y] : half) {
      CHECK(x.to_vector<int64_t>() == rest[size_t(at / 2 * 4 + rank * 2 + at % 2)]);
      ++at;
    }
    CHECK(at == int64_t(rest.size()) / 2);
  }
}

TEST_CASE("leaving a loop early joins the workers; the next loop is the next epoch") {
  Slow slow(1000);
  slow.seconds = 0.001;
  DataLoader loader(slow, {.shuffle = true, .workers = 3, .seed = 1});
  for (int i = 0; i < 5; ++i) {
    for ([[maybe_unused]] auto& batch : loader) break;
    CHECK(loader.epoch() == i);
  }
  loader.set_epoch(41);
  for ([[maybe_unused]] auto& batch : loader) break;
  CHECK(loader.epoch() == 41);
}

TEST_CASE("loader 45: an exception in get() comes out of the loop with its place") {
  Slow slow(10);
  slow.bad = 5;
  for (const int workers : {0, 2}) {
    std::vector<int64_t> observed;
    const std::string error = error_of([&] {
      for (auto& [x, y] : DataLoader(slow, {.batch_size = 2, .workers = workers}))
        observed.push_back(x.to_vector<int64_t>()[0]);
    });
    CHECK(error.find("[data loader]") == 0);
    CHECK(error.find("batch 2, sample 5: disk on fire") != error.npos);
    CHECK((error.find("worker ") != error.npos) == (workers > 0));
    CHECK(observed == std::vector<int64_t>{0, 2});
  }
}

TEST_CASE("loader 45: a stuck worker is named after the timeout") {
  Slow slow(10);
  slow.seconds = 0.5;
  const auto start = std::chrono::steady_clock::now();
  CHECK_ERROR(epoch_of(DataLoader(slow, {.workers = 1, .timeout = 0.05})),
              "no batch after 0.05 s: worker 0 at sample 0");
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::milliseconds(900));
  std::this_thread::sleep_for(std::chrono::milliseconds(600));  // let the worker finish before the test ends
}

TEST_CASE("samplers and collate of one's own") {
  const auto train = numbers(6);
  CHECK(epoch_of(DataLoader(train, {.batch_size = 2, .sampler = [](int64_t epoch) {
                                      return std::vector<int64_t>{5, epoch, 3};
                                    }})) == std::vector<int64_t>{5, 0, 3});
  DataLoader<Example, int64_t> sums(train, {.batch_size = 3, .collate = [](std::vector<Example> samples) {
                                              int64_t total = 0;
                                              for (const auto& sample : samples) total += sample.input.item<int64_t>();
                                              return total;
                                            }});
  std::vector<int64_t> totals;
  for (const int64_t total : sums) totals.push_back(total);
  CHECK(totals == std::vector<int64_t>{3, 12});
}

TEST_CASE("RepeatingLoader goes on for ever, over epochs and after a state at the end of one") {
  const auto train = numbers(3);
  DataLoader loader(train, {.batch_size = 2, .shuffle = true, .seed = 2}),
      plain(train, {.batch_size = 2, .shuffle = true, .seed = 2});
  RepeatingLoader repeating(loader);
  std::vector<int64_t> observed, want;
  for (int i = 0; i < 6; ++i)
    for (const int64_t value : repeating.next().input.to_vector<int64_t>()) observed.push_back(value);
  for (int epoch = 0; epoch < 3; ++epoch)
    for (const int64_t value : epoch_of(plain)) want.push_back(value);
  CHECK(observed == want);
  DataLoader again(train, {.batch_size = 2, .shuffle = true});
  again.load_state(loader.state());
  RepeatingLoader resumed(again);
  CHECK(resumed.next().input.to_vector<int64_t>() == repeating.next().input.to_vector<int64_t>());
  DataLoader empty(numbers(0));
  CHECK_ERROR(RepeatingLoader(empty), "expected a loader with a batch, got an empty one");
}

TEST_CASE("samples of several tensors: by position and by name, with the same batches for any workers") {
  const TensorDataset four(arange(10), arange(0, 100, 10), {arange(20, 30)}, {arange(30, 40), arange(40, 50)});
  ToDevice to_device(cpu);
  for (const int workers : {0, 2}) {
    CAPTURE(workers);
    DataLoader rows(four, {.batch_size = 4, .shuffle = true, .workers = workers, .seed = 3});
    DataLoader each(SamplesAs<Example>(four), {.batch_size = 4, .shuffle = true, .workers = workers, .seed = 3});
    DataLoader named(SamplesAs<Named>(four), {.batch_size = 4, .shuffle = true, .workers = workers, .seed = 3});
    DataLoader lists(SamplesAs<std::vector<Tensor>>(four),
                     {.batch_size = 4, .shuffle = true, .workers = workers, .seed = 3});
    auto other = each.begin();
    auto by_name = named.begin();
    auto list = lists.begin();
    int64_t batches = 0;
    for (Example& batch : rows) {
      const int64_t count = batches++ == 2 ? 2 : 4;
      const auto& [x, y] = batch;  // the first input and the first target
      CHECK(x.shape() == Shape{count});
      const std::vector<Tensor> inputs = batch.inputs(), targets = batch.targets();
      REQUIRE(inputs.size() == 2);
      REQUIRE(targets.size() == 3);
      CHECK(equal(inputs[0], x));
      CHECK(equal(targets[0], y));
      CHECK(inputs[1].to_vector<int64_t>() == shifted(x, 20));
      CHECK(targets[1].to_vector<int64_t>() == shifted(x, 30));
      CHECK(targets[2].to_vector<int64_t>() == shifted(x, 40));
      std::vector<std::string> names;
      Example moved = to_device(*other);
      moved.each_tensor([&](const std::string& name, const Tensor&) { names.push_back(name); });
      CHECK(names == std::vector<std::string>{"input", "target", "input 2", "target 2", "target 3"});
      for (size_t i = 0; i < 2; ++i) CHECK(equal(moved.inputs()[i], inputs[i]));
      for (size_t i = 0; i < 3; ++i) CHECK(equal(moved.targets()[i], targets[i]));
      const Named same = to_device(*by_name);
      CHECK(equal(same.left, x));
      CHECK(equal(same.right, inputs[1]));
      CHECK(equal(same.label, y));
      REQUIRE(list->size() == 2);
      CHECK(equal((*list)[1], inputs[1]));
      ++other, ++by_name, ++list;
    }
    CHECK(batches == 3);
  }
  const TensorDataset copied = to_tensors(Subset(four, {7, 2}));
  CHECK(copied.get(1).more_targets[1].item() == 42);
  auto [x, y] = four.get(3);
  CHECK(x.item() == 3);
  CHECK(y.item() == 30);
}

TEST_CASE("samples of several tensors: wrong shapes, names and counts are said with the sample and the tensor") {
  const Tensor a = arange(3), b = arange(4), f = ones({3});
  CHECK_ERROR(collate(std::vector<Example>{{a, a, {a}}, {a, a, {b}}}),
              "[collate] input 2: expected samples like the first, i64(3), got i64(4) as sample 1 of the batch");
  CHECK_ERROR(collate(std::vector<Example>{{a, a, {}, {a}}, {a, a, {}, {f}}}), "[collate] target 2: expected samples");
  CHECK_ERROR(collate(std::vector<Example>{{a, b}, {a, a}}), "[collate] target: expected samples like the first");
  CHECK_ERROR(
      collate(std::vector<Example>{{a, a, {a}}, {a, a, {}, {a}}}),
      "[collate] expected the tensors input, target, input 2 of the first sample, got input, target, target 2 in "
      "sample 1 of the batch");
  CHECK_ERROR(collate(std::vector<Example>{{a, a}, {a, a, {a}}}), "got input, target, input 2 in sample 1");
  CHECK_ERROR(collate(std::vector<Example>{{a, a, {Tensor()}}}),
              "[collate] input 2: sample 0 of the batch has no tensor");
  CHECK_ERROR(collate(std::vector<Example>{}), "[collate] expected at least one sample, got none");
  CHECK_ERROR(collate(std::vector<std::vector<Tensor>>{{a, a}, {a}}),
              "[collate] expected the tensors 0, 1 of the first sample, got 0 in sample 1 of the batch");
  CHECK_ERROR(collate(std::vector<std::vector<Tensor>>{{a, a}, {a, b}}),
              "[collate] 1: expected samples like the first");
  CHECK_ERROR(TensorDataset(a, a, {b}), "expected as many rows of input 2 as of input, got (3) and (4)");
  CHECK_ERROR(TensorDataset(a, a, {}, {Tensor()}), "got none as target 2");
  CHECK_ERROR(TensorDataset(a, ones({})), "got () as target");
}

TEST_CASE("subset, split, concatenation") {
  const auto all = numbers(10);
  const Subset odd(all, {1, 3, 5});
  CHECK(odd.get(2).target.item() == 50);
  CHECK(epoch_of(DataLoader(odd, {.batch_size = 2})) == std::vector<int64_t>{1, 3, 5});
  auto parts = random_split(all, {7, 3}, 4);
  CHECK(parts.size() == 2);
  auto observed = epoch_of(DataLoader(parts[0]));
  for (const int64_t value : epoch_of(DataLoader(parts[1]))) observed.push_back(value);
  std::sort(observed.begin(), observed.end());
  CHECK(observed == epoch_of(DataLoader(all)));
  const ConcatDataset<Example> both({share(odd), share(all), share(numbers(0))});
  CHECK(both.size() == 13);
  CHECK(both.get(2).input.item() == 5);
  CHECK(both.get(3).input.item() == 0);
  CHECK(to_tensors(both).inputs().to_vector<int64_t>() == epoch_of(DataLoader(both, {.batch_size = 5, .workers = 2})));
  CHECK_ERROR(odd.get(3), "[Subset] index 3 is outside the dataset of 3 samples");
  CHECK_ERROR(both.get(-1), "index -1 is outside the dataset of 13 samples");
  CHECK_ERROR(Subset(all, {10}), "index 10 is outside the dataset of 10 samples");
  CHECK_ERROR(random_split(all, {7, 4}), "add up to 10, got 11");
  CHECK_ERROR(random_split(all, {11, -1}), "lengths >= 0, got -1");
}

TEST_CASE("wrong datasets and options") {
  const auto train = numbers(10);
  CHECK_ERROR(TensorDataset(arange(3), arange(4)), "expected as many rows of target as of input, got (3) and (4)");
  CHECK_ERROR(train.get(10), "[TensorDataset] index 10 is outside the dataset of 10 samples");
  CHECK_ERROR(collate(std::vector<Tensor>{arange(3), arange(3), arange(4)}),
              "expected samples like the first, i64(3), got i64(4) as sample 2");
  CHECK_ERROR(DataLoader(train, {.batch_size = 0}), "expected batch_size >= 1, got 0");
  CHECK_ERROR(DataLoader(train, {.workers = -1}), "expected workers >= 0, got -1");
  CHECK_ERROR(DataLoader(train, {.prefetch = 2}), "expected workers >= 1 for prefetch 2, got 0");
  CHECK_ERROR(DataLoader(train, {.timeout = 1}), "expected workers >= 1 for a timeout");
  CHECK_ERROR(DataLoader(train, {.shuffle = true, .sampler = RandomSampler(10)}),
              "expected shuffle or a sampler, got both");
  CHECK_ERROR(DataLoader(train, {.world = 2}), "expected a sampler that divides the epoch among 2 ranks");
  CHECK_ERROR(epoch_of(DataLoader(train, {.sampler = SequentialSampler(11)})),
              "expected indices from 0 to 9, got 10 from the sampler");
  DataLoader loader(train, {.batch_size = 2});
  CHECK_ERROR(loader.load_state({.dataset_size = 11}), "expected the state of a dataset of 10 samples, got one of 11");
  CHECK_ERROR(loader.load_state({.samples = 3, .dataset_size = 10}),
              "multiple of batch_size x world = 2 samples, got 3");
  CHECK_ERROR(DataLoader(train, {.workers = 1, .in_order = false}).state(), "expected in_order");
}

TEST_CASE("text: windows, and batches that depend on step, micro-batch and row only") {
  const Tensor tokens = arange(20).to(u8);
  const TextDataset text(tokens, {.context = 4});
  CHECK(text.size() == 16);
  CHECK(text.get(15).input.to_vector<int64_t>() == std::vector<int64_t>{15, 16, 17, 18});
  CHECK(text.get(15).target.to_vector<int64_t>() == std::vector<int64_t>{16, 17, 18, 19});
  CHECK(TextDataset(tokens, {.context = 4, .stride = 4}).size() == 4);
  CHECK(epoch_of(DataLoader(TextDataset(tokens, {.context = 4, .stride = 4}), {.batch_size = 3})) ==
        arange(16).to_vector<int64_t>());

  for (const DType dtype : {u8, i32, i64}) {
    const TokenBatches batches(arange(20).to(dtype), 1);
    const Example big = batches.sample(3, 2, 8, 4), small = batches.sample(3, 2, 5, 4);
    CHECK(big.input.shape() == Shape{8, 4});
    CHECK(equal(add_scalar(big.input, 1), big.target));
    CHECK(equal(big.input.narrow(0, 0, 5), small.input));
    CHECK(!equal(big.input, batches.sample(3, 1, 8, 4).input));
    CHECK(!equal(big.input, batches.sample(4, 2, 8, 4).input));
  }
  // The last window is drawn as well.
  int64_t last = 0;
  for (int64_t step = 0; step < 20; ++step)
    for (const int64_t start : TokenBatches(tokens).sample(step, 0, 16, 18).input.select(1, 0).to_vector<int64_t>())
      last = std::max(last, start);
  CHECK(last == 1);

  CHECK_ERROR(TextDataset(arange(4), {.context = 4}), "expected more tokens than the context of 4, got 4");
  CHECK_ERROR(TextDataset(zeros({9})), "expected u8, i32 or i64 tokens, got f32");
  CHECK_ERROR(TokenBatches(arange(4)).sample(0, 0, 1, 4), "expected more tokens than the context of 4, got 4");
  TempDir dir;
  CHECK(read_bytes(dir.write("t", "ab\xff")).to_vector<int64_t>() == std::vector<int64_t>{97, 98, 255});
  CHECK_ERROR(read_bytes(dir.write("t", "")), "empty file");
  CHECK_ERROR(read_bytes(dir.write("t", "12345"), 4), "expected at most 4 bytes, got 5");
}

TEST_CASE("text 42: a file that shrinks while batches are made of it ends in an Error that names it, with both sizes") {
  TempDir dir;
  const std::string path = dir.write("corpus", std::string(100'000, 'x'));
  for (const int workers : {0, 2}) {
    const Tensor tokens = read_bytes(path);
    const TokenBatches batches(tokens);
    DataLoader loader(TextDataset(tokens, {.context = 4, .stride = 4}), {.batch_size = 16, .workers = workers});
    CHECK(batches.sample(0, 0, 64, 4).input.size(0) == 64);
    std::filesystem::resize_file(path, 10);
    CHECK_ERROR(batches.sample(1, 0, 64, 4),
                "corpus to stay as it is while it is in use: it had 100000 bytes, now it has 10");
    CHECK_ERROR(epoch_of(loader), "it had 100000 bytes, now it has 10");
    std::filesystem::resize_file(path, 100'000);
  }
}

TEST_CASE("two loaders without a seed differ, by the order of their making; a seed given, or saved, counts") {
  const auto order = [](auto& loader) { return epoch_of(loader, &Example::target); };
  Slow set(12);
  set.random = true;
  const auto make = [&](std::optional<uint64_t> seed = {}, bool shuffle = true) {
    return DataLoader(set, {.batch_size = 4, .shuffle = shuffle, .seed = seed});
  };
  manual_seed(7);
  auto a = make(), b = make(), given = make(7), c = make({}, false), d = make({}, false);
  const LoaderState of_b = b.state();
  CHECK(a.seed() == 7);  // the seed of manual_seed()
  const auto first = order(a), second = order(b);
  CHECK(first == permutation(12, 7, 0));
  CHECK(order(given) == first);
  CHECK(second != first);
  CHECK(epoch_of(c) != epoch_of(d));  // unshuffled: only the draws of get() differ
  manual_seed(7);
  auto again = make(), other = make();
  CHECK(order(again) == first);
  CHECK(order(other) == second);
  auto late = make();  // the third loader since manual_seed()
  late.load_state(of_b);
  CHECK(order(late) == second);
}

TEST_CASE("loader: a forked child lets go of the workers of its parent at once") {
  using Items = Prefetcher<int64_t>;
  Items items([](int64_t job, std::atomic<int64_t>&) { return job; }, 0, 1000, {.workers = 2});
  CHECK(items.next() == 0);
  CHECK(testing::in_fork([&] {
          ::alarm(5);
          items.~Items();
        }) == 0);
  CHECK(items.next() == 1);
}
