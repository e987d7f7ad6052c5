// local_control.cpp: the control plane of ranks that are threads. See local_control.h.
#include "dist/local_control.h"

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>

#include "dist/net.h"
#include "dist/rank_table.h"

namespace lockstep::dist {
namespace {

using Clock = std::chrono::steady_clock;

class LocalControl;

// State that the ranks, which are threads, share. A RankTable detects failures, as it does for processes. It never
// finds a silent rank here: if the process stops, all ranks stop.
struct LocalJob {
  LocalJob(int ranks, double heartbeat) : rank_table(ranks, heartbeat), doing(size_t(ranks)), controls(size_t(ranks)) {}
  double now() const { return Seconds(Clock::now() - start).count(); }
  /// Passes the activity of each rank to the rank table. begin() and end() only store the activity in `doing`.
  void look() {
    for (size_t r = 0; r < doing.size(); ++r) {
      rank_table.heard(int(r), now());
      if (!rank_table.has_left(int(r))) rank_table.doing(int(r), doing[r], false, now());
    }
  }

  std::mutex mutex;
  std::condition_variable changed;
  const Clock::time_point start = Clock::now();
  RankTable rank_table;
  std::vector<Activity> doing;
  std::vector<LocalControl*> controls;  // null once destroyed
  std::map<std::string, std::string> values;
  std::map<std::string, std::set<int>> barriers;
  std::optional<DistError> failure;
};

class LocalControl final : public Control {
 public:
  LocalControl(std::shared_ptr<LocalJob> job, Rendezvous place) : job_(std::move(job)), place_(std::move(place)) {}
  ~LocalControl() override {
    leave();
    const std::lock_guard lock(job_->mutex);
    job_->controls[size_t(place_.rank)] = nullptr;
  }

  const Rendezvous& place() const override { return place_; }
  const std::string& own_address() const override { return address_; }
  const std::string& host() const override { return host_; }

  void set(const std::string& key, const std::string& value) override {
    const std::lock_guard lock(job_->mutex);
    job_->values[key] = value;
    job_->changed.notify_all();
  }

  std::string get(const std::string& key, Seconds timeout) override {
    std::unique_lock lock(job_->mutex);
    const bool there = wait(lock, timeout, [&] { return job_->values.contains(key); });
    if (!there)
      throw DistError(Fault::timeout, -1,
                      str("[store] waited ", timeout.count(), " s for the key \"", key,
                          "\", which no rank has set; call set() on some rank, or get() with a longer timeout"));
    return job_->values[key];
  }

  std::optional<std::string> try_get(const std::string& key) override {
    const std::lock_guard lock(job_->mutex);
    const auto found = job_->values.find(key);
    return found == job_->values.end() ? std::nullopt : std::optional(found->second);
  }

  int64_t add(const std::string& key, int64_t delta) override {
    const std::lock_guard lock(job_->mutex);
    const int64_t value = added(key, job_->values.contains(key) ? job_->values[key] : "0", delta, place_.rank);
    job_->values[key] = std::to_string(value);
    job_->changed.notify_all();
    return value;
  }

  void barrier(const std::string& name, const std::vector<int>& world_ranks, Seconds timeout) override {
    std::unique_lock lock(job_->mutex);
    // Barriers may share a name, so the key also holds the number of barriers of this name that this rank has passed.
    std::set<int>& here = job_->barriers[str(name, '\n', rounds_[name]++)];
    here.insert(place_.rank);
    job_->changed.notify_all();
    const auto all = [&] { return here.size() >= world_ranks.size(); };
    const auto gone = [&] {
      std::vector<int> ranks;
      for (const int r : world_ranks)
        if (job_->rank_table.has_left(r) && !here.contains(r)) ranks.push_back(r);
      return ranks;
    };
    if (!wait(lock, timeout, [&] { return all() || !gone().empty(); })) {
      std::vector<int> missing;
      for (const int r : world_ranks)
        if (!here.contains(r)) missing.push_back(r);
      throw DistError(Fault::timeout, -1,
                      str("[barrier] waited ", timeout.count(), " s at barrier '", name,
                          "'; missing ranks: ", text_of(missing), "; call barrier() on them too"));
    }
    if (!all()) throw fail(job_->rank_table.gone_from("barrier '" + name + "'", place_.rank, gone()));
  }

  [[noreturn]] void raise() const override {
    const std::lock_guard lock(job_->mutex);
    throw *job_->failure;
  }

  DistError report(Fault fault, int rank, const std::string& message) override {
    std::unique_lock lock(job_->mutex);
    if ((fault == Fault::rank_failed || fault == Fault::rank_silent) && rank >= 0 && rank != place_.rank) {
      // Another rank seems to have failed. Wait a little for that rank's own report, which explains the cause better.
      // If none comes, check whether that rank has left the job.
      job_->changed.wait_for(lock, std::min(place_.heartbeat, Seconds(0.3)), [&] { return job_->failure.has_value(); });
      job_->look();
      if (!job_->failure && job_->rank_table.has_left(rank)) return fail(job_->rank_table.gone(place_.rank, rank));
    }
    return fail({fault, rank, str("[rank ", place_.rank, "] ", message)});
  }

  void begin(const Activity& activity) override {
    const std::lock_guard lock(job_->mutex);
    Activity& own = job_->doing[size_t(place_.rank)];
    own = activity;
    own.step = step_;
    own.waiting = true;
    own.waits_for = -1;
    own.messages = 0;
  }

  void waits(int peer, uint64_t messages, bool is_send) override {
    const std::lock_guard lock(job_->mutex);
    Activity& own = job_->doing[size_t(place_.rank)];
    own.waits_for = peer;
    own.messages = messages;
    own.is_send = is_send;
    if (job_->failure) return;
    job_->look();
    job_->rank_table.doing(place_.rank, own, true, job_->now());
    if (const auto found = job_->rank_table.judge(job_->now())) fail(*found);
  }

  void end() override {
    const std::lock_guard lock(job_->mutex);
    Activity& own = job_->doing[size_t(place_.rank)];
    own.waiting = false;
    own.waits_for = -1;
    if (own.is_collective) completed_[own.group] = ++own.completed;
  }

  void set_step(uint64_t step) override {
    const std::lock_guard lock(job_->mutex);
    job_->doing[size_t(place_.rank)].step = step_ = step;
  }

  std::string explain(const std::vector<int>& world_ranks) override {
    const std::lock_guard lock(job_->mutex);
    job_->look();
    return job_->rank_table.explain(world_ranks);
  }

  void leave() override {
    const std::lock_guard lock(job_->mutex);
    if (job_->rank_table.has_left(place_.rank)) return;
    job_->look();
    job_->rank_table.left(place_.rank, completed_, job_->now());
    job_->changed.notify_all();
  }

 private:
  // Waits until ready() is true. Returns false at the timeout, and throws if the job has failed.
  template <class Ready> bool wait(std::unique_lock<std::mutex>& lock, Seconds timeout, Ready ready) {
    const auto limit = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::min(timeout, Seconds(1e8)));
    const bool done = job_->changed.wait_until(lock, limit, [&] { return job_->failure || ready(); });
    if (job_->failure) throw *job_->failure;
    return done;
  }

  DistError fail(const DistError& failure) {
    if (!job_->failure) {
      job_->failure = failure;
      for (LocalControl* control : job_->controls)
        if (control) control->failed_.store(true, std::memory_order_release);
      job_->changed.notify_all();
    }
    return *job_->failure;
  }

  friend std::vector<std::shared_ptr<Control>> lockstep::dist::local_controls(int ranks, Rendezvous place);

  const std::shared_ptr<LocalJob> job_;
  const Rendezvous place_;
  const std::string address_ = "127.0.0.1", host_ = str("process ", getpid());
  std::map<std::string, uint64_t> completed_;  // number of collectives, by group
  std::map<std::string, uint64_t> rounds_;     // number of barriers passed, by name
};

}  // namespace

std::vector<std::shared_ptr<Control>> local_controls(int ranks, Rendezvous place) {
  LOCKSTEP_CHECK(ranks >= 1, "[control] expected at least one rank, got ", ranks);
  auto job = std::make_shared<LocalJob>(ranks, place.heartbeat.count());
  place.world_size = place.local_world_size = ranks;
  std::vector<std::shared_ptr<Control>> all;
  for (int r = 0; r < ranks; ++r) {
    place.rank = place.local_rank = r;
    job->rank_table.sit(
        {.rank = r, .world_size = ranks, .pid = uint32_t(getpid()), .host = "this process", .job = place.job},
        job->now());
    auto control = std::make_shared<LocalControl>(job, place);
    job->controls[size_t(r)] = control.get();
    all.push_back(std::move(control));
  }
  return all;
}

}  // namespace lockstep::dist
