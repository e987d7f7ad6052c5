#pragma once
// Something to do at the end of a scope, however it ends.

namespace lockstep {

template <class Fn> class AtEnd {
 public:
  explicit AtEnd(Fn fn) : fn_(fn) {}
  ~AtEnd() { fn_(); }
  AtEnd(const AtEnd&) = delete;

 private:
  const Fn fn_;
};

}  // namespace lockstep
