// Permutations, and the order of samples in each sampler. See sampler.h.
#include "data/sampler.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "data/dataset.h"
#include "data/draw.h"

namespace lockstep::data {
namespace {

std::vector<int64_t> sequence(int64_t n) {
  LOCKSTEP_CHECK(n < endless_samples,
                 "[sampler] expected a finite dataset, got a stream: use stream_sampler(), or give Trainer::batches "
                 "its micro_batch()");
  std::vector<int64_t> indices(static_cast<size_t>(n));
  std::iota(indices.begin(), indices.end(), int64_t(0));
  return indices;
}

void check_rank(const char* op, int64_t n, int64_t world, int64_t rank) {
  LOCKSTEP_CHECK(n >= 0, "[", op, "] expected a number of samples >= 0, got ", n);
  LOCKSTEP_CHECK(world >= 1, "[", op, "] expected world >= 1, got ", world);
  LOCKSTEP_CHECK(rank >= 0 && rank < world, "[", op, "] expected a rank from 0 to ", world - 1, ", got ", rank);
}

}  // namespace

std::vector<int64_t> permutation(int64_t n, uint64_t seed, int64_t epoch) {
  LOCKSTEP_CHECK(n >= 0, "[permutation] expected n >= 0, got ", n);
  auto indices = sequence(n);
  Draws draws({.seed = seed, .stream = uint64_t(epoch)});
  for (int64_t i = n - 1; i > 0; --i)
    std::swap(indices[size_t(i)], indices[size_t(draws.below(i + 1))]);  // Fisher-Yates shuffle
  return indices;
}

SequentialSampler::SequentialSampler(int64_t n) : n_(n) {
  LOCKSTEP_CHECK(n >= 0, "[SequentialSampler] expected n >= 0, got ", n);
}
std::vector<int64_t> SequentialSampler::operator()(int64_t) const { return sequence(n_); }

RandomSampler::RandomSampler(int64_t n, const RandomOptions& options)
    : n_(n), count_(options.num_samples.value_or(n)), options_(options) {
  LOCKSTEP_CHECK(n >= 0, "[RandomSampler] expected n >= 0, got ", n);
  LOCKSTEP_CHECK(count_ >= 0 && (n > 0 || count_ == 0),
                 "[RandomSampler] expected num_samples >= 0, and 0 of n = 0, got ", count_, " of ", n);
}
std::vector<int64_t> RandomSampler::operator()(int64_t epoch) const {
  if (!options_.replacement && count_ == n_) return permutation(n_, options_.seed, epoch);
  std::vector<int64_t> indices;
  Draws draws({.seed = options_.seed, .stream = uint64_t(epoch)});
  while (options_.replacement && int64_t(indices.size()) < count_) indices.push_back(draws.below(n_));
  for (uint64_t round = 0; int64_t(indices.size()) < count_; ++round) {  // the first is that of an epoch of n
    const auto order = permutation(n_, round ? seed_of(options_.seed, round) : options_.seed, epoch);
    indices.insert(indices.end(), order.begin(), order.begin() + std::min(n_, count_ - int64_t(indices.size())));
  }
  return indices;
}

DistributedSampler::DistributedSampler(int64_t n, int64_t world, int64_t rank, DistributedOptions options)
    : n_(n), world_(world), rank_(rank), options_(options) {
  check_rank("DistributedSampler", n, world, rank);
  LOCKSTEP_CHECK(options.pad || !options.drop_last,
                 "[DistributedSampler] expected pad = false (every sample once) or drop_last, got both");
  if (!options.pad) size_ = (n - rank + world - 1) / world;
  else if (options.drop_last)
    // PyTorch rounds (n - world) / world up if n is not a multiple of world. The result is the same.
    size_ = n / world;
  else size_ = (n + world - 1) / world;
  if (size_ < 0) size_ = 0;
}

std::vector<int64_t> DistributedSampler::operator()(int64_t epoch) const {
  const auto order = options_.shuffle ? permutation(n_, options_.seed, epoch) : sequence(n_);
  std::vector<int64_t> mine;
  mine.reserve(size_t(size_));
  for (int64_t i = 0; i < size_; ++i)
    mine.push_back(order[size_t((rank_ + i * world_) % n_)]);  // wraps around to the head
  return mine;
}

MicroBatchSampler::MicroBatchSampler(MicroBatchOptions options) : options_(options) {
  const char* op = "MicroBatchSampler";
  check_rank(op, options.samples, options.world, options.rank);
  LOCKSTEP_CHECK(options.micro_batch >= 1 && options.micro_batches >= 1, "[", op,
                 "] expected micro_batch and micro_batches >= 1, got ", options.micro_batch, " and ",
                 options.micro_batches);
  LOCKSTEP_CHECK(options.micro_batches % options.world == 0, "[", op, "] expected micro_batches a multiple of world ",
                 options.world, ", got ", options.micro_batches, "; change micro_batches, or the number of ranks");
  LOCKSTEP_CHECK(
      options.drop_last ? options.samples / options.micro_batch >= options.micro_batches : options.samples > 0, "[", op,
      "] expected samples for one step, ", options.micro_batch, " x ", options.micro_batches, ", got ", options.samples,
      "; give more samples, or make the step smaller");
}

std::vector<int64_t> MicroBatchSampler::operator()(int64_t epoch) const {
  auto order = options_.order     ? options_.order(epoch)
               : options_.shuffle ? permutation(options_.samples, options_.seed, epoch)
                                  : sequence(options_.samples);
  LOCKSTEP_CHECK(int64_t(order.size()) == options_.samples, "[MicroBatchSampler] expected an order of ",
                 options_.samples, " samples, got ", order.size(), "; return as many indices as there are samples");
  const int64_t step = options_.micro_batch * options_.micro_batches, share = step / options_.world;
  std::vector<int64_t> mine;
  mine.reserve(size_t(steps() * share));
  for (int64_t i = 0; int64_t(order.size()) < steps() * step; ++i) order.push_back(order[size_t(i)]);
  for (int64_t s = 0; s < steps(); ++s) {
    const auto first = order.begin() + s * step;
    if (!options_.interleaved)
      mine.insert(mine.end(), first + options_.rank * share, first + (options_.rank + 1) * share);
    for (int64_t m = options_.rank; options_.interleaved && m < options_.micro_batches; m += options_.world) {
      mine.insert(mine.end(), first + m * options_.micro_batch, first + (m + 1) * options_.micro_batch);
    }
  }
  return mine;
}

Sampler stream_sampler(const StreamSampling& o) {
  const int64_t step = o.micro_batch * o.micro_batches;
  LOCKSTEP_CHECK(
      o.micro_batch >= 1 && o.micro_batches >= 1 && o.samples >= step && o.samples % step == 0,
      "[stream_sampler] expected micro_batch and micro_batches >= 1, and samples in a multiple of their product, ",
      step, ", got ", o.micro_batch, ", ", o.micro_batches, " and ", o.samples);
  const MicroBatchSampler dealt({.samples = o.samples,
                                 .micro_batch = o.micro_batch,
                                 .micro_batches = o.micro_batches,
                                 .world = o.world,
                                 .rank = o.rank,
                                 .shuffle = false,
                                 .interleaved = o.interleaved});
  return [dealt, samples = o.samples](int64_t epoch) {
    auto indices = dealt(epoch);
    for (int64_t& index : indices) index += epoch * samples;
    return indices;
  };
}

}  // namespace lockstep::data
