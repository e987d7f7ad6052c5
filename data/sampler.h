#pragma once
// Samplers: the order in which an epoch visits a dataset. A sampler is a pure function from the epoch to a list of
// indices, so the state of a run is just two numbers: epoch and position.
//
//   8 samples, 2 ranks, micro-batches of 2, 2 micro-batches per step:
//
//     DistributedSampler   rank 0: 0 2 4 6      rank 1: 1 3 5 7      deals samples to ranks, as PyTorch does
//     MicroBatchSampler    rank 0: 0 1 | 4 5    rank 1: 2 3 | 6 7    deals micro-batches, whose content does not
//                                                                    depend on the number of ranks
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace lockstep::data {

/// The indices of an epoch, in order. Any callable of this signature is a sampler.
using Sampler = std::function<std::vector<int64_t>(int64_t epoch)>;

/// A permutation of 0 .. n-1 that depends only on (n, seed, epoch).
std::vector<int64_t> permutation(int64_t n, uint64_t seed, int64_t epoch = 0);

/// 0 .. n-1 in order, every epoch.
class SequentialSampler {
 public:
  /// Error if n < 0.
  explicit SequentialSampler(int64_t n);
  /// The indices; the epoch does not matter.
  std::vector<int64_t> operator()(int64_t epoch = 0) const;

 private:
  int64_t n_;
};

/// Options of RandomSampler.
struct RandomOptions {
  bool replacement = false;  ///< true: draw each index from all, so that an epoch may have one several times
  std::optional<int64_t> num_samples = {};  ///< indices of an epoch; default: n. Above n, more permutations follow
  uint64_t seed = 0;
};

/// Another permutation of 0 .. n-1 every epoch, or what RandomOptions says, as in PyTorch.
class RandomSampler {
 public:
  /// Error if n or num_samples < 0, or if n is 0 and num_samples is not.
  explicit RandomSampler(int64_t n, uint64_t seed = 0) : RandomSampler(n, RandomOptions{.seed = seed}) {}
  RandomSampler(int64_t n, const RandomOptions& options);
  /// The indices of this epoch.
  std::vector<int64_t> operator()(int64_t epoch) const;

 private:
  int64_t n_, count_;
  RandomOptions options_;
};

/// Options of DistributedSampler.
struct DistributedOptions {
  bool shuffle = true;
  uint64_t seed = 0;  ///< must be the same on every rank
  /// There are two ways to give all ranks equally many samples. True: drop the epoch's last samples; false: repeat its
  /// first samples.
  bool drop_last = false;
  /// False: ranks differ by at most one sample, and each sample is seen exactly once (for evaluation).
  bool pad = true;
};

/// Divides an epoch as PyTorch does: the list of samples is padded or cut to a multiple of `world`, and rank r gets its
/// elements r, r + world, r + 2 * world, ...
class DistributedSampler {
 public:
  /// Error if `rank` is not below `world`, or drop_last is given with pad = false.
  DistributedSampler(int64_t n, int64_t world, int64_t rank, DistributedOptions options = {});
  int64_t size() const { return size_; }  ///< samples of this rank
  /// The indices of this rank in an epoch.
  std::vector<int64_t> operator()(int64_t epoch) const;
  /// Sets the epoch of indices(), for use without a DataLoader (which passes its own epoch).
  void set_epoch(int64_t epoch) { epoch_ = epoch; }
  /// Indices of the epoch that set_epoch() chose last.
  std::vector<int64_t> indices() const { return (*this)(epoch_); }

 private:
  int64_t n_, world_, rank_, size_, epoch_ = 0;
  DistributedOptions options_;
};

/// Options of MicroBatchSampler.
struct MicroBatchOptions {
  int64_t samples = 0;        ///< size of the dataset
  int64_t micro_batch = 1;    ///< samples of a micro-batch; give the DataLoader the same batch_size
  int64_t micro_batches = 1;  ///< micro-batches of a step, on all ranks; a multiple of world
  int64_t world = 1, rank = 0;
  bool shuffle = true;
  uint64_t seed = 0;
  bool interleaved = false;  ///< true: rank r gets micro-batches r, r + world, ... of a step (for ZeRO 2 and 3)
  /// True: drop an incomplete last step of an epoch; false: fill it up with the epoch's first samples.
  bool drop_last = true;
  Sampler order = {};  ///< replaces `shuffle`: the indices of a whole epoch, the same on every rank
};

/// A step takes the next M = micro_batches micro-batches of the epoch, of which rank r gets those from r*M/world to
/// (r+1)*M/world - 1. A micro-batch's samples do not depend on the number of ranks: results can match bit for bit.
/// If the epoch's last samples do not fill a step, they are left out or the step is filled up: see drop_last.
class MicroBatchSampler {
 public:
  /// Error unless micro_batches is a multiple of world and the dataset has enough samples for one step.
  explicit MicroBatchSampler(MicroBatchOptions options);
  /// Optimizer steps of an epoch.
  int64_t steps() const {
    const int64_t step = options_.micro_batch * options_.micro_batches;
    return (options_.samples + (options_.drop_last ? 0 : step - 1)) / step;
  }
  /// The indices of this rank in an epoch, micro-batch after micro-batch.
  std::vector<int64_t> operator()(int64_t epoch) const;

 private:
  MicroBatchOptions options_;
};

/// The division of an epoch of an endless dataset, which has a fixed number of records, among ranks.
struct StreamSampling {
  int64_t samples = 0;      ///< samples of an epoch, on all ranks; a multiple of the samples of a step
  int64_t micro_batch = 1;  ///< this and the next fields: see MicroBatchOptions
  int64_t micro_batches = 1;
  int64_t world = 1, rank = 0;
  bool interleaved = false;
};
/// Makes a sampler of an endless dataset for a DataLoader: epoch e is the records from e * samples to
/// (e + 1) * samples - 1. The loader's state then also resumes the dataset.
Sampler stream_sampler(const StreamSampling& options);

}  // namespace lockstep::data
