#pragma once
// Samplers: the order in which an epoch visits a dataset. A sampler is a pure function from the epoch to a list of
// indices, so that any state of a run can be made again from two numbers.
//
//   8 samples, 2 ranks, micro-batches of 2, 2 micro-batches a step:
//     DistributedSampler   rank 0: 0 2 4 6      rank 1: 1 3 5 7      deals samples to ranks, as PyTorch does
//     MicroBatchSampler    rank 0: 0 1 | 4 5    rank 1: 2 3 | 6 7    deals micro-batches: their content does not depend
//     on the ranks
#include <cstdint>
#include <functional>
#include <vector>

namespace lockstep::data {

/// Indices of epoch e, in order. Any callable of this form will do.
using Sampler = std::function<std::vector<int64_t>(int64_t epoch)>;

/// A permutation of 0 .. n-1 that depends on (n, seed, epoch) only.
std::vector<int64_t> permutation(int64_t n, uint64_t seed, int64_t epoch = 0);

/// 0 .. n-1.
class SequentialSampler {
 public:
  explicit SequentialSampler(int64_t n);
  std::vector<int64_t> operator()(int64_t epoch = 0) const;

 private:
  int64_t n_;
};

/// Another permutation every epoch.
class RandomSampler {
 public:
  explicit RandomSampler(int64_t n, uint64_t seed = 0);
  std::vector<int64_t> operator()(int64_t epoch) const { return permutation(n_, seed_, epoch); }

 private:
  int64_t n_;
  uint64_t seed_;
};

struct DistributedOptions {
  bool shuffle = true;
  uint64_t seed = 0;       ///< the same on every rank
  bool drop_last = false;  ///< every rank gets the same number by leaving out the tail; else by repeating the head
  bool pad = true;  ///< false: neither; ranks differ by at most one sample and each sample is seen once, for evaluation
};

/// PyTorch's rule: the epoch's list, made a multiple of `world` long, is dealt like cards: rank r gets r, r + world,
/// ...
class DistributedSampler {
 public:
  DistributedSampler(int64_t n, int64_t world, int64_t rank, DistributedOptions options = {});
  int64_t size() const { return size_; }  ///< of this rank
  std::vector<int64_t> operator()(int64_t epoch) const;
  /// For use without a DataLoader, which passes its own epoch.
  void set_epoch(int64_t epoch) { epoch_ = epoch; }
  std::vector<int64_t> indices() const { return (*this)(epoch_); }

 private:
  int64_t n_, world_, rank_, size_, epoch_ = 0;
  DistributedOptions options_;
};

struct MicroBatchOptions {
  int64_t samples = 0;        ///< of the dataset
  int64_t micro_batch = 1;    ///< samples of a micro-batch; give the DataLoader the same batch_size
  int64_t micro_batches = 1;  ///< of a step, over all ranks; a multiple of world
  int64_t world = 1, rank = 0;
  bool shuffle = true;
  uint64_t seed = 0;
  bool interleaved = false;  ///< rank r gets micro-batches r, r + world, ... of a step (ZeRO 2 and 3)
  bool drop_last = true;     ///< false: the last step of an epoch is filled up from the epoch's head
};

/// Step s is micro-batches 0 .. M-1 of consecutive samples of the epoch's order; rank r gets those from r*M/world to
/// (r+1)*M/world. Every world sees the same micro-batches, which keeps a run's bits. The tail short of a whole step is
/// left out (another epoch leaves out others), or filled up.
class MicroBatchSampler {
 public:
  explicit MicroBatchSampler(MicroBatchOptions options);
  int64_t steps() const {
    const int64_t step = options_.micro_batch * options_.micro_batches;
    return (options_.samples + (options_.drop_last ? 0 : step - 1)) / step;
  }
  std::vector<int64_t> operator()(int64_t epoch) const;

 private:
  MicroBatchOptions options_;
};

}  // namespace lockstep::data
