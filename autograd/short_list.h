#pragma once
// The edges and outputs of a node: few, and their number never changes.
#include <memory>

namespace lockstep {

/// A list whose length is set once; the first N elements lie in place.
template <class T, int N> class ShortList {
 public:
  ShortList() = default;
  explicit ShortList(int size) : size_(size) {
    if (size > N) more_ = std::make_unique<T[]>(size);
  }
  int size() const { return size_; }
  T& operator[](int i) { return begin()[i]; }
  const T& operator[](int i) const { return begin()[i]; }
  T* begin() { return more_ ? more_.get() : first_; }
  T* end() { return begin() + size_; }
  const T* begin() const { return more_ ? more_.get() : first_; }
  const T* end() const { return begin() + size_; }

 private:
  int size_ = 0;
  T first_[N];
  std::unique_ptr<T[]> more_;
};

}  // namespace lockstep
