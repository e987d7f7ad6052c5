#pragma once
// CartPole: the environment of ppo.cpp and reinforce.cpp, a pole to be balanced on a cart.
#include <array>
#include <cmath>
#include <cstdint>

namespace ports {

/// The cart and pole of Barto, Sutton and Anderson (1983). state: position, velocity, angle, angular velocity.
struct CartPole {
  std::array<double, 4> state;
  /// Pushes to the left (0) or right (1) for 0.02 s. Returns false if the pole fell or the cart left the track.
  bool step(int64_t action) {
    auto& [x, v, angle, w] = state;
    const double force = action ? 10 : -10, sine = std::sin(angle), cosine = std::cos(angle);
    const double shared = (force + 0.05 * w * w * sine) / 1.1;
    const double turned = (9.8 * sine - cosine * shared) / (0.5 * (4.0 / 3 - 0.1 * cosine * cosine / 1.1));
    const double pushed = shared - 0.05 * turned * cosine / 1.1;
    x += 0.02 * v, v += 0.02 * pushed, angle += 0.02 * w, w += 0.02 * turned;
    return std::abs(x) < 2.4 && std::abs(angle) < 0.2095;
  }
};

}  // namespace ports
