#pragma once
// Planted bugs. Each case runs correct code or, with `bug`, the same code with one mistake. The emulator and the fake
// libraries must pass the correct code in every build, and catch the bug in the builds that can.
#include <cuda_runtime_api.h>

#include <cstddef>
#include <vector>

namespace mutants {

/// The builds of the tests, as bits.
enum Build : unsigned { plain = 1, asan = 2, tsan = 4, every = 7 };

/// A planted bug.
struct Case {
  const char* name;
  /// Runs the mutant. False, a device error, a signal or a sanitizer's report mean that the bug was caught.
  bool (*run)(bool bug);
  unsigned caught;  ///< the builds that must catch it
};
/// The cases by subject.
std::vector<Case> kernel_cases();
std::vector<Case> together_cases();
std::vector<Case> turn_cases();
std::vector<Case> product_cases();
std::vector<Case> tile_cases();
std::vector<Case> indexing_cases();
std::vector<Case> host_cases();
std::vector<Case> fp8_cases();
std::vector<Case> lifetime_cases();
std::vector<Case> rank_cases();
std::vector<Case> recorded_cases();

/// An array of floats in device memory.
class Array {
 public:
  explicit Array(size_t n) : n_(n) { cudaMalloc(reinterpret_cast<void**>(&data_), n * sizeof(float)); }
  explicit Array(const std::vector<float>& values) : Array(values.size()) { put(values); }
  ~Array() { cudaFree(data_); }
  Array(const Array&) = delete;
  operator float*() const { return data_; }
  /// Copies values to the device, or back.
  void put(const std::vector<float>& values) {
    cudaMemcpy(data_, values.data(), n_ * sizeof(float), cudaMemcpyHostToDevice);
  }
  std::vector<float> get() const {
    std::vector<float> values(n_);
    cudaMemcpy(values.data(), data_, n_ * sizeof(float), cudaMemcpyDeviceToHost);
    return values;
  }

 private:
  size_t n_;
  float* data_ = nullptr;
};

/// 1, 2, 3, ...
std::vector<float> counting(size_t n);
/// The sum of the values.
float sum_of(const std::vector<float>& values);

/// Runs `check` with threads in forward, reverse and three random orders; true if it always succeeds.
template <class Fn> bool in_all_orders(Fn check);
/// Runs `check` under every stream policy, with 10 seeds for the random one; true if it always succeeds.
template <class Fn> bool in_all_policies(Fn check);

}  // namespace mutants

#include "tests/cudasim/block.h"
#include "tests/cudasim/fake.h"

template <class Fn> bool mutants::in_all_orders(Fn check) {
  bool good = true;
  for (uint64_t i = 0; i < 5 && good; ++i) {
    simt::options() = {i == 0 ? simt::Order::forward : i == 1 ? simt::Order::reverse : simt::Order::random, i};
    good = check() && cudaDeviceSynchronize() == cudaSuccess;
  }
  simt::options() = {};
  return good;
}
template <class Fn> bool mutants::in_all_policies(Fn check) {
  bool good = true;
  for (uint64_t i = 0; i < 12 && good; ++i) {
    fake::set_policy(i == 0 ? fake::Policy::eager : i == 1 ? fake::Policy::lazy : fake::Policy::random, i);
    good = check() && cudaDeviceSynchronize() == cudaSuccess;
  }
  fake::set_policy(fake::Policy::lazy);
  return good;
}
