// watchdog.cpp: communicators, and the thread that supervises NCCL calls. See watchdog.h.
#include "dist/nccl/watchdog.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "base/environment.h"
#include "dist/net.h"
#include "tensor/backend.h"

namespace lockstep::dist {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Time limit for a communicator to shut down cleanly, and for streams to finish.
constexpr auto ending = std::chrono::seconds(10);

Seconds abort_limit() { return Seconds(environment_number("LOCKSTEP_NCCL_ABORT_TIMEOUT").value_or(60)); }

void pause(int round) {
  if (round < 100) std::this_thread::yield();
  else std::this_thread::sleep_for(std::chrono::microseconds(50));
}

// Number of ranks of this process on each device. Ranks on one device share its default stream: if one rank made that
// stream wait, all would wait, possibly for each other. So if a device has several ranks, they wait on the host.
std::array<std::atomic<int>, 64> users{};

}  // namespace

void check_nccl(ncclResult_t code, const char* what, ncclComm_t comm) {
  if (code == ncclSuccess || code == ncclInProgress) return;
  fail(str("[nccl] ", what, " failed: ", ncclGetErrorString(code), ": ", ncclGetLastError(comm),
           "; set NCCL_DEBUG=INFO to see more"));
}

Communicator::Communicator(const ncclUniqueId& id, int size, int rank, Device device, std::string name,
                           std::vector<int> world_ranks)
    : device_(device), name_(std::move(name)), world_ranks_(std::move(world_ranks)) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  backend(device)->select(device.index);
  check_nccl(ncclCommInitRankConfig(&comm_, size, id, rank, &config), "ncclCommInitRankConfig", nullptr);
}

NcclWork::NcclWork(Control& control, const Call& call, Device device)
    : control_(control), device_(device), ready_(device), end_(device), call_(call) {
  ready_.record();
}

void NcclWork::end() {
  end_.record();
  begun_ = true;
}

void NcclWork::wait() {
  if (control_.failed()) control_.raise();
  if (begun_ && users[size_t(device_.index)] > 1) synchronize();
  else if (begun_) end_.wait();
  // Release the tensors: backward adds to a received gradient in place only if nobody else holds the tensor. The
  // caller's stream now waits for the NCCL call, so it cannot reuse the tensors' memory before the call has ended.
  if (call_.awaited) call_.input = call_.output = Tensor();
}

void NcclWork::synchronize() {
  for (int round = 0; !done(); ++round) {
    if (control_.failed()) control_.raise();
    pause(round);  // the watchdog checks the timeout
  }
  if (control_.failed()) control_.raise();
}

Watchdog::Watchdog(Job& job)
    : job_(job),
      abort_limit_(abort_limit()),
      deadman_([this](const std::string& why) { job_.write_flight(why); }),
      thread_([this] { loop(); }) {}

Watchdog::~Watchdog() {
  end_thread(thread_, mutex_, stop_, changed_);
  for (const Device device : distrusted_) distrust(device, "");
  for (const Device device : used_) --users[size_t(device.index)];
}

std::shared_ptr<Watchdog> Watchdog::of(Job& job) {
  static std::mutex mutex;  // groups may start in several threads
  const std::lock_guard lock(mutex);
  if (!job.watchdog) job.watchdog = std::make_shared<Watchdog>(job);
  return std::static_pointer_cast<Watchdog>(job.watchdog);
}

void Watchdog::use(Device device) {
  const std::lock_guard lock(mutex_);
  if (std::find(used_.begin(), used_.end(), device) != used_.end()) return;
  used_.push_back(device);
  ++users[size_t(device.index)];
}

void Watchdog::add(const std::shared_ptr<Communicator>& comm) {
  const std::lock_guard lock(mutex_);
  comms_.push_back(comm);
}

void Watchdog::run(const std::vector<Communicator*>& comms, Seconds timeout, const std::string& what,
                   const std::function<void()>& calls) {
  {
    std::vector<std::unique_lock<std::mutex>> locks;
    for (Communicator* comm : comms) {
      locks.emplace_back(comm->mutex_);
      if (!comm->comm_) job_.control->raise();
      backend(comm->device_)->select(comm->device_.index);
    }
    check_nccl(ncclGroupStart(), "ncclGroupStart", nullptr);
    try {
      calls();
    } catch (...) {
      ncclGroupEnd();
      throw;
    }
    check_nccl(ncclGroupEnd(), "ncclGroupEnd", comms[0]->comm_);
  }
  for (Communicator* comm : comms) wait_ready(*comm, timeout, what);
}

void Watchdog::wait_ready(Communicator& comm, Seconds timeout, const std::string& what) {
  const auto start = Clock::now();
  for (int round = 0;; ++round) {
    ncclResult_t state = ncclSuccess;
    {
      const std::lock_guard lock(comm.mutex_);
      if (!comm.comm_) job_.control->raise();
      check_nccl(ncclCommGetAsyncError(comm.comm_, &state), "ncclCommGetAsyncError", comm.comm_);
    }
    if (state == ncclSuccess) return;
    if (state != ncclInProgress) std::rethrow_exception(error_of(state, comm, what));
    if (job_.control->failed()) job_.control->raise();
    if (Clock::now() - start > timeout) {
      throw DistError(
          Fault::timeout, -1,
          str("[nccl] waited ", text_of(timeout), " in ", comm.name_, " for NCCL to start ", what, "; ",
              job_.control->explain(comm.world_ranks_), "; see the output of the late ranks, or raise the timeout"));
    }
    pause(round);
  }
}

void Watchdog::watch(const std::shared_ptr<NcclWork>& work, bool complete, const std::string& what, const Call& call,
                     CallQueue& call_queue, int neighbour) {
  work->what_ = what;
  if (complete) work->ticket_ = call.ticket;
  work->timeout_ = call_queue.timeout_of(call);
  work->activity_ = call_queue.activity;
  work->call_queue_ = &call_queue;
  work->neighbour_ = neighbour;
  work->started_ = work->reported_ = Clock::now();
  const std::lock_guard lock(mutex_);
  works_.push_back(work);
  changed_.notify_all();
}

bool Watchdog::idle(const CallQueue& call_queue) const {
  const std::lock_guard lock(mutex_);
  return std::none_of(works_.begin(), works_.end(), [&](const auto& work) { return work->call_queue_ == &call_queue; });
}

void Watchdog::close(const CallQueue& call_queue, const std::vector<std::shared_ptr<Communicator>>& comms) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] {
      return std::none_of(works_.begin(), works_.end(),
                          [&](const auto& work) { return work->call_queue_ == &call_queue; });
    });
    if (reported_ && reported_->call_queue_ == &call_queue) reported_ = nullptr;
    std::erase_if(comms_, [&](const auto& comm) { return std::find(comms.begin(), comms.end(), comm) != comms.end(); });
  }
  for (const auto& comm : comms) {
    if (!job_.control->failed()) finalize(*comm);
    abort(*comm);
  }
}

// --- the thread of the watchdog ---

void Watchdog::loop() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (works_.empty()) {
      changed_.wait(lock);
      continue;
    }
    Works works = works_, over;
    const auto comms = comms_;
    lock.unlock();
    {
      const Deadman::Step step(deadman_, abort_limit_, "the watchdog of NCCL");
      try {
        over = look(works, comms);
      } catch (...) {  // once a kernel has failed, every later call on its device fails
        if (!given_up_) give_up(std::current_exception());
        over = works;  // it is no longer possible to ask whether they are done
      }
      works.clear();
    }
    lock.lock();
    std::erase_if(works_, [&](const auto& work) { return std::find(over.begin(), over.end(), work) != over.end(); });
    if (reported_ && std::find(works_.begin(), works_.end(), reported_) == works_.end() &&
        reported_->call_queue_->tell_moved(reported_->activity_))
      reported_ = nullptr;
    lock.unlock();
    over.clear();  // releases tensors
    lock.lock();
    changed_.notify_all();
    if (!stop_ && !works_.empty()) changed_.wait_for(lock, milliseconds(1));
  }
}

/// Checks all communicators and calls for errors and timeouts. Returns the calls that have ended.
Watchdog::Works Watchdog::look(const Works& works, const std::vector<std::shared_ptr<Communicator>>& comms) {
  for (const auto& comm : comms) {
    if (given_up_) break;
    ncclResult_t state = ncclSuccess;
    {
      const std::unique_lock lock(comm->mutex_, std::try_to_lock);
      if (!lock || !comm->comm_ || ncclCommGetAsyncError(comm->comm_, &state) != ncclSuccess) continue;
    }
    if (state == ncclSuccess || state == ncclInProgress) continue;
    const auto first = std::find_if(works.begin(), works.end(), [](const auto& work) { return !work->done(); });
    give_up(error_of(state, *comm, (first == works.end() ? works.back() : *first)->what_));
  }
  Works over;
  std::vector<CallQueue*> busy, moved;
  for (const auto& work : works) {
    // Calls of a group run one after another: skip those behind a call that still runs.
    if (std::find(busy.begin(), busy.end(), work->call_queue_) != busy.end()) continue;
    if (work->done()) {
      if (work->ticket_ && !given_up_) job_.flight.finish(*work->ticket_);
      over.push_back(work);
      moved.push_back(work->call_queue_);
      continue;
    }
    busy.push_back(work->call_queue_);
    if (std::find(moved.begin(), moved.end(), work->call_queue_) != moved.end())
      work->started_ = work->reported_ = Clock::now();  // its limit counts from now: it had to wait for an earlier call
    if (given_up_) {
      if (Clock::now() - *given_up_ > ending) over.push_back(work);
      continue;
    }
    if (job_.control->failed()) give_up(nullptr);
    else look_at_late(*work);
  }
  return over;
}

void Watchdog::look_at_late(NcclWork& work) {
  const auto now = Clock::now();
  if (now - work.started_ > work.timeout_) {
    const std::string text =
        str("[", name_of(work.call_.collective), "] waited ", text_of(work.timeout_), " in group ",
            work.activity_.group, " for ", work.what_, "; ", job_.control->explain(work.call_queue_->world_ranks()),
            "; see the output of the late ranks, or raise the timeout");
    return give_up(std::make_exception_ptr(DistError(Fault::timeout, -1, text)));
  }
  if (now - work.reported_ < job_.control->place().heartbeat) return;
  const std::lock_guard lock(mutex_);
  if (reported_ && reported_.get() != &work) return;
  if (!work.call_queue_->tell_late(work.activity_, work.neighbour_)) return;
  work.reported_ = now;
  for (const auto& other : works_)
    if (other.get() == &work) reported_ = other;
}

/// The error for a result code of NCCL. If another rank's end may be the cause, the error is a DistError rank_failed:
/// when Job::fail() gets such an error, it waits until the control plane knows the cause.
std::exception_ptr Watchdog::error_of(ncclResult_t code, const Communicator& comm, const std::string& where) {
  std::string text = str("[nccl] ", where, " failed in ", comm.name_, ": ", ncclGetErrorString(code),
                         " (set NCCL_DEBUG=INFO to see more)");
  if (const char* more = ncclGetLastError(nullptr); more && *more) text += str(": ", more);
  if (code == ncclRemoteError || code == ncclSystemError)
    return std::make_exception_ptr(DistError(Fault::rank_failed, -1, text));
  return std::make_exception_ptr(Error(text));
}

// Reports the failure and aborts all communicators of this rank. Other ranks abort theirs when they learn of it.
void Watchdog::give_up(std::exception_ptr error) {
  const std::string why = job_.fail(error).what();  // the job's first failure; fail() also writes the flight record
  given_up_ = Clock::now();
  std::vector<std::shared_ptr<Communicator>> comms;
  {
    const std::lock_guard lock(mutex_);
    comms = comms_;
  }
  for (const auto& comm : comms) {
    distrusted_.push_back(comm->device_);
    distrust(comm->device_, why);
  }
  // Abort all at once: a communicator used in a CUDA graph ends only when the graph is destroyed, and the graph can be
  // destroyed only when none of its other communicators still waits.
  std::vector<std::jthread> threads;
  for (const auto& comm : comms) threads.emplace_back([this, comm, waits = pthread_self()] { abort(*comm, waits); });
}

void Watchdog::abort(Communicator& comm, pthread_t waits) {
  const Deadman::Step step(deadman_, abort_limit_, "ncclCommAbort of " + comm.name_, waits);
  const std::lock_guard lock(comm.mutex_);
  if (const ncclComm_t handle = std::exchange(comm.comm_, nullptr)) ncclCommAbort(handle);
}

void Watchdog::finalize(Communicator& comm) {
  const Deadman::Step step(deadman_, abort_limit_ + Seconds(ending), "ncclCommDestroy of " + comm.name_);
  const std::lock_guard lock(comm.mutex_);
  if (!comm.comm_) return;
  ncclResult_t state = ncclCommFinalize(comm.comm_);
  const auto until = Clock::now() + ending;
  for (int round = 0; state == ncclInProgress && !job_.control->failed() && Clock::now() < until; ++round) {
    pause(round);
    if (ncclCommGetAsyncError(comm.comm_, &state) != ncclSuccess) return;
  }
  if (state == ncclSuccess) ncclCommDestroy(std::exchange(comm.comm_, nullptr));
}

}  // namespace lockstep::dist
