// DataLoader: the part that does not depend on the sample type. See loader.h.
#include "data/loader.h"

#include <algorithm>
#include <exception>

#include "data/draw.h"
#include "data/prefetch.h"
#include "trace/trace.h"

namespace lockstep::data {

LoopDepth& loop_depth() {
  thread_local LoopDepth of_thread;
  return of_thread;
}

namespace detail {

LoaderProgress::LoaderProgress(int64_t dataset_size, int64_t batch_size, bool shuffle, Sampler sampler, bool drop_last,
                               int workers, int prefetch, bool in_order, std::optional<uint64_t> seed, double timeout,
                               int64_t world)
    : dataset_size_(dataset_size),
      batch_size_(batch_size),
      world_(world),
      drop_last_(drop_last),
      in_order_(in_order || workers == 0) {
  LOCKSTEP_CHECK(batch_size >= 1, "[DataLoader] expected batch_size >= 1, got ", batch_size);
  LOCKSTEP_CHECK(workers >= 0, "[DataLoader] expected workers >= 0, got ", workers);
  LOCKSTEP_CHECK(prefetch >= 0, "[DataLoader] expected prefetch >= 0, got ", prefetch);
  LOCKSTEP_CHECK(prefetch == 0 || workers > 0, "[DataLoader] expected workers >= 1 for prefetch ", prefetch,
                 ", got 0: without workers no batch is made ahead");
  LOCKSTEP_CHECK(timeout >= 0, "[DataLoader] expected timeout >= 0, got ", timeout);
  LOCKSTEP_CHECK(
      timeout == 0 || workers > 0,
      "[DataLoader] expected workers >= 1 for a timeout, got 0: without workers there is nothing to wait for");
  LOCKSTEP_CHECK(world >= 1, "[DataLoader] expected world >= 1, got ", world);
  LOCKSTEP_CHECK(!(sampler && shuffle),
                 "[DataLoader] expected shuffle or a sampler, got both: the sampler decides the order");
  LOCKSTEP_CHECK(world == 1 || sampler, "[DataLoader] expected a sampler that divides the epoch among ", world,
                 " ranks (world), got none; give a DistributedSampler");
  LOCKSTEP_CHECK(
      sampler || dataset_size < endless_samples,
      "[DataLoader] expected a sampler for an endless dataset, got none: stream_sampler() defines its epochs");
  seed_ = seed ? *seed : random_state().seed;
  if (const uint64_t stream = seed ? 0 : next_stream())  // the first loader uses the seed unchanged
    seed_ = seed_of(seed_, stream);
  has_seeded_sampler_ = !sampler && shuffle;
  if (sampler) sampler_ = std::move(sampler);
  else if (!shuffle) sampler_ = SequentialSampler(dataset_size);
  batches_ = count(sampler_ ? int64_t(sampler_(0).size()) : dataset_size);
}

int64_t LoaderProgress::start(std::vector<int64_t>& indices) {
  const int64_t epoch = fresh_ ? epoch_ : epoch_ + 1;
  indices = has_seeded_sampler_ ? permutation(dataset_size_, seed_, epoch) : sampler_(epoch);
  for (const int64_t index : indices) {
    LOCKSTEP_CHECK(index >= 0 && index < dataset_size_, "[DataLoader] expected indices from 0 to ", dataset_size_ - 1,
                   ", got ", index, " from the sampler; correct the sampler");
  }
  if (!fresh_) position_ = 0;
  epoch_ = epoch;
  batches_ = count(int64_t(indices.size()));
  fresh_ = false;
  ++loop_depth().now;
  return ++loop_;
}

void LoaderProgress::finish(int64_t loop) {
  LoopDepth& depth = loop_depth();
  depth.least = std::min(depth.least, --depth.now);
  if (loop != loop_ || fresh_) return;
  set_epoch(epoch_ + 1);
}

void LoaderProgress::set_epoch(int64_t epoch) {
  LOCKSTEP_CHECK(epoch >= 0, "[DataLoader] expected an epoch >= 0, got ", epoch);
  epoch_ = epoch;
  position_ = 0;
  fresh_ = true;
  ++loop_;  // a loop that is still running no longer moves the position
}

LoaderState LoaderProgress::state() const {
  LOCKSTEP_CHECK(in_order_,
                 "[DataLoader] expected in_order = true for a state that can be resumed: out-of-order batches have no "
                 "position to resume from");
  return {.seed = seed_, .epoch = epoch_, .samples = position_ * batch_size_ * world_, .dataset_size = dataset_size_};
}

void LoaderProgress::load_state(const LoaderState& state) {
  LOCKSTEP_CHECK(in_order_, "[DataLoader] expected in_order = true to resume a state, got in_order = false");
  LOCKSTEP_CHECK(state.dataset_size == dataset_size_, "[DataLoader] expected the state of a dataset of ", dataset_size_,
                 " samples, got one of ", state.dataset_size, "; resume with the dataset of that run");
  LOCKSTEP_CHECK(state.epoch >= 0 && state.samples >= 0, "[DataLoader] expected epoch and samples >= 0, got ",
                 state.epoch, " and ", state.samples, "; load what state() has returned");
  const int64_t step = batch_size_ * world_;
  const bool at_end = state.samples / step >= batches_;
  LOCKSTEP_CHECK(at_end || state.samples % step == 0,
                 "[DataLoader] expected a state at a multiple of batch_size x world = ", step, " samples, got ",
                 state.samples, "; resume with the batch_size and world of that run");
  set_epoch(state.epoch);
  seed_ = state.seed;
  position_ = std::min(state.samples / step, batches_);
}

LoaderLoop::LoaderLoop(std::shared_ptr<LoaderProgress> progress, int64_t loop, Make make, int workers, int64_t ahead,
                       bool in_order, double timeout)
    : progress_(std::move(progress)),
      make_(std::move(make)),
      loop_(loop),
      last_(progress_->batches()),
      next_(progress_->position()) {
  if (workers > 0 && next_ < last_)
    threads_ =
        std::make_unique<PrefetchThreads>(make_, next_, last_, PrefetchOptions{workers, ahead, in_order, timeout});
}
LoaderLoop::~LoaderLoop() = default;

void LoaderLoop::fetch() {
  const trace::Scope scope("next batch", trace::Category::data);
  batch_.reset();
  if (threads_) batch_ = threads_->next();
  else if (next_ < last_) batch_ = make_here();
  if (batch_) progress_->advance(loop_);
  else progress_->finish(loop_);
}

std::shared_ptr<void> LoaderLoop::make_here() {
  std::atomic<int64_t> at{-1};
  try {
    return make_(next_++, at);
  } catch (const std::exception& error) {
    next_ = last_;
    fail(str("[data loader] batch ", progress_->position(), ", sample ", at.load(), ": ", error.what()));
  }
}

}  // namespace detail

template class DataLoader<Example>;

}  // namespace lockstep::data
