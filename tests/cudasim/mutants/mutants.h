#pragma once
// Planted bugs. Each case runs correct code or, with `bug`, the same code with one mistake. The emulator and the fake
// libraries must pass the correct code in every build, and catch the bug in the builds that can.
#include <cuda_runtime_api.h>

#include <cstddef>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "tests/cudasim/block.h"
#include "tests/cudasim/fake.h"

namespace mutants {

/// The builds of the tests, as bits.
enum Build : unsigned { plain = 1, asan = 2, tsan = 4, every = 7 };

/// The mistake of a case, by a word that the case's code knows.
struct Bug {
  std::string_view mistake;
  bool made;  ///< false: the correct code runs
  /// True if it is this mistake, and made.
  bool operator()(std::string_view which) const { return made && mistake == which; }
  operator bool() const { return made; }
};
/// A planted bug.
struct Case {
  const char* name;
  /// Runs the mutant. False, a device error, a signal or a sanitizer's report mean that the bug was caught.
  bool (*run)(Bug bug);
  std::string_view mistake = "";  ///< which one, if the code has several
  unsigned caught = every;        ///< the builds that must catch it
};
/// Makes cases known to main.cpp.
struct Cases {
  Cases(std::initializer_list<Case> cases);
};

/// An array of floats in device memory.
class Array {
 public:
  explicit Array(size_t n) : n_(n) { cudaMalloc(reinterpret_cast<void**>(&data_), n * sizeof(float)); }
  explicit Array(const std::vector<float>& values) : Array(values.size()) { put(values); }
  ~Array() { cudaFree(data_); }
  Array(const Array&) = delete;
  operator float*() const { return data_; }
  /// The memory as another type.
  template <class T> T* as() const { return reinterpret_cast<T*>(data_); }
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

/// Two streams and two events.
struct Streams {
  Streams() {
    for (cudaStream_t* s : {&first, &second}) cudaStreamCreateWithFlags(s, cudaStreamNonBlocking);
    for (cudaEvent_t* e : {&ready, &finished}) cudaEventCreateWithFlags(e, cudaEventDisableTiming);
  }
  ~Streams() {
    for (cudaStream_t s : {first, second}) cudaStreamDestroy(s);
    for (cudaEvent_t e : {ready, finished}) cudaEventDestroy(e);
  }
  cudaStream_t first = nullptr, second = nullptr;
  cudaEvent_t ready = nullptr, finished = nullptr;
};

/// Makes a stream wait for all that another one has been given, by this event.
inline void behind(cudaStream_t waits, cudaStream_t of, cudaEvent_t event) {
  cudaEventRecord(event, of);
  cudaStreamWaitEvent(waits, event, 0);
}

/// 1, 2, 3, ...
std::vector<float> counting(size_t n);
/// The sum of the values.
float sum_of(const std::vector<float>& values);

/// Runs `check` with threads in forward, reverse and three random orders; true if it always succeeds.
template <class Fn> bool in_all_orders(Fn check) {
  bool good = true;
  for (uint64_t i = 0; i < 5 && good; ++i) {
    simt::options() = {i == 0 ? simt::Order::forward : i == 1 ? simt::Order::reverse : simt::Order::random, i};
    good = check() && cudaDeviceSynchronize() == cudaSuccess;
  }
  simt::options() = {};
  return good;
}
/// Runs `check` under every stream policy, with 10 seeds for the random one; true if it always succeeds.
template <class Fn> bool in_all_policies(Fn check) {
  bool good = true;
  for (uint64_t i = 0; i < 12 && good; ++i) {
    fake::set_policy(i == 0 ? fake::Policy::eager : i == 1 ? fake::Policy::lazy : fake::Policy::random, i);
    good = check() && cudaDeviceSynchronize() == cudaSuccess;
  }
  fake::set_policy(fake::Policy::lazy);
  return good;
}

}  // namespace mutants
