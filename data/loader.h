#pragma once
// DataLoader: batches of a dataset, shuffled, prefetched by threads, in an order that can be saved and resumed exactly.
//
//   for (auto& [x, y] : DataLoader(train, {.batch_size = 128, .shuffle = true, .workers = 2})) ...
//
// Every loop is one epoch, and the next loop is the next epoch, in another order. Leaving a loop early ends its epoch.
#include <algorithm>
#include <atomic>
#include <concepts>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "data/dataset.h"
#include "data/sampler.h"
#include "tensor/random.h"

namespace lockstep::data {

void check_mapped_files();  // files.h

/// Options of a DataLoader. S is a sample, B a batch.
template <class S, class B = S> struct LoaderOptions {
  int64_t batch_size = 1;  ///< samples in a batch
  bool shuffle = false;    ///< true: draw a new random order each epoch
  Sampler sampler = {};    ///< the samples of an epoch and their order; excludes shuffle
  bool drop_last = false;  ///< true: leave out the last batch of an epoch if it is not full
  int workers = 0;         ///< threads that make batches; 0: batches are made inside the loop
  int prefetch = 0;        ///< batches that each worker makes ahead; 0 means 2
  /// Makes a batch; may draw random numbers. Default: data::collate.
  std::function<B(std::vector<S>)> collate = {};
  /// True: batches come in the sampler's order; false: as soon as they are ready, and state() is an Error.
  bool in_order = true;
  /// Seeds shuffling and the random numbers of get() and collate. By default the first loader after manual_seed() takes
  /// that seed. Each later loader derives another seed from it, so that no two loaders draw the same.
  std::optional<uint64_t> seed = {};
  double timeout = 0;  ///< seconds to wait for a batch from a worker; 0: no limit
  int64_t world = 1;   ///< ranks that share an epoch through their samplers; the state counts the samples of all ranks
};

/// Position of a loader after the batches that its loop has received. Plain numbers, to be saved in a checkpoint.
struct LoaderState {
  uint64_t seed = 0;
  int64_t epoch = 0;
  int64_t samples = 0;  ///< given out in this epoch, on all ranks; load_state() takes multiples of batch_size * world
  int64_t dataset_size = 0;
  friend bool operator==(const LoaderState&, const LoaderState&) = default;
};

/// Counts a thread's running loops over DataLoaders. `now`: loops started and not finished. `least`: the minimum of
/// `now` since a reader last set least = now. If `least` has fallen since then, a loop has ended in the meantime.
struct LoopDepth {
  int64_t now = 0, least = 0;
};
/// The counts of this thread.
LoopDepth& loop_depth();

namespace detail {

/// The part of a DataLoader that does not depend on the sample type: its options, epoch, and position in the epoch. The
/// loader and all loops over it share one such object.
class LoaderProgress {
 public:
  LoaderProgress(int64_t dataset_size, int64_t batch_size, bool shuffle, Sampler sampler, bool drop_last, int workers,
                 int prefetch, bool in_order, std::optional<uint64_t> seed, double timeout, int64_t world);

  int64_t batches() const { return batches_; }
  int64_t epoch() const { return epoch_; }
  int64_t position() const { return position_; }
  uint64_t seed() const { return seed_; }
  /// Starts the next loop, or resumes the loaded state. Returns the loop's number and fills in the epoch's indices.
  int64_t start(std::vector<int64_t>& indices);
  /// Records that loop number `loop` received a batch (advance) or ended (finish). Only the newest loop counts.
  void advance(int64_t loop) {
    if (loop == loop_) ++position_;
  }
  void finish(int64_t loop);
  void set_epoch(int64_t epoch);
  LoaderState state() const;
  void load_state(const LoaderState& state);

 private:
  int64_t count(int64_t samples) const {
    return drop_last_ ? samples / batch_size_ : (samples + batch_size_ - 1) / batch_size_;
  }

  int64_t dataset_size_, batch_size_, world_;
  bool drop_last_, in_order_, has_seeded_sampler_;
  Sampler sampler_;  // empty: shuffle decides
  uint64_t seed_;
  int64_t batches_ = 0, epoch_ = 0, position_ = 0, loop_ = 0;
  bool fresh_ = true;  // true: the next loop starts at epoch_ and position_
};

class PrefetchThreads;

/// One loop over the batches of an epoch, of any type. Makes them inside the loop, or on threads ahead of it.
class LoaderLoop {
 public:
  /// Makes batch number `batch`; never null. Stores the current sample's index in `at`, for Errors.
  using Make = std::function<std::shared_ptr<void>(int64_t batch, std::atomic<int64_t>& at)>;
  /// loop: what progress->start() returned. ahead: most batches that threads have made before the loop gets them.
  LoaderLoop(std::shared_ptr<LoaderProgress> progress, int64_t loop, Make make, int workers, int64_t ahead,
             bool in_order, double timeout);
  ~LoaderLoop();
  void fetch();                                 ///< waits for the next batch
  void* batch() const { return batch_.get(); }  ///< the batch; null at the end of the epoch

 private:
  std::shared_ptr<void> make_here();
  const std::shared_ptr<LoaderProgress> progress_;
  const Make make_;
  const int64_t loop_, last_;
  int64_t next_;
  std::unique_ptr<PrefetchThreads> threads_;
  std::shared_ptr<void> batch_;
};

}  // namespace detail

/// Iterates over batches B of samples S. See the top of this file.
template <class S = Example, class B = S> class DataLoader {
 public:
  using Options = LoaderOptions<S, B>;  ///< LoaderOptions of these types

  /// Loads from a copy of the dataset. Error for invalid options, or without a collate function for S.
  template <IsDataset D>
  explicit DataLoader(const D& dataset, Options options = {})
      : DataLoader(DatasetPtr<S>(share(dataset)), std::move(options)) {}
  explicit DataLoader(DatasetPtr<S> dataset, Options options = {});

  /// One pass over the batches of an epoch. Destroying it stops and joins its threads.
  class Iterator {
   public:
    B& operator*() const { return *operator->(); }
    B* operator->() const { return static_cast<B*>(loop_->batch()); }
    Iterator& operator++() { return loop_->fetch(), *this; }  ///< waits for the next batch
    /// True at the end of the epoch.
    bool operator==(std::default_sentinel_t) const { return !loop_->batch(); }

   private:
    friend DataLoader;
    std::shared_ptr<detail::LoaderLoop> loop_;
  };

  /// Starts an epoch: the next one, or the (rest of the) epoch set by load_state() or set_epoch().
  Iterator begin();
  std::default_sentinel_t end() const { return {}; }  ///< end of the epoch

  int64_t size() const { return progress_->batches(); }           ///< batches in an epoch
  int64_t epoch() const { return progress_->epoch(); }            ///< the running epoch, or the next one if none runs
  void set_epoch(int64_t epoch) { progress_->set_epoch(epoch); }  ///< the epoch of the next loop
  const DatasetPtr<S>& dataset() const { return dataset_; }       ///< the source of samples
  const Options& options() const { return options_; }             ///< the constructor's options, with collate filled in
  uint64_t seed() const { return progress_->seed(); }             ///< the seed in use
  /// Returns a loader over the same dataset with the same seed and options, but with this sampler, this batch size and
  /// this number of ranks (world), and with neither shuffle nor drop_last.
  DataLoader dealt(Sampler sampler, int64_t batch_size, int64_t world) const;
  /// The position after the batches that the loop has received. Prefetched batches do not count, so a resumed run
  /// neither skips nor repeats samples.
  LoaderState state() const { return progress_->state(); }
  /// Makes the next loop resume at this state. Error if the state belongs to a dataset of another size.
  void load_state(const LoaderState& state) { progress_->load_state(state); }

 private:
  static B make_batch(const Dataset<S>& dataset, const std::function<B(std::vector<S>)>& collate, bool by_rows,
                      std::span<const int64_t> wanted, RandomState key, std::atomic<int64_t>& at);

  DatasetPtr<S> dataset_;
  Options options_;
  bool default_collate_ = false;
  std::shared_ptr<detail::LoaderProgress> progress_;
};

// Not inside of the class, so that they are not inline: the library has those of the default type.
template <class S, class B>
DataLoader<S, B>::DataLoader(DatasetPtr<S> dataset, Options options)
    : dataset_(std::move(dataset)), options_(std::move(options)) {
  const Options& o = options_;
  progress_ =
      std::make_shared<detail::LoaderProgress>(dataset_->size(), o.batch_size, o.shuffle, o.sampler, o.drop_last,
                                               o.workers, o.prefetch, o.in_order, o.seed, o.timeout, o.world);
  constexpr bool has_default = requires(std::vector<S> samples) {
    { data::collate(samples) } -> std::same_as<B>;
  };
  if constexpr (has_default) {
    if (!options_.collate)
      options_.collate = [](std::vector<S> all) { return data::collate(std::move(all)); }, default_collate_ = true;
  }
  LOCKSTEP_CHECK(
      options_.collate,
      "[DataLoader] expected a collate function: samples of this type have none; set LoaderOptions::collate");
}

template <class S, class B> typename DataLoader<S, B>::Iterator DataLoader<S, B>::begin() {
  auto indices = std::make_shared<std::vector<int64_t>>();
  const int64_t loop = progress_->start(*indices);
  const Options& o = options_;
  // The closure owns everything that it uses: a stuck worker may outlive the loop and the loader.
  auto make = [dataset = dataset_, collate = o.collate, by_rows = default_collate_, size = o.batch_size, indices,
               key = RandomState{.seed = progress_->seed() ^ 0x64617461u, .step = uint64_t(progress_->epoch())}](
                  int64_t batch, std::atomic<int64_t>& at) -> std::shared_ptr<void> {
    const auto wanted = std::span<const int64_t>(*indices).subspan(size_t(batch * size));
    return std::make_shared<B>(
        make_batch(*dataset, collate, by_rows, wanted.first(std::min(wanted.size(), size_t(size))), key, at));
  };
  Iterator iterator;
  iterator.loop_ =
      std::make_shared<detail::LoaderLoop>(progress_, loop, std::move(make), o.workers,
                                           int64_t(o.workers) * (o.prefetch ? o.prefetch : 2), o.in_order, o.timeout);
  iterator.loop_->fetch();
  return iterator;
}

/// Copies the options, and changes those that the caller gives.
template <class S, class B>
DataLoader<S, B> DataLoader<S, B>::dealt(Sampler sampler, int64_t batch_size, int64_t world) const {
  Options o = options_;
  if (default_collate_) o.collate = nullptr;
  o.batch_size = batch_size, o.sampler = std::move(sampler), o.world = world;
  o.shuffle = o.drop_last = false;
  o.seed = seed();
  return DataLoader(dataset_, std::move(o));
}

/// Reads the samples of a batch, as rows of the dataset if it can give these, and joins them.
template <class S, class B>
B DataLoader<S, B>::make_batch(const Dataset<S>& dataset, const std::function<B(std::vector<S>)>& collate, bool by_rows,
                               std::span<const int64_t> wanted, RandomState key, std::atomic<int64_t>& at) {
  if constexpr (std::same_as<S, B>) {
    if (by_rows) {
      at = wanted[0];
      key.micro_batch = uint64_t(wanted[0]);
      const RandomScope scope(key);
      if (auto batch = dataset.get_batch(wanted)) {
        check_mapped_files();
        return std::move(*batch);
      }
    }
  }
  std::vector<S> samples;
  for (const int64_t index : wanted) {
    at = index;
    key.micro_batch = uint64_t(index);
    const RandomScope scope(key);
    samples.push_back(dataset.get(index));
  }
  key.micro_batch = uint64_t(wanted[0]);
  key.call = uint64_t(1) << 32;  // collate must not draw the numbers of the first sample again
  const RandomScope scope(key);
  B batch = collate(std::move(samples));
  check_mapped_files();
  return batch;
}

extern template class DataLoader<Example>;

template <IsDataset D> DataLoader(const D&) -> DataLoader<typename D::Sample>;  ///< deduction guides
template <IsDataset D> DataLoader(const D&, LoaderOptions<typename D::Sample>) -> DataLoader<typename D::Sample>;

/// Endless batches: the first batch of the next epoch follows the last of this one. Uses the loader's state; the loader
/// must outlive this object.
template <class S, class B = S> class RepeatingLoader {
 public:
  /// Error if the loader has no batches.
  explicit RepeatingLoader(DataLoader<S, B>& loader) : loader_(&loader) {
    LOCKSTEP_CHECK(loader.size() > 0,
                   "[RepeatingLoader] expected a loader with a batch, got an empty one; add samples");
  }
  /// The next batch, valid until the next call.
  B& next() {
    if (iterator_) ++*iterator_;
    // A loop may be empty once: when the loader resumed at the end of an epoch. A second empty loop is an Error.
    for (int tries = 0; !iterator_ || *iterator_ == std::default_sentinel; ++tries) {
      LOCKSTEP_CHECK(tries < 2, "[RepeatingLoader] expected batches in epoch ", loader_->epoch(),
                     ", got none; check the sampler");
      iterator_.emplace(loader_->begin());
    }
    return **iterator_;
  }

 private:
  DataLoader<S, B>* loader_;
  std::optional<typename DataLoader<S, B>::Iterator> iterator_;
};

}  // namespace lockstep::data
