// The elementary functions of results in 16 bits (tensor/cuda/device_math.h), for every number of 16 bits.
#include <bit>

#include "tensor/half.h"
#include "tests/cuda/against_cpu.h"

using namespace lockstep;
using namespace testing;

namespace {

struct ExactFunction {
  const char* name;
  PointwiseOp op;
  double (*exact)(double);
  PointwiseArgs args = {};
};
double share_below(double x) { return 0.5 * std::erfc(-x * std::sqrt(0.5)); }
double sigmoid_of(double x) { return 1 / (1 + std::exp(-x)); }

const ExactFunction exact_functions[] = {
    {"exp", PointwiseOp::exp, std::exp},
    {"tanh", PointwiseOp::tanh, std::tanh},
    {"sigmoid", PointwiseOp::sigmoid, sigmoid_of},
    {"silu", PointwiseOp::silu, [](double x) { return x * sigmoid_of(x); }},
    {"mish", PointwiseOp::mish, [](double x) { return x * std::tanh(std::log1p(std::exp(x))); }},
    {"elu", PointwiseOp::elu, [](double x) { return x > 0 ? x : std::expm1(x); }, {.p = 1.0}},
    {"gelu_erf", PointwiseOp::gelu_erf, [](double x) { return x * share_below(x); }},
    {"gelu_tanh", PointwiseOp::gelu_tanh,
     [](double x) { return x * sigmoid_of(1.5957691216057308 * (x + 0.044715 * x * x * x)); }},
};

/// The worst error in units of the last place, over all finite numbers of type T with `bits` bits behind the point.
template <class T> double worst_error(const ExactFunction& row, DType dtype, int bits, double largest, double least) {
  std::vector<float> all;
  for (int i = 0; i < 1 << 16; ++i) {
    const float x = float(std::bit_cast<T>(uint16_t(i)));
    if (std::isfinite(x)) all.push_back(x);
  }
  const Tensor x = Tensor::from(all, {int64_t(all.size())}).to(dtype).to(cuda0), *const in = &x;
  Tensor out = empty_like(x);
  kernels::pointwise(cuda0, row.op, PointwisePart::value, row.args, &in, 1, out);
  const auto got = out.to(cpu).to_vector<float>();
  double worst = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const double exact = row.exact(double(all[i])), unit = std::ldexp(1.0, std::ilogb(exact) - bits);
    if (std::abs(exact) > largest && std::isinf(got[i])) continue;
    const double off = std::abs(double(got[i]) - exact) / std::max(unit, least);
    if (!(off <= worst)) worst = off;
  }
  return worst;
}

}  // namespace

TEST_CASE("cuda: exact_functions of every 16-bit number are within 2^-16 of the exact result, before it is rounded") {
  for (const ExactFunction& row : exact_functions) {
    CAPTURE(std::string(row.name));
    CHECK(worst_error<Half>(row, f16, 10, 65504, 0x1p-24) <= 0.5 + 0x1p-16 * 0x1p11);
    // Results below 2^-119 may become 0, as subnormal numbers in f32 do in between.
    CHECK(worst_error<BFloat16>(row, bf16, 7, 0x1.fep127, 0x1p-118) <= 0.5 + 0x1p-16 * 0x1p8);
  }
}
