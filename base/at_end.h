#pragma once
// AtEnd and While: code that runs at the end of a scope, however the scope ends.
#include <utility>

namespace lockstep {

/// Calls fn in its destructor.
template <class Fn> class AtEnd {
 public:
  explicit AtEnd(Fn fn) : fn_(std::move(fn)) {}
  ~AtEnd() { fn_(); }
  AtEnd(const AtEnd&) = delete;

 private:
  const Fn fn_;
};

/// Calls of.begin() in its constructor and of.end() in its destructor.
template <class T, void (T::*begin)(), void (T::*end)()> class While {
 public:
  explicit While(T& of) : of_(of) { (of.*begin)(); }
  ~While() { (of_.*end)(); }
  While(const While&) = delete;

 private:
  T& of_;
};

}  // namespace lockstep
