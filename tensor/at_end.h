#pragma once
// Something to do at the end of a scope, however it ends.
#include <utility>

namespace lockstep {

template <class Fn> class AtEnd {
 public:
  explicit AtEnd(Fn fn) : fn_(std::move(fn)) {}
  ~AtEnd() { fn_(); }
  AtEnd(const AtEnd&) = delete;

 private:
  const Fn fn_;
};

/// What is so while this lives: of.begin() now, of.end() at the end.
template <class T, void (T::*begin)(), void (T::*end)()> class While {
 public:
  explicit While(T& of) : of_(of) { (of.*begin)(); }
  ~While() { (of_.*end)(); }
  While(const While&) = delete;

 private:
  T& of_;
};

}  // namespace lockstep
