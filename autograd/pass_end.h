#pragma once
// Two callbacks for a backward pass: one for its normal end, one for a pass that an exception ends.
#include <memory>
#include <utility>

#include "autograd/variable.h"

namespace lockstep {

/// Calls `ended` at the end of the running backward pass. If the pass fails, or `ended` throws, calls `abandoned`.
template <class Ended, class Abandoned> void after_backward(Ended ended, Abandoned abandoned) {
  struct End {
    End(Ended e, Abandoned a) : ended(std::move(e)), abandoned(std::move(a)) {}
    ~End() {
      if (!done) abandoned();
    }
    Ended ended;
    Abandoned abandoned;
    bool done = false;
  };
  after_backward([end = std::make_shared<End>(std::move(ended), std::move(abandoned))] {
    end->ended();
    end->done = true;
  });
}

}  // namespace lockstep
