#pragma once
// Runs a kernel on the CPU and on the device with the same arguments and compares their outputs. The simulated device
// runs it with three orders of threads, which must agree in every bit.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <tuple>
#include <type_traits>
#include <vector>

#include "tensor/kernels.h"
#include "tensor/ops.h"
#include "tensor/stream.h"
#include "tests/cuda/device.h"
#include "tests/tolerances.h"
#if defined(SIMT_CPU)
#include <simt_cpu.h>
#endif

namespace testing {
using namespace lockstep;

using ::cuda0;

constexpr DType float_dtypes[] = {f32, f64, f16, bf16};
constexpr DType all_dtypes[] = {f32, f64, f16, bf16, i64, i32, i8, u8, boolean};

/// Uniform values in [-scale, scale), reproducible by seed, on the CPU.
inline Tensor random_tensor(const Shape& shape, DType dtype, uint32_t seed = 1, double scale = 1) {
  std::mt19937 engine(seed);
  std::vector<double> values(static_cast<size_t>(numel_of(shape)));
  for (double& value : values) value = scale * (double(engine()) / 4294967296.0 * 2 - 1);
  return Tensor::from(values, shape).to(cpu).to(dtype);
}
/// Integers from 0 to end - 1 (i64), reproducible by seed, on the CPU.
inline Tensor random_integers(const Shape& shape, int64_t end, uint32_t seed = 1) {
  std::mt19937 engine(seed);
  std::vector<int64_t> values(static_cast<size_t>(numel_of(shape)));
  for (int64_t& value : values) value = int64_t(engine()) % end;
  return Tensor::from(values, shape).to(cpu);
}

/// Like random_tensor(), for every dtype: other numbers are integers from 0 to end - 1.
inline Tensor random_values(const Shape& shape, DType dtype, uint32_t seed = 1, int64_t end = 7) {
  if (is_floating(dtype)) return random_tensor(shape, dtype, seed);
  return random_integers(shape, dtype == boolean ? 2 : end, seed).to(dtype);
}

/// The tolerance for kernels that have no row of their own.
inline double tolerance(DType dtype) { return tolerance(Near::kernel, dtype); }

/// A copy of x on a device with the same strides; undefined if x is.
inline Tensor like_on(const Tensor& x, Device device) {
  if (!x.defined() || device.is_cpu()) return x;
  const Tensor full = Tensor(x.storage(), 0, {x.storage()->bytes() / size_of(x.dtype())}, {1}, x.dtype());
  return Tensor(full.to(device).storage(), x.offset(), x.shape(), x.strides(), x.dtype());
}

/// Checks |got - expected| <= bound max(1, |expected|), with the bound of tolerance() if it is -1; NaN equals NaN.
/// Reports the first difference, named `what`.
inline void check_close(const Tensor& got, const Tensor& expected, double bound, const std::string& what) {
  if (!expected.defined()) return;
  if (bound < 0) bound = tolerance(expected.dtype());
  if (got.shape() != expected.shape()) FAIL(what << ": shape " << got.shape());
  const auto a = got.to(cpu).to_vector<double>(), b = expected.to_vector<double>();
  for (size_t i = 0; i < a.size(); ++i) {
    const bool same = a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]));
    if (same || std::abs(a[i] - b[i]) <= bound * std::max(1.0, std::abs(b[i]))) continue;
    FAIL_CHECK(what << ": element " << i << " of " << expected.shape() << " " << expected.dtype() << " is " << a[i]
                    << ", expected " << b[i]);
    return;
  }
}

/// All bytes of x, to compare orders of threads; none if x is undefined.
inline std::vector<unsigned char> bytes_of(const Tensor& x) {
  if (!x.defined()) return {};
  const Tensor there = x.to(cpu).contiguous();
  const auto* p = static_cast<const unsigned char*>(there.raw_data());
  return {p, p + there.numel() * size_of(there.dtype())};
}

#if defined(SIMT_CPU)
constexpr simt::Order orders[] = {simt::Order::forward, simt::Order::reverse, simt::Order::random};
inline void set_order(simt::Order order) { simt::options().order = order; }
#else
constexpr int orders[] = {0, 1};  // a GPU has its own
inline void set_order(int) {}
#endif

/// Inputs or outputs of a kernel.
using Arguments = std::vector<Tensor>;

/// Calls run(kernels, inputs, outputs) on both devices. The outputs have the shape and dtype of `outputs` and are first
/// filled with NaN (integers: -1).
inline void against_cpu(const std::string& what, const Arguments& inputs, const Arguments& outputs,
                        const std::function<void(Device, const Arguments&, Arguments&)>& run, double bound = -1) {
  const auto poisoned = [&](Device device) {
    Arguments to;
    for (const Tensor& x : outputs) {
      Tensor fresh = x;
      if (x.defined()) {
        fresh = Tensor(Storage::allocate(std::max<int64_t>(x.storage()->bytes(), 1), device), x.offset(), x.shape(),
                       x.strides(), x.dtype());
        fresh.fill_(is_floating(x.dtype()) ? std::nan("") : 101);
      }
      to.push_back(fresh);
    }
    return to;
  };
  Arguments expected = poisoned(cpu), there;
  run(cpu, inputs, expected);
  for (const Tensor& x : inputs) there.push_back(like_on(x, cuda0));
  std::vector<std::vector<unsigned char>> first;
  for (const auto order : orders) {
    set_order(order);
    Arguments got = poisoned(cuda0);
    run(cuda0, there, got);
    synchronize(cuda0);
    std::vector<std::vector<unsigned char>> bits;
    for (const Tensor& x : got) bits.push_back(bytes_of(x));
    if (first.empty()) {
      first = bits;
      for (size_t i = 0; i < got.size(); ++i) check_close(got[i], expected[i], bound, str(what, ", result ", i));
    }
    CHECK_MESSAGE(bits == first, what << ": the order of threads shows in the result");
  }
  set_order(orders[0]);
}

/// What check_kernel() compares, and how far the results may be apart; -1: as tolerance() says.
struct Within {
  std::string what;
  double bound = -1;
};
/// An output of a kernel: it has this shape, these strides and this dtype. If `start` is defined, the kernel changes
/// these values.
struct Out {
  Tensor like, start = {};
};
/// An output that begins as x.
inline Out changed(const Tensor& x) { return {x, x}; }

/// Runs one kernel on both devices, with these arguments: tensors are inputs, each Out is an output.
template <class Function, class... Given>
void check_kernel(const Within& within, const Op<Function>& kernel, const Given&... given) {
  Arguments inputs, outputs, starts;
  const auto sort = [&](const auto& x) {
    using Kind = std::decay_t<decltype(x)>;
    if constexpr (std::is_same_v<Kind, Tensor>) inputs.push_back(x);
    if constexpr (std::is_same_v<Kind, Out>) outputs.push_back(x.like), starts.push_back(x.start);
  };
  (sort(given), ...);
  const size_t given_inputs = inputs.size();
  inputs.insert(inputs.end(), starts.begin(), starts.end());
  const auto run = [&](Device on, const Arguments& in, Arguments& to) {
    for (size_t i = 0; i < to.size(); ++i)
      if (in[given_inputs + i].defined()) kernels::copy(on, in[given_inputs + i], to[i]);
    size_t next_input = 0, next_output = 0;
    const auto there = [&]<class Kind>(const Kind& x) -> auto& {
      if constexpr (std::is_same_v<Kind, Tensor>) return in[next_input++];
      else if constexpr (std::is_same_v<Kind, Out>) return to[next_output++];
      else return x;
    };
    // Braces evaluate their elements in order.
    const std::tuple<decltype(there(given))...> arguments{there(given)...};
    std::apply([&](auto&... all) { kernel(on, all...); }, arguments);
  };
  against_cpu(within.what, inputs, outputs, run, within.bound);
}

}  // namespace testing
