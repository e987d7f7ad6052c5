#pragma once
// Prefetcher: threads make items ahead of a reader, who receives them in order.
//
//   Workers claim jobs 0, 1, 2, ... and stay at most `ahead` jobs in front of the reader:
//
//     worker 0:  [job 0 ][job 2      ][job 4]
//     worker 1:  [job 1    ][job 3]  ...          ready: {1, 3}   the reader waits for 2
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

namespace lockstep::data {

/// Options of a Prefetcher.
struct PrefetchOptions {
  int workers = 1;       ///< number of threads
  int64_t ahead = 2;     ///< most items in front of the reader, finished or in progress
  bool in_order = true;  ///< true: items come in order; false: as soon as they are ready
  double timeout = 0;    ///< seconds that the reader waits for an item; 0: no limit
};

namespace detail {

/// The threads of a Prefetcher, and the items that they have made, which may have any type.
class PrefetchThreads {
 public:
  /// Makes item `job`; never null.
  using Make = std::function<std::shared_ptr<void>(int64_t job, std::atomic<int64_t>& at)>;
  PrefetchThreads(Make make, int64_t first, int64_t last, PrefetchOptions options);
  ~PrefetchThreads();
  PrefetchThreads(const PrefetchThreads&) = delete;
  std::shared_ptr<void> next();  ///< null after the last item

 private:
  struct State;
  struct Workers;
  void stop();
  [[noreturn]] void fail_late();

  std::shared_ptr<State> state_;
  std::unique_ptr<Workers> workers_;
};

}  // namespace detail

/// Makes items on worker threads, ahead of next().
template <class Item> class Prefetcher {
 public:
  /// A function that makes item `job`, on any thread, and stores the current sample's index in `at`, for Errors.
  using Make = std::function<Item(int64_t job, std::atomic<int64_t>& at)>;

  /// Makes jobs first .. last-1. The destructor waits for items in progress, and drops them.
  Prefetcher(Make make, int64_t first, int64_t last, PrefetchOptions options)
      : threads_(
            [make = std::move(make)](int64_t job, std::atomic<int64_t>& at) -> std::shared_ptr<void> {
              return std::make_shared<Item>(make(job, at));
            },
            first, last, options) {}

  /// The next item, or none after the last. An exception in a worker is rethrown here as an Error that names worker and
  /// sample.
  std::optional<Item> next() {
    const std::shared_ptr<void> item = threads_.next();
    if (!item) return {};
    return std::move(*static_cast<Item*>(item.get()));
  }

 private:
  detail::PrefetchThreads threads_;
};

}  // namespace lockstep::data
