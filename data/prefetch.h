#pragma once
// Prefetcher: threads make items ahead of a reader, who receives them in order.
//
//   Workers claim jobs 0, 1, 2, ... and stay at most `ahead` jobs in front of the reader:
//
//     worker 0:  [job 0 ][job 2      ][job 4]
//     worker 1:  [job 1    ][job 3]  ...          ready: {1, 3}   the reader waits for 2
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/threads.h"
#include "tensor/maker.h"
#include "trace/trace.h"

namespace lockstep::data {

/// Options of a Prefetcher.
struct PrefetchOptions {
  int workers = 1;       ///< number of threads
  int64_t ahead = 2;     ///< most items in front of the reader, finished or in progress
  bool in_order = true;  ///< true: items come in order; false: as soon as they are ready
  double timeout = 0;    ///< seconds that the reader waits for an item; 0: no limit
};

/// Makes items on worker threads, ahead of next().
template <class Item> class Prefetcher {
 public:
  /// A function that makes item `job`, on any thread, and stores the current sample's index in `at`, for Errors.
  using Make = std::function<Item(int64_t job, std::atomic<int64_t>& at)>;

  /// Makes jobs first .. last-1.
  Prefetcher(Make make, int64_t first, int64_t last, PrefetchOptions options) : state_(std::make_shared<State>()) {
    state_->make = std::move(make);
    state_->claimed = state_->taken = first;
    state_->last = last;
    state_->options = options;
    state_->at = std::vector<std::atomic<int64_t>>(size_t(options.workers));
    for (auto& at : state_->at) at = -1;
    for (int worker = 0; worker < options.workers; ++worker)
      threads_.emplace_back([state = state_, worker, limit = get_threads(), rank = trace::rank_of_thread()] {
        // Inherit the creator's thread limit: a rank that is a thread has only its share of the cores.
        const ThreadLimit shared(limit);
        const trace::ThreadScope traced(rank, str("data loader ", worker).c_str());
        work(*state, worker);
      });
  }

  /// Waits for items in progress, and drops them.
  ~Prefetcher() {
    if (!maker_.is_here()) {  // a forked child has no worker threads to join or detach
      never_destroy(std::move(state_));
      never_destroy(std::make_shared<std::vector<std::thread>>(std::move(threads_)));
      return;
    }
    stop();
    for (auto& thread : threads_)
      if (thread.joinable()) thread.join();
  }
  Prefetcher(const Prefetcher&) = delete;

  /// The next item, or none after the last. An exception in a worker is rethrown here as an Error that names worker and
  /// sample.
  std::optional<Item> next() {
    State& s = *state_;
    std::unique_lock lock(s.mutex);
    if (s.taken == s.last || s.stopped) return {};
    const auto find = [&] { return s.options.in_order ? s.ready.find(s.taken) : s.ready.begin(); };
    const auto is_ready = [&] { return find() != s.ready.end(); };
    if (s.options.timeout <= 0) s.changed.wait(lock, is_ready);
    else if (!s.changed.wait_for(lock, std::chrono::duration<double>(s.options.timeout), is_ready)) fail_late(lock);
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

 private:
  struct Result {
    std::optional<Item> item;
    std::string error;
  };
  struct State {
    Make make;
    PrefetchOptions options;
    std::mutex mutex;
    std::condition_variable changed;
    int64_t claimed = 0, taken = 0, last = 0;
    bool stopped = false;
    std::map<int64_t, Result> ready;
    std::vector<std::atomic<int64_t>> at;  // sample that each worker works on, or -1
  };

  static void work(State& s, int worker) {
    auto& at = s.at[size_t(worker)];
    std::unique_lock lock(s.mutex);
    for (;;) {
      s.changed.wait(lock, [&] { return s.stopped || s.claimed == s.last || s.claimed < s.taken + s.options.ahead; });
      if (s.stopped || s.claimed == s.last) return;
      const int64_t job = s.claimed++;
      lock.unlock();
      Result result;
      std::string what;
      try {
        const trace::Scope scope("make batch", trace::Category::data, {{"batch", job}});
        result.item.emplace(s.make(job, at));
      } catch (const std::exception& error) { what = error.what(); } catch (...) {
        what = "an exception of unknown type";
      }
      if (!result.item)
        result.error = str("[data loader] worker ", worker, ", batch ", job, ", sample ", at.load(), ": ", what);
      at = -1;
      lock.lock();
      s.ready.emplace(job, std::move(result));
      s.changed.notify_all();
    }
  }

  void stop() {
    {
      const std::lock_guard lock(state_->mutex);
      state_->stopped = true;
    }
    state_->changed.notify_all();
  }

  /// Raises the timeout Error. Detaches the workers, because a stuck worker cannot be joined.
  [[noreturn]] void fail_late(std::unique_lock<std::mutex>& lock) {
    std::string busy;
    for (size_t worker = 0; worker < state_->at.size(); ++worker)
      if (const int64_t sample = state_->at[worker]; sample >= 0)
        busy += str(busy.empty() ? "" : ", ", "worker ", worker, " at sample ", sample);
    const std::string message = str("[data loader] no batch after ", state_->options.timeout,
                                    " s: ", busy.empty() ? "no worker is busy" : busy);
    lock.unlock();
    stop();
    for (auto& thread : threads_) thread.detach();
    lockstep::fail(message);
  }

  std::shared_ptr<State> state_;
  std::vector<std::thread> threads_;
  Maker maker_;
};

}  // namespace lockstep::data
