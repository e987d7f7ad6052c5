// Pointwise operations, copies, fills and optimizer steps on the device against the CPU: every operation, part and
// dtype, shapes that end within a vector, and operands that are broadcast, transposed, sliced or unaligned.
#include "optim/step_kernels.h"
#include "tensor/convert.h"
#include "tensor/functors.h"
#include "tests/cuda/steps.h"

using namespace lockstep;
using namespace testing;

namespace {

constexpr DType integers[] = {i64, i32, i8, u8};

struct Operation {
  std::string name;
  PointwiseOp op;
  int inputs;
  std::string types;
  bool grad0 = false, grad1 = false, positive = false;
};

std::vector<Operation> all_operations() {
  std::vector<Operation> rows;
  const auto add = [&](std::string name, PointwiseOp op, int inputs, std::string types, bool grads) {
    const bool positive = name.find("log") == 0 || name.find("sqrt") != std::string::npos || name.find("pow") == 0;
    rows.push_back(
        {name, op, inputs, types, grads && types != "logic", grads && inputs == 2, positive && name != "logical_not"});
  };
#define LOCKSTEP_UNARY(name, F, types) add(#name, PointwiseOp::name, 1, #types, true);
#define LOCKSTEP_UNARY1(name, F, types, p, d) add(#name, PointwiseOp::name, 1, #types, true);
#define LOCKSTEP_UNARY2(name, F, types, p, d, q, e) add(#name, PointwiseOp::name, 1, #types, true);
#define LOCKSTEP_BINARY(name, F, types) add(#name, PointwiseOp::name, 2, #types, true);
#define LOCKSTEP_COMPARE(name, F) add(#name, PointwiseOp::name, 2, "compare", false);
#include "tensor/pointwise.def"
  add("addcmul", PointwiseOp::addcmul, 3, "numbers", false);
  add("lerp", PointwiseOp::lerp, 2, "floats", false);
  return rows;
}

std::vector<DType> dtypes_of(const std::string& types) {
  std::vector<DType> list;
  if (types != "logic") list.assign(std::begin(float_dtypes), std::end(float_dtypes));
  if (types == "numbers" || types == "compare") list.insert(list.end(), std::begin(integers), std::end(integers));
  if (types == "logic" || types == "compare") list.push_back(boolean);
  return list;
}

Tensor values(const Shape& shape, DType dtype, uint32_t seed, bool positive = false) {
  if (!is_floating(dtype)) return random_values(shape, dtype, seed, 9);
  Tensor x = random_tensor(shape, f64, seed, 4);
  if (positive) x = add_scalar(abs(x), 0.01);
  return x.to(dtype);
}

void run_kernel(Device on, PointwiseOp op, PointwisePart part, const PointwiseArgs& args, const Arguments& in,
                Tensor& out) {
  std::vector<const Tensor*> list;
  for (const Tensor& x : in) list.push_back(&x);
  kernels::pointwise(on, op, part, args, list.data(), int(list.size()), out);
}

void check_pointwise(const Within& within, PointwiseOp op, PointwisePart part, const PointwiseArgs& args,
                     const Arguments& inputs, const Tensor& output) {
  const auto run = [&](Device on, const Arguments& in, Arguments& to) { run_kernel(on, op, part, args, in, to[0]); };
  against_cpu(within.what, inputs, {output}, run, within.bound);
}

}  // namespace

TEST_CASE("cuda: every pointwise operation, part and dtype") {
  for (const Operation& row : all_operations())
    for (const DType dtype : dtypes_of(row.types))
      for (const int64_t n : {1, 33, 1000}) {
        const PointwiseArgs args = is_floating(dtype) ? PointwiseArgs{0.75, 20} : PointwiseArgs{2, 5};
        Arguments in;
        for (int i = 0; i < row.inputs; ++i) in.push_back(values({n}, dtype, uint32_t(i + 1), row.positive));
        const Tensor out = empty({n}, {row.types == "compare" ? boolean : dtype, cpu});
        const std::string what = str(row.name, " ", dtype, " (", n, ")");
        check_pointwise({what, is_floating(dtype) ? tolerance(Near::pointwise, dtype) : 0}, row.op,
                        PointwisePart::value, args, in, out);
        if (!is_floating(dtype)) continue;
        for (const auto part : {PointwisePart::grad0, PointwisePart::grad1}) {
          if (part == PointwisePart::grad0 ? !row.grad0 : !row.grad1) continue;
          Arguments with_grad{values({n}, dtype, 9)};
          with_grad.insert(with_grad.end(), in.begin(), in.end());
          check_pointwise({what + " grad", tolerance(Near::derivative, dtype)}, row.op, part, args, with_grad, out);
          if (part == PointwisePart::grad0 || row.name == "add" || row.name == "sub") continue;
          against_cpu(
              what + " both, over the gradient", with_grad, {out, out},
              [&](Device on, const Arguments& a, Arguments& to) {
                kernels::copy(on, a[0], to[0]);
                kernels::pointwise_grads(on, row.op, to[0], a[1], a[2], to[0], to[1]);
              },
              tolerance(Near::derivative, dtype));
        }
      }
}

TEST_CASE("cuda: powers that are shortened, and large angles") {
  const Tensor x = values({1001}, f32, 1, true), g = values({1001}, f32, 2);
  for (const double p : {-1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0, 2.5}) {
    check_pointwise({str("x^", p)}, PointwiseOp::pow_scalar, PointwisePart::value, {p, 0}, {x}, x);
    check_pointwise({str("x^", p, " grad")}, PointwiseOp::pow_scalar, PointwisePart::grad0, {p, 0}, {g, x}, x);
  }
  for (const auto op : {PointwiseOp::sin, PointwiseOp::cos}) {
    const Tensor angles = random_tensor({500}, f32, 3, 1e30);
    check_pointwise({"large angles"}, op, PointwisePart::value, {}, {angles}, angles);
    check_pointwise({"large angles, grad"}, op, PointwisePart::grad0, {}, {values({500}, f32, 2), angles}, angles);
  }
}

TEST_CASE("cuda: sin and cos of any f32 are within one unit in the last place") {
  std::vector<float> angles;  // of every exponent, and those nearest to multiples of pi / 2
  for (int64_t bits = 0; bits < 0x7f800000; bits += 7919) angles.push_back(std::bit_cast<float>(int32_t(bits)));
  for (double revolutions = 1; revolutions < 2e38; revolutions = std::floor(revolutions * 1.01 + 1))
    angles.push_back(float(revolutions * 1.5707963267948966));
  const int64_t n = int64_t(angles.size());
  const Tensor x = cat({Tensor::from(angles, {n}), neg(Tensor::from(angles, {n}))}).to(cuda0), one = ones_like(x);
  struct Row {
    const char* name;
    PointwiseOp op;
    PointwisePart part;
    double (*exact)(double);
  };
  for (const Row& row :
       {Row{"sin", PointwiseOp::sin, PointwisePart::value, std::sin},
        Row{"cos", PointwiseOp::cos, PointwisePart::value, std::cos},
        Row{"gradient of sin", PointwiseOp::sin, PointwisePart::grad0, std::cos},
        Row{"gradient of cos", PointwiseOp::cos, PointwisePart::grad0, [](double a) { return -std::sin(a); }}}) {
    CAPTURE(std::string(row.name));
    Tensor out = empty_like(x);
    run_kernel(cuda0, row.op, row.part, {}, row.part == PointwisePart::value ? Arguments{x} : Arguments{one, x}, out);
    const auto in = x.to_vector<float>(), got = out.to_vector<float>();
    double worst = 0;
    for (size_t i = 0; i < in.size(); ++i) {
      const double exact = row.exact(double(in[i]));
      const double unit = std::max(std::ldexp(1.0, exact == 0 ? -149 : std::ilogb(exact) - 23), 0x1p-149);
      worst = std::max(worst, std::abs(double(got[i]) - exact) / unit);
    }
    CHECK(worst <= 0.95);
  }
}

TEST_CASE("cuda: a bound or a threshold that is NaN") {
  for (const DType dtype : float_dtypes)
    for (const auto& [op, args] : {std::pair<PointwiseOp, PointwiseArgs>{PointwiseOp::clamp, {NAN, 1}},
                                   {PointwiseOp::clamp, {-1, NAN}},
                                   {PointwiseOp::clamp, {-INFINITY, INFINITY}},
                                   {PointwiseOp::softplus, {1, NAN}}})
      for (const auto part : {PointwisePart::value, PointwisePart::grad0}) {
        const Tensor x = values({33}, dtype, 1);
        x.narrow(0, 3, 1).fill_(std::nan(""));
        check_pointwise({str("NaN ", dtype)}, op, part, args,
                        part == PointwisePart::value ? Arguments{x} : Arguments{ones({33}, {dtype, cpu}), x}, x);
      }
}

TEST_CASE("cuda: pointwise operands of any strides") {
  for (const DType dtype : {f32, bf16, i8}) {
    const Tensor x = values({6, 35, 7}, dtype, 1), y = values({7, 35, 6}, dtype, 2).permute({2, 1, 0});
    const Tensor bias = values({7}, dtype, 3), column = values({35, 1}, dtype, 4), scalar = values({}, dtype, 5);
    const Tensor shifted = values({6 * 35 * 7 + 3}, dtype, 6).narrow(0, 3, 6 * 35 * 7).view({6, 35, 7});
    const Tensor strided = values({6, 35, 14}, dtype, 7).slice(2, 0, 14, 2),
                 repeated = values({6, 1, 1}, dtype, 8).expand({6, 35, 7});
    const Tensor large = values({300, 256}, dtype, 9), across = values({256, 300}, dtype, 10).t(),
                 wide_bias = values({256}, dtype, 11);
    const Tensor turned_out = empty({7, 35, 6}, {dtype, cpu}).permute({2, 1, 0}),
                 part_of_out = empty({6, 35, 9}, {dtype, cpu}).narrow(2, 1, 7);
    struct Case {
      const char* name;
      Tensor a, b, out;
    };
    const Case cases[] = {{"transposed", x, y, x},
                          {"bias", x, bias, x},
                          {"column", x, column, x},
                          {"scalar", x, scalar, x},
                          {"both scalars", scalar, scalar, scalar},
                          {"shifted", shifted, x, x},
                          {"sliced", strided, x, x},
                          {"repeated", repeated, x, x},
                          {"into a transposed", x, y, turned_out},
                          {"into a part", x, shifted, part_of_out},
                          {"broadcast both", bias, column, empty({35, 7}, {dtype, cpu})},
                          {"large across", large, across, large},
                          {"large bias", large, wide_bias, large},
                          {"expanded", scalar.expand({6, 35, 7}), x, x}};
    for (const Case& c : cases) {
      check_pointwise({str(c.name, " ", dtype), 0}, PointwiseOp::sub, PointwisePart::value, {}, {c.a, c.b}, c.out);
      check_pointwise({str(c.name, " where ", dtype), 0}, PointwiseOp::where, PointwisePart::value, {},
                      {gt(c.a, c.b), c.a, c.b}, c.out);
      if (!is_floating(dtype)) continue;
      check_kernel({str(c.name, " both gradients ", dtype), 0}, kernels::pointwise_grads, PointwiseOp::mul,
                   values(c.out.shape(), dtype, 12), c.a, c.b, Out{c.out}, Out{empty(c.out.shape(), {dtype, cpu})});
    }
  }
  const Tensor start = random_tensor({999}, f32, 4), other = random_tensor({999}, f32, 5);
  against_cpu(
      "in place", {start, other}, {start},
      [](Device on, const Arguments& a, Arguments& to) {
        kernels::copy(on, a[0], to[0]);
        run_kernel(on, PointwiseOp::mul, PointwisePart::value, {}, {to[0], a[1]}, to[0]);
      },
      0);
}

TEST_CASE("cuda: copies between all dtypes, transposes, parts, fills") {
  for (const DType from : all_dtypes)
    for (const DType to : all_dtypes) {
      Tensor x = is_floating(from) ? random_tensor({4, 41}, f64, 3, 300).to(from) : values({4, 41}, from, 3);
      if (is_floating(from)) x.select(0, 0).fill_(from == f16 ? 65504 : 1e30), x.select(0, 1).fill_(std::nan(""));
      for (const Tensor& source : {x, x.t(), x.slice(1, 1, 40, 3), x.select(0, 2).expand({3, 41})})
        check_kernel({str(from, " to ", to), 0}, kernels::copy, source, Out{empty(source.shape(), {to, cpu})});
    }
  for (const DType dtype : {u8, bf16, f32, f64}) {
    for (const Shape& shape : {Shape{0, 3}, Shape{1, 1}, Shape{4, 4}, Shape{33, 70}, Shape{129, 65}, Shape{257, 300},
                               Shape{72, 136}, Shape{208, 80}}) {
      const Tensor x = values(shape, dtype, 2), out = empty({shape[1], shape[0]}, {dtype, cpu});
      check_kernel({str("transpose ", shape, " ", dtype), 0}, kernels::copy, x.t(), Out{out});
      check_kernel({str("into a transposed ", shape, " ", dtype), 0}, kernels::copy, x, Out{out.t()});
      check_kernel({str("transpose and convert ", shape, " ", dtype), 0}, kernels::copy, x.t(), Out{out.to(f16)});
      check_kernel({str("convert into a transposed ", shape, " ", dtype), 0}, kernels::copy, x, Out{out.to(f16).t()});
    }
    const Tensor heads = values({3, 37, 4, 20}, dtype, 5).permute({0, 2, 1, 3}),
                 batches = values({3, 5, 40, 36}, dtype, 6).transpose(2, 3),
                 wide = values({3, 2, 48, 80}, dtype, 7).transpose(2, 3);
    for (const Tensor& x :
         {heads, batches, batches.transpose(0, 1), batches.narrow(2, 3, 20), wide, wide.narrow(2, 16, 64)})
      check_kernel({str("permuted ", dtype), 0}, kernels::copy, x, Out{empty(x.shape(), {dtype, cpu})});
    for (const int64_t n : {0, 1, 31, 4099}) {
      const Tensor out = empty({n, 3}, {dtype, cpu});
      for (const Tensor& to : {out, out.t(), out.narrow(1, 1, 1)})
        check_kernel({str("fill ", n, " ", dtype), 0}, kernels::fill, Out{to},
                     is_floating(dtype) ? Scalar(7.5) : Scalar((int64_t(1) << 53) + 1));
    }
  }
}

TEST_CASE("cuda: optimizer steps are bit-identical to the CPU's") {
  check_steps([](const auto& compare) {
    Tensor none;
    for (const bool decoupled : {false, true}) {
      const AdamArgs args{1e-2, 0.9, 0.99, 1e-8, 0.1, decoupled, 0.5, 0.3, decoupled, 0.7};
      for (const bool keeps_largest : {false, true})
        compare(keeps_largest ? "amsgrad" : "adam", [&](Device on, const Tensor& g, Arguments& to) {
          kernels::adam(on, to[0], g, to[1], to[2], keeps_largest ? to[3] : none, to[4], args);
        });
    }
    for (const double momentum : {0.0, 0.9})
      for (const bool first : {true, false})
        compare("sgd", [&](Device on, const Tensor& g, Arguments& to) {
          kernels::sgd(on, to[0], g, to[1], to[4], {0.1, momentum, 0.1, 0.01, !first, first, first, 2});
        });
  });
}

TEST_CASE("cuda: all finite") {
  for (const DType dtype : float_dtypes)
    for (const int64_t n : {0, 1, 33, 4099}) {
      const Tensor x = random_tensor({n}, dtype, 1).to(cuda0);
      CHECK(kernels::all_finite(cuda0, x));
      if (n == 0) continue;
      for (const int64_t at : {int64_t(0), n / 2, n - 1})
        for (const double bad : {double(INFINITY), -double(INFINITY), std::nan("")}) {
          const Tensor y = x.clone();
          y.narrow(0, at, 1).fill_(bad);
          CHECK_FALSE(kernels::all_finite(cuda0, y));
          if (n > 1) CHECK(kernels::all_finite(cuda0, y.narrow(0, (at + 1) % n, 1)));
        }
    }
  CHECK(kernels::all_finite(cuda0, random_integers({10}, 5).to(cuda0)));
}
