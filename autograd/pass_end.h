#pragma once
// The end of a backward pass, also when an exception is the end.
#include <memory>
#include <utility>

#include "autograd/variable.h"

namespace lockstep {

/// As after_backward(ended); when that does not run to its end, or the pass does not get there, abandoned() follows.
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
