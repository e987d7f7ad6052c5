#pragma once
// Ranks that are threads, each with its seat in a job and a transport, for tests of what lies below process groups.
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "dist/local_control.h"
#include "dist/transport.h"

namespace lockstep::dist {

struct Seats {
  explicit Seats(int n, const std::string& transport = "threads", Rendezvous place = {}) {
    place.world_size = place.local_world_size = n;
    place.transport = transport;
    controls = local_controls(n, place);
    for (int i = 0; i < n; ++i) world.push_back(i);
  }
  /// Runs body(rank, control, transport) on all ranks; gives back what each threw ("" when nothing).
  /// `after` is called when its transport is gone.
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
          controls[size_t(rank)]->barrier(group + " ends", world,
                                          Seconds(30));  // a transport that goes away is an error to others
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
