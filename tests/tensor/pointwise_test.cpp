// Pointwise operations: values against std in f64, derivatives against finite differences, PyTorch's conventions at
// kinks, the same bits wherever an element lies, views, broadcasting, dtypes, in-place forms and messages.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "tensor/functors.h"
#include "tensor/kernels.h"
#include "tensor/ops.h"
#include "tests/messages.h"
#include "tests/threads.h"

using namespace lockstep;

namespace {

const float inf_f = std::numeric_limits<float>::infinity(), nan_f = std::numeric_limits<float>::quiet_NaN();

struct UnaryCase {
  const char* name;
  PointwiseOp op;
  PointwiseArgs args;
  bool integers = false, reads_output = false;
};

const std::vector<UnaryCase>& unary_cases() {
  static const std::vector<UnaryCase> cases = [] {
    const PointwiseArgs args{0.75, 20};
    std::vector<UnaryCase> list;
    const auto add = [&](const char* name, PointwiseOp op, std::string types, functor::Reads reads) {
      if (types != "logic") list.push_back({name, op, args, types == "numbers", reads == functor::Reads::output});
    };
#define LOCKSTEP_UNARY(name, F, types) add(#name, PointwiseOp::name, #types, functor::F::reads);
#define LOCKSTEP_UNARY1(name, F, types, p, d) add(#name, PointwiseOp::name, #types, functor::F::reads);
#define LOCKSTEP_UNARY2(name, F, types, p, d, q, e) add(#name, PointwiseOp::name, #types, functor::F::reads);
#include "tensor/pointwise.def"
    return list;
  }();
  return cases;
}

struct BinaryCase {
  const char* name;
  PointwiseOp op;
};
const BinaryCase binary_cases[] = {
#define LOCKSTEP_BINARY(name, F, types) {#name, PointwiseOp::name},
#include "tensor/pointwise.def"
};
const BinaryCase compare_cases[] = {
#define LOCKSTEP_COMPARE(name, F) {#name, PointwiseOp::name},
#include "tensor/pointwise.def"
};

Tensor kernel(PointwiseOp op, PointwisePart part, const PointwiseArgs& args, std::vector<Tensor> in, DType dtype,
              const Shape& shape) {
  Tensor out = empty(shape, {.dtype = dtype});
  std::vector<const Tensor*> list;
  for (const Tensor& tensor : in) list.push_back(&tensor);
  kernels::pointwise(default_device(), op, part, args, list.data(), int(list.size()), out);
  return out;
}

// Pseudo-random numbers of all magnitudes, the same for every call.
Tensor numbers_of(int64_t n, uint32_t seed, double low = -6, double high = 6, DType dtype = f32) {
  std::vector<double> values;
  for (int64_t i = 0; i < n; ++i) {
    seed = seed * 1664525u + 1013904223u;
    values.push_back(low + (high - low) * (seed >> 8) / double(1 << 24));
  }
  return Tensor::from(values, {n}).to(dtype);
}

}  // namespace

TEST_CASE("pointwise: f32 agrees with std in f64") {
  using Fn = double (*)(double);
  struct Row {
    const char* name;
    Tensor (*op)(const Tensor&);
    Fn reference;
    double low, high, ulps;
  };
  const auto sigmoid64 = [](double x) { return 1 / (1 + std::exp(-x)); };
  const Row rows[] = {{"exp", exp, std::exp, -104, 90, 2},
                      {"expm1", expm1, std::expm1, -20, 90, 2.5},
                      {"log", log, std::log, 0, 4, 2},
                      {"log large", log, std::log, 0, 1e38, 2},
                      {"log2", log2, std::log2, 0, 9, 2.5},
                      {"log1p", log1p, std::log1p, -1, 3, 2.5},
                      {"tanh", tanh, std::tanh, -10, 10, 3},
                      {"tanh small", tanh, std::tanh, -1e-3, 1e-3, 3},
                      {"erf", erf, std::erf, -5, 5, 2},
                      {"sigmoid", sigmoid, sigmoid64, -104, 30, 3},
                      {"sin", sin, std::sin, -1e5, 1e5, 3},
                      {"cos", cos, std::cos, -1e5, 1e5, 3},
                      {"sin huge", sin, std::sin, -1e30, 1e30, 1},
                      {"sqrt", sqrt, std::sqrt, 0, 100, 1}};
  for (const Row& row : rows) {
    INFO(row.name);
    const Tensor x = numbers_of(20011, 3, row.low, row.high);
    const auto in = x.to_vector<float>(), out = row.op(x).to_vector<float>();
    double worst = 0;
    for (size_t i = 0; i < in.size(); ++i) {
      const double expected = row.reference(double(in[i]));
      if (std::isinf(float(expected)) || expected == 0) {
        CHECK(out[i] == float(expected));
        continue;
      }
      const double ulp = std::max(std::ldexp(1.0, std::ilogb(expected) - 23), 0x1p-149);
      worst = std::max(worst, std::fabs(out[i] - expected) / ulp);
    }
    CHECK(worst <= row.ulps);
  }
}

TEST_CASE("pointwise: edge values") {
  struct Row {
    const char* name;
    Tensor (*op)(const Tensor&);
    std::vector<float> x, y;
  };
  const Row rows[] = {{"exp", exp, {-inf_f, inf_f, 89, -104, 0}, {0, inf_f, inf_f, 0, 1}},
                      {"expm1", expm1, {-inf_f, inf_f, -0.f, 1e-45f}, {-1, inf_f, -0.f, 1e-45f}},
                      {"log", log, {0, -0.f, -1, inf_f, 1}, {-inf_f, -inf_f, nan_f, inf_f, 0}},
                      {"log1p", log1p, {-1, -2, -0.f, inf_f}, {-inf_f, nan_f, -0.f, inf_f}},
                      {"sqrt", sqrt, {0, -0.f, -1, inf_f}, {0, -0.f, nan_f, inf_f}},
                      {"rsqrt", rsqrt, {0, inf_f, 4}, {inf_f, 0, 0.5f}},
                      {"reciprocal", reciprocal, {0, -0.f, inf_f}, {inf_f, -inf_f, 0}},
                      {"tanh", tanh, {inf_f, -inf_f, 1e38f, -0.f}, {1, -1, 1, -0.f}},
                      {"sigmoid", sigmoid, {inf_f, -inf_f, -100, 1e38f}, {1, 0, 3.78350585e-44f, 1}},
                      {"erf", erf, {inf_f, -inf_f, -0.f}, {1, -1, -0.f}},
                      {"sin", sin, {inf_f, -0.f, 1e10f}, {nan_f, -0.f, -0.487506032f}},
                      {"silu", silu, {inf_f, 1e38f, -1e38f, -0.f}, {inf_f, 1e38f, -0.f, -0.f}},
                      {"gelu_tanh", gelu_tanh, {inf_f, 1e38f, -1e38f, -104}, {inf_f, 1e38f, -0.f, -0.f}},
                      {"gelu_erf", gelu_erf, {inf_f, 1e38f, -1e38f, -104}, {inf_f, 1e38f, -0.f, -0.f}},
                      {"mish", mish, {inf_f, 1e38f, -1e38f, 0}, {inf_f, 1e38f, -0.f, 0}},
                      {"log_sigmoid", log_sigmoid, {inf_f, -inf_f, -1e38f, 1e38f}, {0, -inf_f, -1e38f, 0}},
                      {"hardswish", hardswish, {inf_f, 3, -3, -4}, {inf_f, 3, -0.f, -0.f}},
                      {"relu", relu, {inf_f, -inf_f, -0.f, -1}, {inf_f, 0, -0.f, 0}},
                      {"sign", sign, {0, -0.f, -2, inf_f}, {0, 0, -1, 1}},
                      {"round", round, {0.5f, 1.5f, 2.5f, -0.5f}, {0, 2, 2, -0.f}}};
  for (const Row& row : rows) {
    INFO(row.name);
    const int64_t n = int64_t(row.x.size());
    const auto y = row.op(Tensor::from(row.x, {n})).to_vector<float>();
    for (size_t i = 0; i < y.size(); ++i) {
      CAPTURE(row.x[i]);
      if (std::isnan(row.y[i])) CHECK(std::isnan(y[i]));
      else if (row.y[i] == 0 || std::isinf(row.y[i])) CHECK(y[i] == row.y[i]);
      else CHECK(y[i] == doctest::Approx(row.y[i]).epsilon(1e-6));
      if (row.y[i] == 0 && row.x[i] == 0) CHECK((std::signbit(y[i]) == std::signbit(row.y[i]) || row.op == sign));
    }
  }
  for (const UnaryCase& c : unary_cases()) {
    INFO(c.name);
    for (DType dtype : {f32, f64, f16, bf16}) {
      const Tensor x = full({3}, NAN, {.dtype = dtype});
      CHECK(std::isnan(kernel(c.op, PointwisePart::value, c.args, {x}, dtype, {3})[1].item()));
    }
  }
  // A bound or threshold that is NaN makes every element NaN, whatever x is, in the whole row and at its end.
  for (const DType dtype : {f32, f64, f16, bf16})
    for (const int64_t n : {1, 37, 5000}) {
      const Tensor x = numbers_of(n, 4).to(dtype);
      for (const Tensor& y : {clamp(x, NAN, 1), clamp(x, -1, NAN), clamp(x, NAN, NAN), clamp(x, NAN, inf_f),
                              clamp(x, -inf_f, NAN), softplus(x, 1, NAN), clamp_(x.clone(), NAN, 1)})
        CHECK(all(isnan(y)).item<bool>());
      CHECK(equal(clamp(x, -inf_f, inf_f), x));
      CHECK(equal(clamp(x, 0, inf_f), relu(x)));
    }
  CHECK(clamp(Tensor::from<int64_t>({-5, 7}), 1, 3).to_vector<int64_t>() == std::vector<int64_t>{1, 3});
  CHECK(
      equal(pointwise_grad(PointwiseOp::clamp, PointwisePart::grad0, {NAN, 1}, ones({2}), ones({2}), {}), zeros({2})));
  CHECK(softplus(full({1}, 30)).item() == 30);
  CHECK(softplus(full({1}, -87)).item() == doctest::Approx(std::exp(-87.0)).epsilon(1e-6));
}

TEST_CASE("pointwise: an element has the same bits wherever it lies") {
  constexpr int64_t n = 5000;
  const Tensor x = numbers_of(n, 1), y = numbers_of(n, 2), g = numbers_of(n, 3);
  x.slice(0, 100, 200).fill_(3e7);  // too large for the fast path of sin and cos
  const auto check = [&](const char* name, PointwiseOp op, PointwisePart part, const PointwiseArgs& args,
                         std::vector<Tensor> in, DType out) {
    INFO(name);
    CAPTURE(int(part));
    const Tensor all = kernel(op, part, args, in, out, {n});
    for (const auto& [start, length] :
         {std::pair<int64_t, int64_t>{0, 7}, {1, 1}, {13, 100}, {100, 33}, {4999, 1}, {1021, 2050}, {64, 64}}) {
      std::vector<Tensor> parts, strided;
      for (const Tensor& t : in) {
        parts.push_back(t.slice(0, start, start + length));
        const Tensor wide = zeros({length, 3}, {.dtype = t.dtype()});
        wide.select(1, 1).copy_(parts.back());
        strided.push_back(wide.select(1, 1));
      }
      CHECK(equal(kernel(op, part, args, parts, out, {length}), all.slice(0, start, start + length)));
      CHECK(equal(kernel(op, part, args, strided, out, {length}), all.slice(0, start, start + length)));
    }
  };
  for (const DType dtype : {f32, f64, bf16}) {
    const Tensor a = x.to(dtype), b = y.to(dtype), d = g.to(dtype);
    for (const UnaryCase& c : unary_cases()) {
      check(c.name, c.op, PointwisePart::value, c.args, {a}, dtype);
      check(c.name, c.op, PointwisePart::grad0, c.args, {d, a}, dtype);
    }
    for (const BinaryCase& c : binary_cases) {
      check(c.name, c.op, PointwisePart::value, {}, {a, b}, dtype);
      check(c.name, c.op, PointwisePart::grad0, {}, {d, a, b}, dtype);
      check(c.name, c.op, PointwisePart::grad1, {}, {d, a, b}, dtype);
    }
    for (const BinaryCase& c : compare_cases) check(c.name, c.op, PointwisePart::value, {}, {a, b}, boolean);
    check("where", PointwiseOp::where, PointwisePart::value, {}, {lt(a, b), a, b}, dtype);
    check("addcmul", PointwiseOp::addcmul, PointwisePart::value, {0.3, 0}, {a, b, d}, dtype);
    check("lerp", PointwiseOp::lerp, PointwisePart::value, {0.3, 0}, {a, b}, dtype);
  }
}

TEST_CASE("pointwise: the number of threads does not change bits") {
  const Tensor x = numbers_of(200003, 1), y = numbers_of(200003, 2);
  check_threads([&] { return std::vector{gelu_tanh(x + y)}; });
}

TEST_CASE("pointwise: derivatives in f32 agree with differences in f64") {  // f32 uses other code than f64
  constexpr int64_t n = 41;
  const double h = 1e-6;
  const Tensor g = numbers_of(n, 5, 0.5, 2, f64);
  for (const UnaryCase& c : unary_cases()) {
    INFO(c.name);
    for (const double low : {0.05, -2.95}) {
      const bool positive = std::string(c.name).find("log") == 0 ||
                            std::string(c.name).find("sqrt") != std::string::npos || std::string(c.name) == "rsqrt" ||
                            std::string(c.name) == "pow_scalar";
      if (low < 0 && positive && c.op != PointwiseOp::log_sigmoid) continue;
      const PointwiseArgs args = c.op == PointwiseOp::clamp ? PointwiseArgs{-1.01, 1.37} : c.args;
      const Tensor x = numbers_of(n, 4, low, low + 2.9, f64);
      const auto value = [&](const Tensor& t) { return kernel(c.op, PointwisePart::value, args, {t}, f64, {n}); };
      const Tensor difference = (value(x + h) - value(x - h)) * (1 / (2 * h)) * g;
      const Tensor grad =
          pointwise_grad(c.op, PointwisePart::grad0, args, g.to(f32), (c.reads_output ? value(x) : x).to(f32), {});
      const auto expected = difference.to_vector<double>(), got = grad.to_vector<double>();
      for (size_t i = 0; i < got.size(); ++i) CHECK(got[i] == doctest::Approx(expected[i]).epsilon(1e-4));
    }
  }
}

TEST_CASE("pointwise: both derivatives at once are bit-identical to one after the other") {
  const Shape shape{30, 301};
  for (const DType dtype : {f32, f64, f16, bf16}) {
    const auto numbers = [&](const Shape& of, uint32_t seed) {
      return numbers_of(numel_of(of), seed, 0.2, 3, f64).view(of).to(dtype);
    };
    const Tensor g = numbers(shape, 1), entire = numbers(shape, 2), row = numbers({301}, 3),
                 column = numbers({30, 1}, 4), turned = numbers({301, 30}, 5).t(), scalar = numbers({}, 6);
    for (const BinaryCase& c : binary_cases) {
      // The gradients of add and sub read no operand, so there is no joint kernel.
      if (c.op == PointwiseOp::add || c.op == PointwiseOp::sub) continue;
      for (const auto& [a, b] :
           {std::pair{entire, numbers(shape, 7)}, {entire, row}, {column, turned}, {scalar, entire}}) {
        INFO(str(c.name, " ", dtype, " of ", a.shape(), " and ", b.shape()));
        const Tensor first = pointwise_grad(c.op, PointwisePart::grad0, {}, g, a, b),
                     second = pointwise_grad(c.op, PointwisePart::grad1, {}, g, a, b);
        const Tensor held = g;
        const PointwiseGrads made = pointwise_grads(c.op, g, a, b);
        CHECK(equal(made.a, first));
        CHECK(equal(made.b, second));
        const Tensor free = g.clone();
        const void* const place = free.raw_data();
        const PointwiseGrads over = pointwise_grads(c.op, free, a, b);
        CHECK(over.a.raw_data() == place);
        CHECK(equal(over.a, first));
        CHECK(equal(over.b, second));
      }
    }
  }
}

TEST_CASE("pointwise: a product of f32 rounded to 16 bits") {
  const Tensor x = numbers_of(5000, 1).view({50, 100}), row = numbers_of(100, 2), scalar = full({}, 0.37);
  for (const DType dtype : {f16, bf16})
    for (const Tensor& y : {scalar, row, x}) CHECK(equal(mul_to(x, y, dtype), mul(x, y).to(dtype)));
}

TEST_CASE("pointwise: derivatives at kinks follow PyTorch") {
  struct Row {
    const char* name;
    PointwiseOp op;
    PointwiseArgs args;
    std::vector<float> kept, grad;
  };
  const Row rows[] = {
      {"relu", PointwiseOp::relu, {}, {0, -0.f, 2}, {0, 0, 1}},
      {"abs", PointwiseOp::abs, {}, {0, -3, 3}, {0, -1, 1}},
      {"sqrt", PointwiseOp::sqrt, {}, {0, 2}, {inf_f, 0.25f}},
      {"clamp", PointwiseOp::clamp, {-1, 1}, {-1, 1, 1.5f, -2, 0}, {0, 0, 0, 0, 1}},
      {"sign", PointwiseOp::sign, {}, {0, 5}, {0, 0}},
      {"leaky_relu", PointwiseOp::leaky_relu, {0.25, 0}, {0, -1, 1}, {0.25f, 0.25f, 1}},
      {"pow 0", PointwiseOp::pow_scalar, {0, 0}, {0, 3}, {0, 0}},
      {"pow 1", PointwiseOp::pow_scalar, {1, 0}, {0, 3}, {1, 1}},
      {"pow 2", PointwiseOp::pow_scalar, {2, 0}, {0, -3}, {0, -6}},
      {"pow 3", PointwiseOp::pow_scalar, {3, 0}, {0, -3}, {0, 27}},
      {"pow 0.5", PointwiseOp::pow_scalar, {0.5, 0}, {0, 4}, {inf_f, 0.25f}},
      {"pow -1", PointwiseOp::pow_scalar, {-1, 0}, {2}, {-0.25f}},
      {"gelu_tanh", PointwiseOp::gelu_tanh, {}, {1e38f, -1e38f, 0, inf_f, -inf_f}, {1, 0, 0.5f, 1, 0}},
      {"gelu_erf", PointwiseOp::gelu_erf, {}, {1e38f, -1e38f, 0, inf_f, -inf_f}, {1, 0, 0.5f, 1, 0}},
      {"silu", PointwiseOp::silu, {}, {1e38f, -1e38f, 0, inf_f, -inf_f, 84.9f}, {1, 0, 0.5f, 1, 0, 1}},
      {"mish", PointwiseOp::mish, {}, {1e38f, -1e38f, 0, inf_f, -inf_f, 19.9f, -84.9f}, {1, 0, 0.6f, 1, 0, 1, 0}},
      {"hardsigmoid", PointwiseOp::hardsigmoid, {}, {-3, 3, 0}, {0, 0, 1 / 6.f}}};
  for (const Row& row : rows) {
    INFO(row.name);
    const int64_t n = int64_t(row.kept.size());
    const auto grad = pointwise_grad(row.op, PointwisePart::grad0, row.args, ones({n}), Tensor::from(row.kept, {n}), {})
                          .to_vector<float>();
    for (size_t i = 0; i < grad.size(); ++i) {
      CAPTURE(row.kept[i]);
      if (std::isinf(row.grad[i])) CHECK(grad[i] == row.grad[i]);
      else CHECK(grad[i] == doctest::Approx(row.grad[i]).epsilon(1e-6));
    }
  }
  const Tensor a = Tensor::from<float>({1, 2, 3}), b = Tensor::from<float>({1, 3, 2}), g = ones({3});
  const auto grads = [&](PointwiseOp op, PointwisePart part) {
    return pointwise_grad(op, part, {}, g, a, b).to_vector<float>();
  };
  CHECK(grads(PointwiseOp::maximum, PointwisePart::grad0) == std::vector<float>{0.5f, 0, 1});
  CHECK(grads(PointwiseOp::maximum, PointwisePart::grad1) == std::vector<float>{0.5f, 1, 0});
  CHECK(grads(PointwiseOp::minimum, PointwisePart::grad0) == std::vector<float>{0.5f, 1, 0});
  const Tensor zero = zeros({2}), exponent = Tensor::from<float>({0, 2});
  CHECK(pointwise_grad(PointwiseOp::pow, PointwisePart::grad1, {}, ones({2}), zero, exponent).to_vector<float>() ==
        std::vector<float>{0, 0});
  CHECK(pointwise_grad(PointwiseOp::pow, PointwisePart::grad0, {}, ones({2}), zero, exponent).to_vector<float>() ==
        std::vector<float>{0, 0});
  CHECK(std::isnan(maximum(full({1}, NAN), ones({1})).item()));
  CHECK(std::isnan(minimum(ones({1}), full({1}, NAN)).item()));
}

TEST_CASE("pointwise: broadcasting and views agree with loops") {
  const Tensor base = numbers_of(5 * 7 * 3, 8).view({5, 7, 3}), other = numbers_of(5 * 7 * 3, 9).view({5, 7, 3});
  const std::pair<Tensor, Tensor> rows[] = {
      {base, other},
      {base, other.select(0, 1)},
      {base, other.slice(0, 0, 1)},
      {base, other.slice(1, 2, 3)},
      {base, other.slice(2, 0, 1)},
      {base.slice(1, 0, 1), other.slice(2, 1, 2)},
      {base, other[0][0][0]},
      {base[0][0][0], other},
      {base.permute({2, 0, 1}), other.permute({2, 0, 1})},
      {base.permute({2, 1, 0}), other.permute({2, 1, 0}).contiguous()},
      {base.slice(1, 0, end_of_dim, 2), other.slice(1, 1, 5)},
      {base.select(2, 1).unsqueeze(0).expand({4, 5, 7}), other.select(2, 0)},
      {base.slice(0, 0, 0), other.slice(0, 0, 1)},
      {numbers_of(3000, 1).view({3000, 1}), numbers_of(3, 2)},
      {numbers_of(6000, 1).view({3, 2000}), numbers_of(2000, 2)},
      {numbers_of(10000, 1).view({100, 100}).t(), numbers_of(10000, 2).view({100, 100})},
      {numbers_of(40, 1)[0], numbers_of(1, 2)}};
  for (const auto& [a, b] : rows) {
    const Tensor out = sub(a, b);
    INFO("a.shape ", a.shape(), ", b.shape ", b.shape());
    REQUIRE(out.shape() == broadcast_shapes("test", a.shape(), b.shape()));
    const auto x = a.expand(out.shape()).to_vector<float>(), y = b.expand(out.shape()).to_vector<float>(),
               z = out.to_vector<float>();
    bool right = true;
    for (size_t i = 0; i < z.size(); ++i) right &= z[i] == x[i] - y[i];
    CHECK(right);
    // into a strided view
    if (a.shape() == out.shape()) {
      const Tensor wide = zeros({out.numel() * 2}).view({-1, 2}).select(1, 0).view(out.shape());
      wide.copy_(a);
      sub_(wide, b);
      CHECK(equal(wide, out));
    }
  }
  const Tensor transposed = base.clone().permute({2, 1, 0});
  const Tensor expected = transposed + other.permute({2, 1, 0});
  add_(transposed, other.permute({2, 1, 0}));
  CHECK(equal(transposed, expected));
  CHECK(equal(where(lt(base, other), base, other), minimum(base, other)));
  CHECK(where(Tensor::from<bool>({true, false}, {2, 1}), full({}, 1), full({3}, 2)).to_vector<int>() ==
        std::vector<int>{1, 1, 1, 2, 2, 2});
}

TEST_CASE("pointwise: dtypes") {
  for (const DType dtype : {f16, bf16}) {
    const Tensor a = numbers_of(1003, 1).to(dtype), b = numbers_of(1003, 2).to(dtype);
    CHECK(equal(a * b, (a.to(f32) * b.to(f32)).to(dtype)));
    CHECK(equal(gelu_tanh(a), gelu_tanh(a.to(f32)).to(dtype)));
    CHECK(equal(lt(a, b), lt(a.to(f32), b.to(f32))));
  }
  CHECK(add(Tensor::from<uint8_t>({250, 3}), Tensor::from<uint8_t>({10, 4})).to_vector<int>() ==
        std::vector<int>{4, 7});
  CHECK(mul(Tensor::from<int8_t>({100, -3}), Tensor::from<int8_t>({2, 4})).to_vector<int>() ==
        std::vector<int>{-56, -12});
  const int64_t big = (int64_t(1) << 62) + 1;
  CHECK(add(Tensor::from<int64_t>({big}), Tensor::from<int64_t>({big})).item<int64_t>() == INT64_MIN + 2);
  CHECK(eq(Tensor::from<int64_t>({big}), Tensor::from<int64_t>({big - 1})).item<bool>() == false);
  CHECK(clamp(Tensor::from<int32_t>({-5, 0, 9}), -double(inf_f), 3).to_vector<int>() == std::vector<int>{-5, 0, 3});
  CHECK(abs(Tensor::from<int64_t>({-5, 5})).to_vector<int>() == std::vector<int>{5, 5});
  const Tensor t = Tensor::from<bool>({true, true, false, false}), u = Tensor::from<bool>({true, false, true, false});
  CHECK(logical_and(t, u).to_vector<int>() == std::vector<int>{1, 0, 0, 0});
  CHECK(logical_or(t, u).to_vector<int>() == std::vector<int>{1, 1, 1, 0});
  CHECK(logical_not(t).to_vector<int>() == std::vector<int>{0, 0, 1, 1});
  CHECK(eq(t, u).dtype() == boolean);
  CHECK(isnan(Tensor::from<float>({1, nan_f, inf_f})).to_vector<int>() == std::vector<int>{0, 1, 0});
  CHECK(isfinite(Tensor::from<float>({1, nan_f, -inf_f})).to_vector<int>() == std::vector<int>{1, 0, 0});
  CHECK(isfinite(Tensor::from<int32_t>({1, 2})).to_vector<int>() == std::vector<int>{1, 1});
  CHECK(lerp(zeros({1}), full({1}, 3), 1).item() == 3);
  CHECK(addcmul(ones({2}), full({2}, 2), full({2}, 3), 0.5).to_vector<int>() == std::vector<int>{4, 4});
}

TEST_CASE("pointwise: in place") {
  const Tensor x = arange(0, 10, 1, {.dtype = f32});
  const uint32_t version = x.storage()->version();
  CHECK(&add_(x, ones({1})) == &x);
  CHECK(x.storage()->version() == version + 1);
  CHECK(std::string(x.storage()->last_writer()) == "add_");
  add_(x, full({10}, 2), -0.5);
  CHECK(x.to_vector<int>() == std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  exp_(x);
  log_(x);
  CHECK(x[3].item() == doctest::Approx(3));

  // An operand that overlaps x is read before x changes.
  const Tensor y = arange(0, 3000, 1, {.dtype = f32}), before = y.clone();
  add_(y.slice(0, 1), y.slice(0, 0, -1));
  CHECK(equal(y.slice(0, 1), before.slice(0, 1) + before.slice(0, 0, -1)));
  const Tensor m = numbers_of(100, 1).view({10, 10}), old = m.clone();
  add_(m, m.t());
  CHECK(equal(m, old + old.t()));
  const Tensor r = numbers_of(100, 1).view({10, 10}), was = r.clone();
  mul_(r, r[4]);
  CHECK(equal(r, was * was[4]));
  mul_(r, r);
  CHECK(equal(r, (was * was[4]) * (was * was[4])));
}

TEST_CASE("pointwise: a gradient that nobody else holds is written over") {
  Tensor g = ones({5});
  const void* place = g.raw_data();
  const Tensor x = numbers_of(5, 1);
  CHECK(pointwise_grad(PointwiseOp::exp, PointwisePart::grad0, {}, g, x, {}).raw_data() == place);
  const Tensor second = g;
  CHECK(pointwise_grad(PointwiseOp::exp, PointwisePart::grad0, {}, g, x, {}).raw_data() != place);
  CHECK(pointwise_grad(PointwiseOp::add, PointwisePart::grad1, {}, g, {}, {}).raw_data() == place);
}

TEST_CASE("pointwise: messages") {
  const Tensor f = ones({2, 3}), i = ones({2, 3}, {.dtype = i64}), b = ones({2, 3}, {.dtype = boolean}),
               four = ones({4}), repeated = ones({3}).expand({2, 3});
  CHECK_ERROR_BEGINS(exp(i), "[exp] expected a floating dtype, got i64");
  CHECK_ERROR_BEGINS(add(b, b), "[add] expected a floating or integer dtype, got bool");
  CHECK_ERROR_BEGINS(logical_not(f), "[logical_not] expected dtype bool, got f32");
  CHECK_ERROR_BEGINS(div(i, i), "[div] expected a floating dtype, got i64");
  CHECK_ERROR_BEGINS(add(f, i), "[add] expected operands of one dtype, got f32 and i64; convert with .to(dtype)");
  CHECK_ERROR_BEGINS(add(f, Tensor()), "[add] tensor is undefined");
  CHECK_ERROR_BEGINS(add_(f, four), str("[add_] expected b to broadcast to ", f.shape(), ", got ", four.shape()));
  CHECK_ERROR_BEGINS(add_(ones({3}), f), str("[add_] expected b to broadcast to ", Shape{3}, ", got ", f.shape()));
  CHECK_ERROR_BEGINS(add_(repeated, f),
                     "[add_] expected a tensor without repeated elements, got one expanded along dim 0; use .clone()");
  CHECK_ERROR_BEGINS(relu_(ones({1}).expand({3})),
                     "[relu_] expected a tensor without repeated elements, got one expanded along dim 0; use .clone()");
  CHECK_ERROR_BEGINS(
      mul_scalar(i, 0.5),
      "[mul_scalar] expected a whole number for i64, got 0.5; take a floating dtype: .to(f32), or {.dtype = f32}");
  CHECK_ERROR_BEGINS(where(f, f, f), "[where] expected condition of dtype bool, got f32");
  CHECK_ERROR_BEGINS(pointwise_grad(PointwiseOp::eq, PointwisePart::grad0, {}, f, f, f),
                     "[pointwise_grad] expected an operation and part with a derivative");
  CHECK_ERROR_BEGINS(pointwise_grads(PointwiseOp::add, f, f, f),
                     "[pointwise_grads] expected an operation whose derivatives read an operand");
  CHECK_ERROR_BEGINS(pointwise_grads(PointwiseOp::mul, four, f, four),
                     str("[mul] expected b to broadcast to ", four.shape(), ", got ", f.shape()));
  CHECK_ERROR_BEGINS(mul_to(f, f, f64),
                     "[mul_to] expected operands in f32 and a result in f16 or bf16, got f32 and f64");
  CHECK_ERROR_BEGINS(add(f, four), "[add]");
  CHECK(f.to_vector<int>() == std::vector<int>{1, 1, 1, 1, 1, 1});  // nothing was changed
}
