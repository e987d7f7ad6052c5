#pragma once
// The list type of a node's edges and outputs: few elements, and their number never changes.
#include <memory>

namespace lockstep {

/// A list of fixed length. Up to N elements are stored inside the object, longer lists on the heap.
template <class T, int N> class ShortList {
 public:
  ShortList() = default;
  /// `size` default-constructed elements.
  explicit ShortList(int size) : size_(size) {
    if (size > N) more_ = std::make_unique<T[]>(size);
  }
  int size() const { return size_; }           ///< number of elements
  T& operator[](int i) { return begin()[i]; }  ///< element i; no check of the range
  const T& operator[](int i) const { return begin()[i]; }
  /// begin(): the first element; end(): one past the last element.
  T* begin() { return more_ ? more_.get() : first_; }
  T* end() { return begin() + size_; }
  const T* begin() const { return more_ ? more_.get() : first_; }  ///< first element
  const T* end() const { return begin() + size_; }                 ///< one past the last element

 private:
  int size_ = 0;
  T first_[N];
  std::unique_ptr<T[]> more_;
};

}  // namespace lockstep
