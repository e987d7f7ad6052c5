// Joins a job, and leaves it when the process ends. See control.h; the connection itself is in tcp_control.cpp.
#include "dist/control.h"

#include <unistd.h>

#include <cstring>

#include "dist/auth.h"
#include "dist/tcp_control.h"
#include "tensor/bf16_products.h"
#include "tensor/maker.h"

namespace lockstep::dist {
namespace {

// exit() does not destroy local variables, so ranks that they hold would stay in their jobs. So an atexit handler makes
// the ranks of this process leave.
struct Registry {
  std::mutex mutex;
  std::vector<std::weak_ptr<TcpControl>> seats;

  static Registry& get() {
    static auto* all = new PerProcess<Registry>;
    return all->get();
  }
  void enter(const std::shared_ptr<TcpControl>& seat) {
    [[maybe_unused]] static const int registered = std::atexit([] { get().leave_all(); });
    const std::lock_guard lock(mutex);
    std::erase_if(seats, [](const auto& other) { return other.expired(); });
    seats.push_back(seat);
  }
  void leave_all() {
    std::vector<std::shared_ptr<TcpControl>> mine;
    {
      const std::lock_guard lock(mutex);
      for (const auto& seat : seats)
        if (auto alive = seat.lock()) mine.push_back(std::move(alive));
      seats.clear();
    }
    for (const auto& seat : mine) seat->leave();
    for (const auto& seat : mine) seat->close();
  }
};

}  // namespace

void Control::leave_all() { Registry::get().leave_all(); }

std::shared_ptr<Control> Control::join(const Rendezvous& rendezvous) {
  Rendezvous place = rendezvous;
  LOCKSTEP_CHECK(place.world_size >= 1 && place.world_size <= 65536,
                 "[rendezvous] expected a world size from 1 to 65536, got ", place.world_size);
  LOCKSTEP_CHECK(place.rank >= 0 && place.rank < place.world_size, "[rendezvous] expected a rank from 0 to ",
                 place.world_size - 1, " (world size ", place.world_size, "), got ", place.rank);
  LOCKSTEP_CHECK(place.timeout.count() > 0 && place.timeout.count() <= 1e8,
                 "[rendezvous] expected a timeout above 0 s and up to 1e8 s, got ", place.timeout.count());
  LOCKSTEP_CHECK(place.heartbeat.count() >= 0.01 && place.heartbeat.count() <= 3600,
                 "[rendezvous] expected a heartbeat of 0.01 to 3600 s, got ", place.heartbeat.count());
  LOCKSTEP_CHECK(place.port >= 0 && place.port <= 65535, "[rendezvous] expected a port from 0 to 65535, got ",
                 place.port);
  LOCKSTEP_CHECK(place.port > 0 || place.rank == 0 || !place.file.empty(),
                 "[rendezvous] expected the port of rank 0, got 0 at rank ", place.rank,
                 ": only rank 0 may choose any free port");
  LOCKSTEP_CHECK(place.job.size() <= key_limit, "[rendezvous] expected a job name of at most ", key_limit,
                 " bytes, got one of ", place.job.size());
  LOCKSTEP_CHECK(place.identity.size() <= value_limit, "[rendezvous] expected an identity of at most ", value_limit,
                 " bytes, got ", place.identity.size(), "; shorten the command line, which is a part of it");
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(place.timeout);
  const Nonce random = random_nonce();
  // LOCKSTEP_BF16_PRODUCTS changes the bits of bf16 results, so ranks must agree on it.
  const std::string identity = str("LOCKSTEP_BF16_PRODUCTS=", name_of(bf16_products()), "\n", place.identity);
  Member member{place.rank, place.world_size, uint32_t(::getpid()), host_name(), identity, place.job, 0};
  std::memcpy(&member.incarnation, random.data(), sizeof member.incarnation);

  std::unique_ptr<Store> store;
  const bool publishes = place.rank == 0 && !place.file.empty();
  if (place.rank == 0) {
    if (publishes) {
      place.token = random_token();
      if (!place.interface.empty()) place.address = address_on(place.interface);
    }
    store = std::make_unique<Store>(place, member);
    place.listener = -1;
    place.port = store->port();
  }
  struct Published {
    const Rendezvous* place = nullptr;
    ~Published() {
      if (place) unpublish(*place);
    }
  } published;
  if (publishes) {
    publish(place);
    published.place = &place;
  }
  Seat seat = take_seat(place, member, deadline);
  auto control = std::make_shared<TcpControl>(place, std::move(seat), std::move(store));
  Registry::get().enter(control);
  return control;
}

}  // namespace lockstep::dist
