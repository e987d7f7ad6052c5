#pragma once
// Out of memory in a training step: faults, and what must hold afterwards.
#include "tensor/memory.h"
#include "tests/parallel/util.h"

namespace testing {

/// Makes the k-th allocation from now on fail, until the end of the scope.
struct Fault {
  explicit Fault(int64_t k) { fail_allocation_after(k); }
  ~Fault() { fail_allocation_after(0); }
};

inline int64_t held() { return memory_report().total.current; }

/// Fails the k-th allocation of a step, for k = 1, 2, ... until a step succeeds. Nothing leaks, and the step run again
/// has the bits of an undisturbed one. forward: runs `net`.
inline void check_steps_again(Mlp& net, const std::function<Variable(const Variable&)>& forward) {
  const auto step = [&] { loss_of(net, 0, 0, forward).backward(); };
  step();
  const Tensors calm = copy_gradients(net);
  net.zero_grad();
  const int64_t held_before = held();
  int64_t k = 1;
  for (;; ++k) {
    CAPTURE(k);
    std::string text;
    {
      const Fault fault(k);
      text = message(step);
    }
    if (text == "(no error)") break;
    CHECK(contains(text, "[memory] could not allocate "));
    net.zero_grad();
    CHECK(held() == held_before);
    step();
    CHECK(differing(calm, copy_gradients(net)) == "");
    net.zero_grad();
  }
  CHECK(k > 20);
}

}  // namespace testing
