#pragma once
// Ranks in threads, each with its control plane and transport, for tests of the layers below process groups.
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "dist/local_control.h"
#include "dist/transport.h"

namespace lockstep::dist {

/// The control planes of `n` ranks that are threads of this process.
struct Seats {
  explicit Seats(int n, const std::string& transport = "threads", Rendezvous place = {}) {
    place.world_size = place.local_world_size = n;
    place.transport = transport;
    controls = local_controls(n, place);
    for (int i = 0; i < n; ++i) world.push_back(i);
  }
  /// Runs body(rank, control, transport) on all ranks; returns the error of each, "" if there was none. Calls `after`
  /// when the rank's transport has been destroyed.
  std::vector<std::string> run(
      const std::function<void(int, Control&, Transport&)>& body, const std::string& group = "world",
      const std::function<void(int)>& after = [](int) {}) {
    std::vector<std::string> errors(world.size());
    std::vector<std::thread> threads;
    for (const int rank : world) {
      threads.emplace_back([&, rank] {
        try {
          const auto transport = make_transport(*controls[size_t(rank)], group, rank, world);
          body(rank, *controls[size_t(rank)], *transport);
          // Other ranks would see a transport that is destroyed early as an error.
          controls[size_t(rank)]->barrier(group + " ends", world, Seconds(30));
        } catch (const std::exception& e) { errors[size_t(rank)] = e.what(); }
        after(rank);
      });
    }
    for (std::thread& t : threads) t.join();
    return errors;
  }
  std::vector<std::shared_ptr<Control>> controls;
  std::vector<int> world;
};

}  // namespace lockstep::dist
