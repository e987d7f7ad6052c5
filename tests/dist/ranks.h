#pragma once
// Ranks in threads, each with its control plane and transport, for tests of the layers below process groups.
#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "dist/local_control.h"
#include "dist/transport.h"
#include "tests/messages.h"

namespace lockstep::dist {

/// The control planes of `n` ranks that are threads of this process.
struct Seats {
  using Body = std::function<void(int rank, Control& control, Transport& transport)>;
  explicit Seats(int n, const std::string& transport = "threads", Rendezvous place = {}) {
    place.world_size = place.local_world_size = n;
    place.transport = transport;
    controls = local_controls(n, place);
    for (int i = 0; i < n; ++i) world.push_back(i);
  }
  /// Runs body on all ranks; returns the error of each, "" if there was none. Calls `after` when the rank's transport
  /// has been destroyed.
  std::vector<std::string> run(
      const Body& body, const std::function<void(int)>& after = [](int) {}) {
    std::vector<std::string> errors(world.size());
    std::vector<std::thread> threads;
    for (const int rank : world) {
      threads.emplace_back([&, rank] {
        try {
          const auto transport = make_transport(*controls[size_t(rank)], "world", rank, world);
          body(rank, *controls[size_t(rank)], *transport);
          // Other ranks would see a transport that is destroyed early as an error.
          controls[size_t(rank)]->barrier("world ends", world, Seconds(30));
        } catch (const std::exception& e) { errors[size_t(rank)] = e.what(); }
        after(rank);
      });
    }
    for (std::thread& t : threads) t.join();
    return errors;
  }
  /// Runs body on all ranks and checks that the error of each has `part`; "": that none fails.
  void check(const Body& body, const std::string& part = "") {
    for (const std::string& error : run(body))
      CHECK_MESSAGE((part.empty() ? error.empty() : contains(error, part)), error);
  }
  std::vector<std::shared_ptr<Control>> controls;
  std::vector<int> world;
};

}  // namespace lockstep::dist
