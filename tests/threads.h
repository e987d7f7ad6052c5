#pragma once
// Sets the number of threads during a test.
#include <doctest/doctest.h>

#include <functional>
#include <vector>

#include "base/threads.h"
#include "tensor/ops.h"

/// `n` threads while this lives.
struct Threads {
  explicit Threads(int n) { lockstep::set_threads(n); }
  ~Threads() { lockstep::set_threads(before); }
  const int before = lockstep::get_threads();
};

/// Checks that f gives the same bits with 1 thread and with other numbers of threads.
inline void check_threads(const std::function<std::vector<lockstep::Tensor>()>& f,
                          const std::vector<int>& others = {2, 3}) {
  const auto with = [&](int n) {
    const Threads threads(n);
    return f();
  };
  const auto expected = with(1);
  for (const int n : others) {
    CAPTURE(n);
    const auto got = with(n);
    REQUIRE(got.size() == expected.size());
    for (size_t i = 0; i < got.size(); ++i) CHECK(lockstep::equal(got[i], expected[i]));
  }
}
