// dump: runs every family of kernels on fixed inputs on the device and writes the results to a file, or compares two
// such files case by case, for example the simulated device's with a GPU's.
//
//    dump OUT.safetensors
//    dump --compare A.safetensors B.safetensors [TOLERANCE]
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>

#include "data/safetensors.h"
#include "tensor/check.h"
#include "tensor/fp8.h"
#include "tensor/ops.h"
#include "tensor/random.h"
#include "tests/tolerances.h"

using namespace lockstep;

namespace {

const Device cuda0{Device::Type::cuda, 0};
using Results = std::vector<std::pair<std::string, Tensor>>;

/// Pseudo-random values between -2 and 2 that no operation treats specially; the same on every system.
Tensor values(const Shape& shape, uint32_t seed, DType dtype) {
  const Tensor x = empty(shape, {.dtype = f32, .device = cpu});
  uint32_t state = seed * 2654435761u + 1;
  for (int64_t i = 0; i < x.numel(); ++i) {
    state = state * 1664525u + 1013904223u;
    x.data<float>()[i] = float(int(state >> 9)) * 0x1p-21f - 2;
  }
  return x.to(dtype).to(cuda0);
}
Tensor numbers(const Shape& shape, int64_t below) {
  const Tensor x = empty(shape, {.dtype = i64, .device = cpu});
  for (int64_t i = 0; i < x.numel(); ++i) x.data<int64_t>()[i] = i * 7 % below;
  return x.to(cuda0);
}

Results run_all() {
  Results all;
  const auto add_case = [&](const std::string& name, const std::function<Results()>& run) {
    try {
      for (const auto& [part, tensor] : run())
        all.emplace_back(part.empty() ? name : name + "." + part, tensor.to(cpu).contiguous());
    } catch (const Error& error) { std::fprintf(stderr, "%s: %s\n", name.c_str(), error.what()); }
  };
  for (const DType dtype : {f32, f16, bf16}) {
    for (const Shape& shape : {Shape{33, 31}, Shape{4, 1000}, Shape{3, 4099}}) {
      const std::string end = str(" ", dtype, " ", shape);
      const int64_t rows = shape[0], columns = shape[1];
      const Tensor x = values(shape, 1, dtype), y = values(shape, 2, dtype), positive = abs(x) + 0.1,
                   w = values({columns}, 3, dtype), b = values({columns}, 4, dtype);
      add_case("pointwise" + end, [&]() -> Results {
        return {{"add", add(x, y)},
                {"mul", mul(x, w)},
                {"div", div(x, positive)},
                {"exp", exp(x)},
                {"log", log(positive)},
                {"tanh", tanh(x)},
                {"gelu", gelu(x)},
                {"silu", silu(x)},
                {"sigmoid", sigmoid(x)},
                {"sqrt", sqrt(positive)},
                {"sin", sin(x)},
                {"max", maximum(x, y)},
                {"transposed", x.t().contiguous()},
                {"where", where(gt(x, y), x, y)}};
      });
      add_case("reduce" + end, [&]() -> Results {
        return {{"sum", sum(x)},
                {"rows", sum(x, {1})},
                {"columns", mean(x, {0})},
                {"max", amax(x, {1})},
                {"var", var(x, {1})},
                {"argmax", argmax(x, 1)},
                {"logsumexp", logsumexp(x, {1})},
                {"cumsum", cumsum(x, 1)},
                {"sort", sort(x, 1).indices},
                {"topk", topk(x, 5, 1).values}};
      });
      add_case("rows" + end, [&]() -> Results {
        const NormResult norm = layer_norm(x, {columns}, w, b), rms = rms_norm(x, w);
        const NormGrad grad = layer_norm_grad(y, x, norm, {columns}, w, true);
        const Tensor s = softmax(x, 1), target = numbers({rows}, columns);
        const CrossEntropyRows loss = cross_entropy_rows(x, target);
        return {
            {"softmax", s},
            {"softmax_grad", softmax_grad(false, y, s, 1)},
            {"log_softmax", log_softmax(x, 1)},
            {"layer_norm", norm.out},
            {"layer_norm_grad", grad.x},
            {"layer_norm_weight", grad.weight},
            {"rms_norm", rms.out},
            {"cross_entropy", loss.loss},
            {"cross_entropy_grad", cross_entropy_rows_grad(ones({rows}, {.dtype = loss.loss.dtype(), .device = cuda0}),
                                                           x, loss.lse, target, {}, {}, false)}};
      });
      add_case("matmul" + end, [&]() -> Results {
        return {{"product", matmul(x, y.t())}, {"linear", linear(x, y, {}, Activation::gelu_tanh)}};
      });
      add_case("index" + end, [&]() -> Results {
        const Tensor index = numbers({50}, rows), table = zeros(shape, {.dtype = dtype, .device = cuda0});
        embedding_grad_(table, values({50, columns}, 5, dtype), index);
        return {{"embedding", embedding(x, index)},
                {"embedding_grad", table},
                {"gather", gather(x, 1, numbers({rows, 9}, columns))},
                {"tril", tril(x)}};
      });
    }
    const std::string end = str(" ", dtype);
    add_case("conv" + end, [&]() -> Results {
      const Tensor x = values({2, 4, 9, 11}, 6, dtype), w = values({6, 2, 3, 3}, 7, dtype),
                   g = values({2, 6, 5, 6}, 8, dtype);
      const ConvArgs args{.stride = {2, 2}, .padding = {1, 1}, .groups = 2};
      const WeightBiasGrad grad = conv2d_grad_weight(g, x, w.shape(), args, true);
      return {{"forward", conv2d(x, w, {}, args)},    {"grad_input", conv2d_grad_input(g, w, x.shape(), args)},
              {"grad_weight", grad.weight},           {"grad_bias", grad.bias},
              {"max_pool", max_pool2d(x, {}).values}, {"avg_pool", avg_pool2d(x, {})}};
    });
    for (const int64_t width : {32, 64, 128}) {
      add_case(str("attention ", width) + end, [&]() -> Results {
        const Tensor q = values({2, 4, 131, width}, 9, dtype), k = values({2, 2, 131, width}, 10, dtype),
                     v = values({2, 2, 131, width}, 11, dtype), g = values({2, 4, 131, width}, 12, dtype);
        const AttentionArgs args{.scale = 0.2, .causal = true};
        const AttentionResult result = attention(q, k, v, {}, args);
        const AttentionGrad grad = attention_grad(g, q, k, v, {}, result, args);
        return {{"forward", result.out}, {"lse", result.lse}, {"q", grad.q}, {"k", grad.k}, {"v", grad.v}};
      });
    }
    add_case("random" + end, [&]() -> Results {
      manual_seed(5);
      const TensorOptions there{.dtype = dtype, .device = cuda0};
      return {{"rand", rand({1001}, there)},
              {"randn", randn({1001}, there)},
              {"dropout", dropout(values({1001}, 13, dtype), 0.3, next_random_key())}};
    });
  }
  for (const DType dtype : {f32, f16, bf16}) {
    add_case(str("fp8 ", dtype), [&]() -> Results {
      const Tensor one = full({1}, 50, {.device = cuda0}), inverse = full({1}, 0.02, {.device = cuda0}),
                   a = values({64, 96}, 1, dtype), b = values({48, 96}, 2, dtype);
      const Tensor seen = full({1}, 0, {.device = cuda0});
      const Fp8Cast left = cast_fp8(a, {.scale = one, .amax = seen, .turned = true}),
                    right = cast_fp8(b, {.format = Fp8Format::e5m2, .scale = one});
      return {{"codes", left.codes},
              {"turned", left.turned},
              {"largest", seen},
              {"product", matmul_fp8({left.codes, Fp8Format::e4m3, inverse}, {right.codes, Fp8Format::e5m2, inverse},
                                     values({48}, 3, dtype), dtype)}};
    });
  }
  return all;
}

int compare(const std::string& first, const std::string& second, double units) {
  const auto a = data::SafeTensors::open(first), b = data::SafeTensors::open(second);
  int wrong = 0, equal_bits = 0, count = 0;
  for (const std::string& name : a.names()) {
    ++count;
    if (!b.contains(name)) {
      std::printf("%-50s only in %s\n", name.c_str(), first.c_str());
      ++wrong;
      continue;
    }
    const Tensor x = a.tensor(name), y = b.tensor(name);
    if (x.shape() == y.shape() && x.dtype() == y.dtype() && equal(x, y)) {
      ++equal_bits;
      continue;
    }
    const auto u = x.to_vector<double>(), v = y.to_vector<double>();
    double worst = u.size() == v.size() ? 0 : INFINITY, largest = 0;
    for (size_t i = 0; i < u.size() && i < v.size(); ++i) {
      largest = std::max(largest, std::abs(u[i]));
      const double difference = std::abs(u[i] - v[i]);
      worst = std::isnan(u[i]) && std::isnan(v[i]) ? worst
              : std::isnan(difference)             ? INFINITY
                                                   : std::max(worst, difference);
    }
    const double unit = x.dtype() == f16    ? 0x1p-10
                        : x.dtype() == bf16 ? 0x1p-7
                                            : 0x1p-20,
                 of_fp8 = name.starts_with("fp8") ? testing::tolerance(testing::Near::product_fp8, x.dtype()) : 0,
                 allowed = std::max(units * unit, of_fp8) * std::max(largest, 1.0);
    std::printf("%-50s largest difference %.3g of values up to %.3g%s\n", name.c_str(), worst, largest,
                worst <= allowed ? "" : "  TOO LARGE");
    wrong += worst > allowed;
  }
  std::printf("%d cases, %d with equal bits, %d too far apart\n", count, equal_bits, wrong);
  return wrong > 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc >= 4 && !std::strcmp(argv[1], "--compare"))
      return compare(argv[2], argv[3], argc > 4 ? std::stod(argv[4]) : 4);
    LOCKSTEP_CHECK(argc == 2 && argv[1][0] != '-', "expected: dump OUT.safetensors, or dump --compare A B [TOLERANCE]");
    data::save_safetensors(argv[1], run_all());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  }
  return 0;
}
