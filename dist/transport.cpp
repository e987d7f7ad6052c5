// transport.cpp: chooses and connects the channels of a group. See transport.h.
#include "dist/transport.h"

#include <poll.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <locale>
#include <sstream>

#include "dist/control.h"
#include "dist/transports/memory.h"
#include "dist/transports/tcp.h"

namespace lockstep::dist {
namespace {

// Bytes of each ring buffer between ranks of one host: room for a few blocks, but small enough to stay in the cache.
size_t fifo_capacity(size_t ranks) { return size_t(ranks <= 16 ? 256 : 64) << 10; }

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void sleep_for_us(long microseconds) {
  const timespec time{0, microseconds * 1000};
  nanosleep(&time, nullptr);
}

/// The addresses of a rank, as published in the store.
struct Whereabouts {
  std::string host;
  InboxAddress inbox;        // capacity 0: none
  ListenerAddress listener;  // port 0: none

  std::string text() const {
    return str(host, '\n', listener.host, '\n', listener.port, ' ', inbox.pid, ' ', inbox.process, ' ', inbox.nonce,
               ' ', inbox.fd, ' ', inbox.capacity);
  }
  static Whereabouts parse(const std::string& text, int rank) {
    Whereabouts w;
    std::istringstream in(text);
    in.imbue(std::locale::classic());
    std::getline(in, w.host);
    std::getline(in, w.listener.host);
    in >> w.listener.port >> w.inbox.pid >> w.inbox.process >> w.inbox.nonce >> w.inbox.fd >> w.inbox.capacity;
    const bool valid =
        w.inbox.capacity == 0 || (w.inbox.capacity >= 4096 && (w.inbox.capacity & (w.inbox.capacity - 1)) == 0);
    if (!in || !valid)
      throw DistError(Fault::protocol, rank,
                      str("[transport] expected the address of rank ", rank, " in the store, got \"", text,
                          "\"; use one build on all ranks"));
    return w;
  }
};

class NativeTransport final : public Transport {
 public:
  NativeTransport(Control& control, const std::string& group, int rank, const std::vector<int>& world_ranks)
      : control_(control),
        group_(group),
        rank_(rank),
        world_ranks_(world_ranks),
        channels_(world_ranks.size()),
        forced_(control.place().transport) {
    LOCKSTEP_CHECK(forced_ == "auto" || forced_ == "threads" || forced_ == "shm" || forced_ == "tcp",
                   "[transport] expected auto, threads, shm or tcp, got \"", forced_, "\"");
    LOCKSTEP_CHECK(rank >= 0 && size_t(rank) < world_ranks.size(),
                   "[transport] expected a rank of 0 or more and below ", world_ranks.size(), ", got ", rank);
    const Rendezvous& place = control.place();
    crowded_ = place.local_world_size > sysconf(_SC_NPROCESSORS_ONLN);
    mine_.host = control.host();
    if (forced_ != "tcp") {
      inbox_ = Inbox::create(int(world_ranks.size()), fifo_capacity(world_ranks.size()));
      mine_.inbox = inbox_->address();
    } else {
      mine_.inbox = {.pid = getpid(), .process = process_nonce(), .nonce = "none"};
    }
    if (forced_ == "tcp" || (forced_ == "auto" && place.local_world_size < place.world_size)) {
      listener_ = Listener::of(control);
      mine_.listener = {listener_->host(), listener_->port()};
    }
    control.set(key(rank), mine_.text());
  }

  ~NativeTransport() override {
    if (inbox_) inbox_->abandon();
  }

  Channel& channel(int peer) override {
    auto& channel = channels_.at(size_t(peer));
    if (!channel) [[unlikely]]
      channel = connect(peer);
    return *channel;
  }

  void idle(int rounds) override {
    // With a core for each rank, the peer usually answers within microseconds, so spin first; then yield, since it may
    // have lost its core. With fewer cores than ranks, yield at once.
    if (rounds == 0) idle_polls_ = 0;
    const int spins = crowded_ ? 0 : 40, yields = spins + (by_tcp_ ? 20 : 400);
    if (rounds < spins) {
      pause();
    } else if (rounds < yields) {
      sched_yield();
    } else if (by_tcp_) {
      poll_sockets();
    } else {
      // The longer the wait has lasted, the longer the sleep; this delays the end of the wait by about 1 %. Each check
      // costs some microseconds of a core on which others compute.
      sleep_for_us(std::clamp((rounds - yields) / 2, 50, 500));
    }
  }

 private:
  std::string key(int rank) const { return str(group_, "/at/", rank); }

  std::unique_ptr<Channel> connect(int peer) {
    LOCKSTEP_CHECK(peer != rank_, "[transport] expected `peer` to be another rank than this one, got ", rank_,
                   "; this is a bug in Lockstep, please report it");
    const int world_rank = world_ranks_[size_t(peer)];
    const Whereabouts theirs = Whereabouts::parse(control_.get(key(peer), control_.place().timeout), world_rank);
    const bool same_process = theirs.inbox.process == process_nonce();
    if (forced_ == "threads" || (forced_ == "auto" && same_process)) {
      LOCKSTEP_CHECK(same_process,
                     "[transport] expected ranks that are threads of one process (transport \"threads\"), got rank ",
                     world_rank, " in process ", theirs.inbox.pid, "; choose auto, shm or tcp");
      return make_memory_channel(inbox_, rank_, peer, world_rank, theirs.inbox, false);
    }
    if (forced_ == "shm" || (forced_ == "auto" && theirs.host == mine_.host)) {
      LOCKSTEP_CHECK(theirs.host == mine_.host, "[transport] expected ranks of one host (transport \"shm\"), got rank ",
                     world_rank, " on ", theirs.host, " and this one on ", mine_.host, "; choose auto or tcp");
      return make_memory_channel(inbox_, rank_, peer, world_rank, theirs.inbox, true);
    }
    LOCKSTEP_CHECK(listener_ && theirs.listener.port > 0,
                   "[transport] expected all ranks on one host, as LOCAL_WORLD_SIZE says, got rank ", world_rank,
                   " on ", theirs.host, " and this one on ", mine_.host,
                   "; correct LOCAL_WORLD_SIZE, or choose LOCKSTEP_TRANSPORT=tcp");
    auto channel =
        make_tcp_channel(control_, listener_, group_, world_ranks_[size_t(rank_)], world_rank, theirs.listener);
    by_tcp_ = true;
    return channel;
  }

  /// Sleeps until a socket is ready; only briefly if data may also arrive through shared memory, or a new connection
  /// through this rank's Listener (tcp.h).
  void poll_sockets() {
    descriptors_.clear();
    bool elsewhere = false;
    for (const auto& channel : channels_) {
      if (!channel) continue;
      const size_t before = descriptors_.size();
      channel->add_descriptors(descriptors_);
      elsewhere |= before == descriptors_.size();
    }
    entries_.clear();
    for (const PollDescriptor& d : descriptors_)
      entries_.push_back({d.fd, short(d.for_writing ? POLLIN | POLLOUT : POLLIN), 0});
    const timespec time{0, elsewhere ? 100'000 : 20'000'000};
    const bool ready = ppoll(entries_.data(), entries_.size(), &time, nullptr) > 0;
    // If sockets stay ready, their data cannot be used yet: sleep briefly instead of polling in a busy loop.
    if (ready && ++idle_polls_ > 1000) sleep_for_us(50);
    else if (!ready) idle_polls_ = 0;
  }

  Control& control_;
  const std::string group_;
  const int rank_;
  const std::vector<int> world_ranks_;
  std::vector<std::unique_ptr<Channel>> channels_;
  const std::string forced_;
  bool crowded_ = false;
  Whereabouts mine_;
  std::shared_ptr<Inbox> inbox_;
  std::shared_ptr<Listener> listener_;
  bool by_tcp_ = false;  // true if at least one channel uses TCP
  std::vector<PollDescriptor> descriptors_;
  std::vector<pollfd> entries_;
  int idle_polls_ = 0;
};

}  // namespace

std::unique_ptr<Transport> make_transport(Control& control, const std::string& group, int rank,
                                          const std::vector<int>& world_ranks) {
  return std::make_unique<NativeTransport>(control, group, rank, world_ranks);
}

}  // namespace lockstep::dist
