#pragma once
// DataLoader: batches of a dataset, shuffled, made ahead by threads, in an order that can be saved and resumed exactly.
//
//   for (auto& [x, y] : DataLoader(train, {.batch_size = 128, .shuffle = true, .workers = 2})) ...
//
// Every loop is one epoch; the next loop is the next epoch, in another order. Leaving a loop early ends its epoch.
#include <iterator>

#include "data/dataset.h"
#include "data/files.h"
#include "data/prefetch.h"
#include "data/sampler.h"
#include "tensor/random_scope.h"

namespace lockstep::data {

template <class S, class B = S> struct LoaderOptions {
  int64_t batch_size = 1;
  bool shuffle = false;
  Sampler sampler;                           ///< instead of shuffle: which samples, in which order
  bool drop_last = false;                    ///< leave out a last batch that is not full
  int workers = 0;                           ///< threads; 0 makes batches in the loop itself
  int prefetch = 0;                          ///< batches that each worker makes ahead; 0 means 2
  std::function<B(std::vector<S>)> collate;  ///< samples to a batch; may draw; default: data::collate
  bool in_order = true;                      ///< false: batches come as they are ready, and there is no state to save
  /// Seeds shuffling and random numbers in get(). By default the first loader after manual_seed() takes its seed. Each
  /// later one takes a seed made of that and of its own number, so that two loaders differ.
  std::optional<uint64_t> seed;
  double timeout = 0;  ///< seconds to wait for a batch from a worker; 0 is for ever
  int64_t world = 1;   ///< ranks that read the same epoch through their samplers: the state counts samples of all
};

/// Where a loader stands, after the batches that its loop has been given. Plain numbers, to be saved in a checkpoint.
struct LoaderState {
  uint64_t seed = 0;
  int64_t epoch = 0;
  int64_t samples = 0;  ///< of this epoch that were given out, over all ranks: holds for another world or batch size
  int64_t dataset_size = 0;
  friend bool operator==(const LoaderState&, const LoaderState&) = default;
};

/// Loops over loaders that this thread has begun, less those that came to their end; and the least number of them since
/// whoever looks at it set it to `now`.
struct LoopDepth {
  int64_t now = 0, least = 0;
};
LoopDepth& loop_depth();

namespace detail {

/// What does not depend on the type of samples: options, epochs, positions. Shared by a loader and its loops.
class LoaderProgress {
 public:
  LoaderProgress(int64_t dataset_size, int64_t batch_size, bool shuffle, Sampler sampler, bool drop_last, int workers,
                 int prefetch, bool in_order, std::optional<uint64_t> seed, double timeout, int64_t world);

  int64_t batches() const { return batches_; }
  int64_t epoch() const { return epoch_; }
  int64_t position() const { return position_; }
  uint64_t seed() const { return seed_; }
  /// Starts the next loop (or goes on with a loaded one); gives its number, and its indices.
  int64_t start(std::vector<int64_t>& indices);
  /// Loop number `loop` was given a batch, or came to its end. A loop that is not the newest changes nothing.
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
  Sampler sampler_;  // empty: by shuffle
  uint64_t seed_;
  int64_t batches_ = 0, epoch_ = 0, position_ = 0, loop_ = 0;
  bool fresh_ = true;  // the next loop takes epoch_ and position_ as they are
};

}  // namespace detail

template <class S = Example, class B = S> class DataLoader {
 public:
  using Options = LoaderOptions<S, B>;

  template <IsDataset D>
  explicit DataLoader(const D& dataset, Options options = {})
      : DataLoader(DatasetPtr<S>(share(dataset)), std::move(options)) {}
  explicit DataLoader(DatasetPtr<S> dataset, Options options = {})
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
        options_.collate = [](std::vector<S> samples) { return data::collate(samples); }, default_collate_ = true;
    }
    LOCKSTEP_CHECK(options_.collate, "[DataLoader] expected a collate function: samples of this type have none");
  }

  /// One pass over the batches of an epoch. Destroying it stops and joins its threads.
  class Iterator {
   public:
    B& operator*() const { return *run_->batch; }
    B* operator->() const { return &*run_->batch; }
    Iterator& operator++() { return fetch(), *this; }
    bool operator==(std::default_sentinel_t) const { return !run_->batch.has_value(); }

   private:
    friend DataLoader;
    struct Run {
      typename Prefetcher<B>::Make make;
      std::shared_ptr<detail::LoaderProgress> progress;
      int64_t loop = 0, next = 0, last = 0;
      std::unique_ptr<Prefetcher<B>> prefetcher;
      std::optional<B> batch;
    };

    void fetch() {
      const trace::Scope scope("next batch", trace::Category::data);
      Run& run = *run_;
      run.batch.reset();
      if (run.prefetcher) run.batch = run.prefetcher->next();
      else if (run.next < run.last) run.batch.emplace(make_here(run));
      if (run.batch) run.progress->advance(run.loop);
      else run.progress->finish(run.loop);
    }
    static B make_here(Run& run) {
      std::atomic<int64_t> at{-1};
      try {
        return run.make(run.next++, at);
      } catch (const std::exception& error) {
        run.next = run.last;
        fail(str("[data loader] batch ", run.progress->position(), ", sample ", at.load(), ": ", error.what()));
      }
    }
    std::shared_ptr<Run> run_;
  };

  /// Starts an epoch: the first, the next, or the rest of the one that load_state() or set_epoch() named.
  Iterator begin() {
    auto run = std::make_shared<typename Iterator::Run>();
    auto indices = std::make_shared<std::vector<int64_t>>();
    run->loop = progress_->start(*indices);
    run->next = progress_->position();
    run->last = progress_->batches();
    run->progress = progress_;
    // Owns all that it uses: a worker may outlive the loop and the loader when it is stuck.
    run->make = [dataset = dataset_, collate = options_.collate, by_rows = default_collate_, size = options_.batch_size,
                 indices,
                 key = RandomState{.seed = progress_->seed() ^ 0x64617461u, .step = uint64_t(progress_->epoch())}](
                    int64_t batch, std::atomic<int64_t>& at) {
      const auto wanted = std::span<const int64_t>(*indices).subspan(size_t(batch * size));
      return make_batch(*dataset, collate, by_rows, wanted.first(std::min(wanted.size(), size_t(size))), key, at);
    };
    const Options& o = options_;
    const int64_t ahead = int64_t(o.workers) * (o.prefetch ? o.prefetch : 2);
    if (o.workers > 0 && run->next < run->last)
      run->prefetcher = std::make_unique<Prefetcher<B>>(run->make, run->next, run->last,
                                                        PrefetchOptions{o.workers, ahead, o.in_order, o.timeout});
    Iterator iterator;
    iterator.run_ = std::move(run);
    iterator.fetch();
    return iterator;
  }
  std::default_sentinel_t end() const { return {}; }

  int64_t size() const { return progress_->batches(); }           ///< batches of an epoch
  int64_t epoch() const { return progress_->epoch(); }            ///< of the loop that runs or comes next
  void set_epoch(int64_t epoch) { progress_->set_epoch(epoch); }  ///< of the next loop
  const DatasetPtr<S>& dataset() const { return dataset_; }
  const Options& options() const { return options_; }
  uint64_t seed() const { return progress_->seed(); }
  /// A loader of the same samples, made in the same way, that deals otherwise: full batches of what the sampler says.
  DataLoader dealt(Sampler sampler, int64_t batch_size, int64_t world) const {
    Options o = options_;
    if (default_collate_) o.collate = nullptr;
    o.batch_size = batch_size, o.sampler = std::move(sampler), o.world = world;
    o.shuffle = o.drop_last = false;
    o.seed = seed();
    return DataLoader(dataset_, std::move(o));
  }
  /// Counts the batches that a loop has been given, not those made ahead: resuming skips nothing and repeats nothing.
  LoaderState state() const { return progress_->state(); }
  /// The next loop goes on there. Error when the state is of another dataset.
  void load_state(const LoaderState& state) { progress_->load_state(state); }

 private:
  template <class Collate>
  static B make_batch(const Dataset<S>& dataset, const Collate& collate, bool by_rows, std::span<const int64_t> wanted,
                      RandomState key, std::atomic<int64_t>& at) {
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
    key.call = uint64_t(1) << 32;  // what collate draws is not what the first sample drew
    const RandomScope scope(key);
    B batch = collate(std::move(samples));
    check_mapped_files();
    return batch;
  }

  DatasetPtr<S> dataset_;
  Options options_;
  bool default_collate_ = false;
  std::shared_ptr<detail::LoaderProgress> progress_;
};

template <IsDataset D> DataLoader(const D&) -> DataLoader<typename D::Sample>;
template <IsDataset D> DataLoader(const D&, LoaderOptions<typename D::Sample>) -> DataLoader<typename D::Sample>;

/// Batches without end: after the last one of an epoch comes the first of the next. The loader must outlive it, and
/// keeps the state.
template <class S, class B = S> class RepeatingLoader {
 public:
  explicit RepeatingLoader(DataLoader<S, B>& loader) : loader_(&loader) {
    LOCKSTEP_CHECK(loader.size() > 0, "[RepeatingLoader] expected a loader with at least one batch, got an empty one");
  }
  B& next() {
    if (iterator_) ++*iterator_;
    // A state loaded at the end of an epoch gives one empty loop; two are an epoch without batches.
    for (int tries = 0; !iterator_ || *iterator_ == std::default_sentinel; ++tries) {
      LOCKSTEP_CHECK(tries < 2, "[RepeatingLoader] expected batches in epoch ", loader_->epoch(), ", got none");
      iterator_.emplace(loader_->begin());
    }
    return **iterator_;
  }

 private:
  DataLoader<S, B>* loader_;
  std::optional<typename DataLoader<S, B>::Iterator> iterator_;
};

}  // namespace lockstep::data
