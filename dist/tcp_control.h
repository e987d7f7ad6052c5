#pragma once
// The control plane over TCP: a connection to the store, and a thread that reads it, sends heartbeats, and detects the
// loss of the store.
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "dist/join.h"
#include "dist/store.h"
#include "tensor/maker.h"

namespace lockstep::dist {

/// A Control over one TCP connection.
class TcpControl final : public Control {
 public:
  /// `seat`: the connection of this rank, which has joined the job at `place`. `store` is null except on rank 0.
  TcpControl(Rendezvous place, Seat seat, std::unique_ptr<Store> store);
  ~TcpControl() override;

  const Rendezvous& place() const override { return place_; }
  const std::string& own_address() const override { return own_address_; }
  const std::string& host() const override { return host_; }

  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, Seconds timeout) override;
  std::optional<std::string> try_get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t delta) override;
  void barrier(const std::string& name, const std::vector<int>& world_ranks, Seconds timeout) override;

  [[noreturn]] void raise() const override;
  DistError report(Fault fault, int rank, const std::string& message) override;
  void begin(const Activity& activity) override;
  void waits(int peer, uint64_t messages, bool is_send) override;
  void end() override;
  std::string explain(const std::vector<int>& world_ranks) override;
  void leave() override;
  /// Leaves the job and ends the thread. Rank 0 waits for the other ranks to leave.
  void close();

 private:
  struct Reply {
    bool done = false;
    Frame frame;
  };
  /// The collective that a thread is in. A rank may be in several at once, as each group may have its own thread.
  struct Call {
    std::thread::id thread;
    Activity activity;
    uint64_t* completed = nullptr;  // counter of its group
  };

  Frame request(FrameKind kind, const std::string& body, Seconds timeout);
  void send_locked(const std::string& bytes);
  void fail_locked(const DistError& failure);
  void run();
  bool read_all();
  void take(const Frame& frame);
  Activity activity_now();
  std::string activity_body();
  Call& call_of_this_thread();
  void check_key(const std::string& key) const;

  Rendezvous place_;
  std::string own_address_, host_ = host_identity(), store_name_;
  const Maker maker_;
  Fd fd_, wake_;
  FrameReader in_;  // used by the thread only

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Outbox out_;
  uint32_t requests_ = 0;
  std::map<uint32_t, Reply*> waiting_;
  std::optional<DistError> failure_;
  bool left_ = false, stopping_ = false;

  std::mutex activity_mutex_;
  std::vector<Call> calls_;
  size_t reported_call_ = 0;  // index of the call that heartbeats report
  std::map<std::string, uint64_t> completed_;

  std::unique_ptr<Store> store_;
  std::unique_ptr<std::thread> thread_;
};

}  // namespace lockstep::dist
