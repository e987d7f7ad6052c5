// bench_cuda: speed of each kernel on a device, compared with the bound from memory bandwidth and peak FLOP/s
// (docs/cuda-kernels.md).
//
//   bench_cuda [--device cuda:0] [--shrink N] [--gbps 4800] [--tflops 989] [--only TEXT]
//
// Prints a JSON object per line, for cases whose names contain TEXT; N divides the sizes.
#include <fmt/format.h>

#include <cmath>
#include <functional>

#include "bench/program.h"
#include "optim/step_kernels.h"
#include "tensor/kernels.h"
#include "tensor/ops.h"
#include "tensor/stream.h"

using namespace lockstep;

namespace {

struct Options {
  Device device;
  int64_t shrink = 1;
  double gbps = 4800, tflops = 989;  // H200: HBM3e, dense bf16
  std::string only;
};

/// Returns the median time of a run in milliseconds. Each sample repeats the run until 5 ms pass, but at most 64 times.
double time_of(const std::function<void()>& run, Device device) {
  Event start(device, true), end(device, true);
  for (int i = 0; i < 3; ++i) run();
  int repeat = 1;
  std::vector<double> all;
  while (all.size() < 7) {
    start.record();
    for (int i = 0; i < repeat; ++i) run();
    end.record();
    end.synchronize();
    const double ms = end.milliseconds_since(start);
    if (ms < 5 && repeat < 64) repeat *= 2;
    else all.push_back(ms / repeat);
  }
  return bench::median(all);
}

/// Makes a text fit into a JSON string.
std::string one_line(std::string text) {
  for (char& c : text)
    if (c == '"' || c == '\\' || (unsigned char)c < ' ') c = ' ';
  return text.substr(0, 160);
}

void report(const Options& o, const std::string& name, double bytes, double flops, const std::function<void()>& run) {
  if (name.find(o.only) == std::string::npos) return;
  try {
    const double ms = time_of(run, o.device), bound = std::max(bytes / o.gbps * 1e-6, flops / o.tflops * 1e-9);
    fmt::print("{{\"name\": \"{}\", \"ms\": {:.4f}, \"gbps\": {:.0f}, \"tflops\": {:.1f}, \"of_bound\": {:.3f}}}\n",
               name, ms, bytes / ms * 1e-6, flops / ms * 1e-9, bound / ms);
  } catch (const std::exception& error) {
    fmt::print("{{\"name\": \"{}\", \"error\": \"{}\"}}\n", name, one_line(error.what()));
  }
  std::fflush(stdout);
}

void run_all(const Options& o) {
  const auto options = [&](DType dtype) { return TensorOptions{.dtype = dtype, .device = o.device}; };
  const int64_t n = (int64_t(1) << 28) / o.shrink;
  const double count = double(n);
  {
    const Tensor x = ones({n}, options(bf16)), y = ones({n}, options(bf16));
    report(o, "copy bf16", 4 * count, 0, [&] { y.copy_(x); });
    report(o, "gelu bf16", 4 * count, 0, [&] { gelu(x); });
    report(o, "add bf16", 6 * count, 0, [&] { add(x, y); });
    report(o, "sum bf16", 2 * count, 0, [&] { sum(x); });
    report(o, "silu_mul derivatives bf16", 10 * count, 0, [&] { pointwise_grads(PointwiseOp::silu_mul, x, y, y); });
    const int64_t tokens = std::max<int64_t>(n / 4096, 1);  // 32 query heads, 8 key heads and 8 value heads
    const Tensor angles = ones({tokens, 32}, options(bf16));
    Tensor packed = ones({1, tokens, 48 * 64}, options(bf16));
    report(o, "rotary packed bf16", 4 * double(tokens * 40 * 64), 0,
           [&] { packed = rotary_packed(std::move(packed), 40, 48, angles, angles); });
    const int64_t side = int64_t(std::sqrt(count));
    const Tensor square = x.narrow(0, 0, side * side).view({side, side}),
                 out = y.narrow(0, 0, side * side).view({side, side});
    report(o, "transpose bf16", 4.0 * double(side * side), 0, [&] { out.copy_(square.t()); });
  }
  {
    const int64_t m = n / 4;
    Tensor p = ones({m}, options(f32)), g = ones({m}, options(f32)), first = zeros({m}, options(f32)),
           second = zeros({m}, options(f32)), none, low = zeros({m}, options(bf16));
    report(o, "adamw f32 + bf16 copy", 30 * double(m), 0, [&] {
      kernels::adam(o.device, p, g, first, second, none, low,
                    {.lr = 1e-3,
                     .beta1 = 0.9,
                     .beta2 = 0.95,
                     .eps = 1e-8,
                     .weight_decay = 0.1,
                     .decoupled = true,
                     .bias1 = 0.5,
                     .bias2 = 0.5});
    });
    report(o, "unscale f32", 8 * double(m), 0, [&] { unscale_({p}, 1); });
  }
  for (const int64_t columns : {768, 3072}) {  // the gradient of a bias
    const Tensor x = ones({std::max<int64_t>(n / 2 / columns, 1), columns}, options(bf16));
    report(o, fmt::format("sum over rows bf16 {}", columns), 2 * double(x.numel()), 0, [&] { sum(x, {0}); });
  }
  for (const int64_t columns : {768, 4096, 50304}) {
    const int64_t rows = std::max<int64_t>(n / 2 / columns, 1);
    const double cells = double(rows * columns);
    const Tensor x = randn({rows, columns}, options(bf16)), w = ones({columns}, options(bf16)),
                 b = zeros({columns}, options(bf16));
    report(o, fmt::format("softmax bf16 {}", columns), 4 * cells, 0, [&] { softmax(x, -1); });
    if (columns < 10000) {
      const NormResult saved = layer_norm(x, {columns}, w, b);
      report(o, fmt::format("layer_norm bf16 {}", columns), 4 * cells, 0, [&] { layer_norm(x, {columns}, w, b); });
      report(o, fmt::format("layer_norm backward bf16 {}", columns), 6 * cells, 0,
             [&] { layer_norm_grad(x, x, saved, {columns}, w, true); });
    } else {
      const Tensor target = zeros({rows}, options(i64));
      Tensor loss = empty({rows}, options(f32)), lse = empty({rows}, options(f32)), none,
             grad = empty(x.shape(), options(bf16));
      const Tensor upstream = ones({rows}, options(f32));
      report(o, fmt::format("cross_entropy bf16 {}", columns), 2 * cells, 0,
             [&] { kernels::cross_entropy(o.device, x, target, none, {}, none, loss, lse, none); });
      report(o, fmt::format("cross_entropy with gradient bf16 {}", columns), 4 * cells, 0,
             [&] { kernels::cross_entropy(o.device, x, target, none, {}, upstream, loss, lse, grad); });
      report(o, fmt::format("cross_entropy backward bf16 {}", columns), 4 * cells, 0,
             [&] { kernels::cross_entropy_grad(o.device, upstream, x, lse, target, none, {}, grad); });
    }
  }
  const int64_t side = std::max<int64_t>(int64_t(8192 / std::sqrt(double(o.shrink))) / 8 * 8, 8);
  for (const DType dtype : {bf16, f16, f32}) {
    const Tensor a = randn({side, side}, options(dtype)), b = randn({side, side}, options(dtype));
    report(o, fmt::format("matmul {} {}", name_of(dtype), side), 3.0 * double(side * side * size_of(dtype)),
           2.0 * std::pow(double(side), 3), [&] { matmul(a, b); });
  }
  {
    const int64_t tokens = std::max<int64_t>(16384 / o.shrink, 8), width = 768;
    const Tensor x = randn({tokens, width}, options(bf16)), w = randn({4 * width, width}, options(bf16)),
                 b = zeros({4 * width}, options(bf16));
    report(o, "linear + gelu bf16 768 to 3072", 0, 8.0 * double(tokens * width * width),
           [&] { linear(x, w, b, Activation::gelu_tanh); });
  }
  for (const DType dtype : {bf16, f32}) {
    const int64_t batch = std::max<int64_t>(64 / o.shrink, 1);
    const Tensor x = randn({batch, 56, 56, 64}, options(dtype)).permute({0, 3, 1, 2}),
                 w = randn({64, 64, 3, 3}, options(dtype));  // channels last; y has x's shape
    const ConvArgs args{.padding = {1, 1}};
    const double bytes = 2.0 * double(x.numel() * size_of(dtype)), flops = 2.0 * 9 * 64 * double(x.numel());
    report(o, fmt::format("conv2d {} 64", name_of(dtype)), bytes, flops, [&] { conv2d(x, w, {}, args); });
    report(o, fmt::format("conv2d gradient of input {} 64", name_of(dtype)), bytes, flops,
           [&] { conv2d_grad_input(x, w, x.shape(), args); });
    report(o, fmt::format("conv2d gradient of weight {} 64", name_of(dtype)), bytes, flops,
           [&] { conv2d_grad_weight(x, x, w.shape(), args, false); });
  }
  {
    const int64_t batch = std::max<int64_t>(16 / o.shrink, 1), tokens = o.shrink > 1 ? 32 : 1024;
    const Tensor q = randn({batch, 12, tokens, 64}, options(bf16));
    const double flops = 4.0 * double(batch * 12 * tokens * tokens * 64) / 2;
    const AttentionArgs args{.scale = 0.125, .causal = true};
    Tensor none, out = empty(q.shape(), options(bf16)), lse = empty({batch, 12, tokens}, options(f32)),
                 gq = empty(q.shape(), options(bf16)), gk = empty(q.shape(), options(bf16)),
                 gv = empty(q.shape(), options(bf16));
    report(o, "attention causal bf16", 0, flops, [&] { kernels::attention(o.device, q, q, q, none, args, out, lse); });
    report(o, "attention causal backward bf16", 0, 2.5 * flops,
           [&] { kernels::attention_grad(o.device, q, q, q, q, none, out, lse, args, gq, gk, gv); });
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  std::string device = "cuda:0";
  bench::Program app("Speed of each kernel on a device");
  app.add_option("--device", device);
  app.add_option("--shrink", o.shrink, "divides the sizes")->check(CLI::PositiveNumber);
  app.add_option("--gbps", o.gbps, "peak of memory bandwidth");
  app.add_option("--tflops", o.tflops, "peak of products");
  app.add_option("--only", o.only, "cases whose names contain this");
  return app.run(argc, argv, [&] {
    o.device = parse_device(device);
    check_device("bench_cuda", o.device);
    run_all(o);
  });
}
