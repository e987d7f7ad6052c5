// The threads of a Prefetcher. See prefetch.h.
#include "data/prefetch.h"

#include <chrono>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/threads.h"
#include "tensor/maker.h"
#include "trace/trace.h"

namespace lockstep::data::detail {

namespace {

struct Result {
  std::shared_ptr<void> item;
  std::string error;  // if there is no item
};

}  // namespace

struct PrefetchThreads::State {
  Make make;
  PrefetchOptions options;
  std::mutex mutex;
  std::condition_variable changed;
  int64_t claimed = 0, taken = 0, last = 0;
  bool stopped = false;
  std::map<int64_t, Result> ready;
  std::vector<std::atomic<int64_t>> at;  // sample that each worker works on, or -1

  void work(int worker);
};

struct PrefetchThreads::Workers {
  std::vector<std::thread> threads;
  Maker maker;
};

PrefetchThreads::PrefetchThreads(Make make, int64_t first, int64_t last, PrefetchOptions options)
    : state_(std::make_shared<State>()), workers_(std::make_unique<Workers>()) {
  state_->make = std::move(make);
  state_->claimed = state_->taken = first;
  state_->last = last;
  state_->options = options;
  state_->at = std::vector<std::atomic<int64_t>>(size_t(options.workers));
  for (auto& at : state_->at) at = -1;
  for (int worker = 0; worker < options.workers; ++worker)
    workers_->threads.emplace_back([state = state_, worker, limit = get_threads(), rank = trace::rank_of_thread()] {
      // Inherit the creator's thread limit: a rank that is a thread has only its share of the cores.
      const ThreadLimit shared(limit);
      const trace::ThreadScope traced(rank, str("data loader ", worker).c_str());
      state->work(worker);
    });
}

PrefetchThreads::~PrefetchThreads() {
  if (!workers_->maker.is_here()) {  // a forked child has no worker threads to join or detach
    never_destroy(std::move(state_));
    never_destroy(std::make_shared<std::vector<std::thread>>(std::move(workers_->threads)));
    return;
  }
  stop();
  for (auto& thread : workers_->threads)
    if (thread.joinable()) thread.join();
}

std::shared_ptr<void> PrefetchThreads::next() {
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  if (s.taken == s.last || s.stopped) return {};
  const auto find = [&] { return s.options.in_order ? s.ready.find(s.taken) : s.ready.begin(); };
  const auto is_ready = [&] { return find() != s.ready.end(); };
  if (s.options.timeout <= 0) {
    s.changed.wait(lock, is_ready);
  } else if (!s.changed.wait_for(lock, std::chrono::duration<double>(s.options.timeout), is_ready)) {
    lock.unlock();
    fail_late();
  }
  Result result = std::move(find()->second);
  s.ready.erase(find());
  ++s.taken;
  lock.unlock();
  s.changed.notify_all();
  if (!result.item) {
    stop();
    lockstep::fail(result.error);
  }
  return std::move(result.item);
}

void PrefetchThreads::State::work(int worker) {
  auto& sample = at[size_t(worker)];
  std::unique_lock lock(mutex);
  for (;;) {
    changed.wait(lock, [&] { return stopped || claimed == last || claimed < taken + options.ahead; });
    if (stopped || claimed == last) return;
    const int64_t job = claimed++;
    lock.unlock();
    Result result;
    std::string what;
    try {
      const trace::Scope scope("make batch", trace::Category::data, {{"batch", job}});
      result.item = make(job, sample);
    } catch (const std::exception& error) { what = error.what(); } catch (...) {
      what = "an exception of unknown type; throw a std::exception with a text instead";
    }
    if (!result.item)
      result.error = str("[data loader] worker ", worker, ", batch ", job, ", sample ", sample.load(), ": ", what);
    sample = -1;
    lock.lock();
    ready.emplace(job, std::move(result));
    changed.notify_all();
  }
}

void PrefetchThreads::stop() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopped = true;
  }
  state_->changed.notify_all();
}

/// Raises the timeout Error. Detaches the workers, because a stuck worker cannot be joined.
void PrefetchThreads::fail_late() {
  std::string busy;
  for (size_t worker = 0; worker < state_->at.size(); ++worker)
    if (const int64_t sample = state_->at[worker]; sample >= 0)
      busy += str(busy.empty() ? "" : ", ", "worker ", worker, " at sample ", sample);
  const std::string message =
      str("[data loader] no batch after ", state_->options.timeout, " s: ", busy.empty() ? "no worker is busy" : busy);
  stop();
  for (auto& thread : workers_->threads) thread.detach();
  lockstep::fail(message + "; raise the timeout, or make get() of such samples faster");
}

}  // namespace lockstep::data::detail
