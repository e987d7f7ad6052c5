// limit_cases(): the table of operations of limit_cases.h, and the inputs that they get.
#include "tests/cuda/limit_cases.h"

#include "optim/step_batch.h"
#include "optim/step_kernels.h"
#include "tests/tolerances.h"

namespace lockstep::testing {
namespace {

using T = Tensors;

/// A hash of i in which every bit counts.
uint64_t mixed_bits(uint64_t i) {
  i = (i + 0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9;
  i = (i ^ i >> 31) * 0x94d049bb133111eb;
  return i ^ i >> 29;
}

LimitCase unary(std::string name, LimitInput x, std::function<Tensor(const Tensor&)> f, double bound = -1) {
  return {.name = std::move(name), .inputs = {std::move(x)}, .run = [f](T in) { return T{f(in[0])}; }, .bound = bound};
}
LimitCase binary(std::string name, LimitInput a, LimitInput b, std::function<Tensor(const Tensor&, const Tensor&)> f) {
  return {
      .name = std::move(name), .inputs = {std::move(a), std::move(b)}, .run = [f](T in) { return T{f(in[0], in[1])}; }};
}
T both(const ValuesIndices& found) { return {found.values, found.indices}; }

const AdamArgs adam_args{.lr = 0.1,
                         .beta1 = 0.9,
                         .beta2 = 0.99,
                         .eps = 1e-3,
                         .weight_decay = 0.1,
                         .decoupled = true,
                         .bias1 = 0.1,
                         .bias2 = 0.01};

void add_pointwise(std::vector<LimitCase>& cases) {
  const LimitInput x{{999}}, y{{1000}}, byte{{1000}, u8}, row{{1000}, f16, 0, true}, column{{1}};
  const std::vector<LimitCase> all{
      unary("gelu", x, [](const Tensor& a) { return gelu(a); }),
      unary("exp of f32", {{1001}, f32}, [](const Tensor& a) { return exp(a); }),
      binary("a row added", y, row, [](const Tensor& a, const Tensor& b) { return a + b; }),
      binary("a column added", x, column, [](const Tensor& a, const Tensor& b) { return a + b; }),
      binary("compared", byte, byte, [](const Tensor& a, const Tensor& b) { return lt(a, b); }),
      {"where", {{{999}, boolean, 2}, x, x}, [](T in) { return T{where(in[0], in[1], in[2])}; }},
      {"addcmul", {y, y, row}, [](T in) { return T{addcmul(in[0], in[1], in[2], 0.5)}; }},
      binary("lerp", x, x, [](const Tensor& a, const Tensor& b) { return lerp(a, b, 0.25); }),
      binary("gradient of gelu", x, x,
             [](const Tensor& g, const Tensor& a) {
               return pointwise_grad(PointwiseOp::gelu_tanh, PointwisePart::grad0, {}, g, a, {});
             }),
      {"gradient of a quotient",
       {y, y, row},
       [](T in) {
         in[2] = in[2] + 5;
         return T{pointwise_grad(PointwiseOp::div, PointwisePart::grad1, {}, in[0], in[1], in[2])};
       }},
      {"gradients of a gate",
       {y, y, row},
       [](T in) {
         const PointwiseGrads grads = pointwise_grads(PointwiseOp::silu_mul, in[0], in[1], in[2]);
         return T{grads.a, grads.b};
       }},
      unary("converted", byte, [](const Tensor& a) { return a.to(f16); }),
      unary("every third", byte, [](const Tensor& a) { return a.slice(1, 1, 1000, 3).contiguous(); }),
      unary("turned", {{40, 25}, u8},
            [](const Tensor& a) {
              return a.permute({0, 2, 1}).contiguous();
            }),
      unary("turned in f32", {{40, 25}, f32},
            [](const Tensor& a) {
              return a.permute({0, 2, 1}).contiguous();
            }),
      unary("permuted", {{5, 7, 29}, u8},
            [](const Tensor& a) {
              return a.permute({0, 3, 1, 2}).contiguous();
            }),
      binary("turned and added", {{40, 25}}, {{25, 40}},
             [](const Tensor& a, const Tensor& b) {
               return a.permute({0, 2, 1}) + b;
             }),
      binary("of lines side by side", {{}, u8}, {{}, u8},
             [](const Tensor& a, const Tensor& b) {
               return stack({a, b}).t().contiguous();
             }),
      unary("filled in part", byte,
            [](const Tensor& a) {
              a.slice(1, 0, 1000, 7).fill_(3);
              return a;
            }),
      binary("joined", byte, {{23}, u8},
             [](const Tensor& a, const Tensor& b) {
               return cat({a, b}, 1);
             }),
      binary("repeated", {{10}, u8}, {{1}, u8},
             [](const Tensor& a, const Tensor& b) {
               return (a.view({-1, 10, 1}) * b.view({-1, 1, 1})).expand({a.size(0), 10, 30}).contiguous();
             }),
      unary("lower triangles", {{21, 33}, u8}, [](const Tensor& a) { return tril(a, 2); }),
      {"unscaled", {y}, [](T in) {
         unscale_({in[0]}, 0.5);
         return in;
       }}};
  cases.insert(cases.end(), all.begin(), all.end());
}

void add_reductions(std::vector<LimitCase>& cases) {
  const LimitInput x{{1000}}, byte{{1000}, u8};
  const std::vector<LimitCase> all{
      unary("sum", byte, [](const Tensor& a) { return sum(a, {1}); }),
      unary("mean", x, [](const Tensor& a) { return mean(a, {1}); }),
      unary("maximum", {{999}}, [](const Tensor& a) { return amax(a, {1}); }),
      unary("variance", x, [](const Tensor& a) { return var(a, {1}); }),
      unary("logsumexp", x, [](const Tensor& a) { return logsumexp(a, {1}); }),
      unary("sum of a middle dim", {{20, 48}, u8}, [](const Tensor& a) { return sum(a, {1}); }),
      binary("sum of lines side by side", {{}, u8}, {{}, u8},
             [](const Tensor& a, const Tensor& b) {
               return sum(stack({a, b}), {0});
             }),
      {"argmax", {byte}, [](T in) { return both(max(in[0], 1)); }},
      {"argmin of a middle dim", {{{20, 48}, u8}}, [](T in) { return both(min(in[0], 1)); }},
      {"sort", {{{100}, u8}}, [](T in) { return both(sort(in[0], 1)); }},
      {"topk", {byte}, [](T in) { return both(topk(in[0], 5, 1)); }},
      unary("softmax", x, [](const Tensor& a) { return softmax(a, 1); }),
      unary(
          "log softmax of an odd length", {{999}}, [](const Tensor& a) { return log_softmax(a, 1); }, 4e-3),
      binary("gradient of softmax", x, x,
             [](const Tensor& g, const Tensor& y) { return softmax_grad(false, g, y, 1); }),
      {"cross entropy",
       {x, {{}, i64, 1000}},
       [](T in) {
         const CrossEntropyRows rows = cross_entropy_rows(in[0], in[1]);
         return T{rows.loss, rows.lse};
       }},
      {"cross entropy with its gradient",
       {x, {{}, i64, 1000}},
       [](T in) {
         const Tensor loss = empty({in[0].size(0)}, {f32, in[0].device()});
         cross_entropy_rows_into(loss, ones_like(loss), in[0], in[1], {}, {});
         return T{loss, in[0]};
       }},
      {"gradient of cross entropy", {x, {{}, i64, 1000}}, [](T in) {
         const Tensor lse = logsumexp(in[0].to(f32), {1});
         return T{cross_entropy_rows_grad(ones_like(lse), in[0], lse, in[1], {}, {}, true)};
       }}};
  cases.insert(cases.end(), all.begin(), all.end());
}

void add_layers(std::vector<LimitCase>& cases) {
  const LimitInput x{{1000}}, weight{{1000}, f16, 0, true}, image{{16, 16}};
  const std::vector<LimitCase> all{
      {"layer norm",
       {x, weight, weight},
       [](T in) {
         const NormResult norm = layer_norm(in[0], {1000}, in[1], in[2]);
         return T{norm.out, norm.mean, norm.rstd};
       },
       0,
       tolerance(Near::chain, f16)},
      {"RMS norm", {x, weight}, [](T in) { return T{rms_norm(in[0], in[1]).out}; }},
      {"sum and layer norm",
       {x, x, weight, weight},
       [](T in) {
         const AddNorm made = add_norm(in[0], in[1], {1000}, in[2], in[3], {});
         return T{made.sum, made.norm.out};
       },
       0,
       tolerance(Near::chain, f16)},
      {"batch norm by running statistics",
       {{{8, 125}}, {{8}, f32, 0, true}, {{8}, f32, 5, true}},
       [](T in) { return T{batch_norm(in[0], {}, {}, in[1], in[2] * in[2] + 1, false).out}; }},
      {"batch norm",
       {image},
       [](T in) {
         const NormResult norm = batch_norm(in[0].view({1, -1, 256}), {}, {}, {}, {}, true);
         return T{norm.out.view({-1, 256}), norm.mean, norm.rstd};
       },
       0,
       tolerance(Near::chain, f16)},
      {"gradient of batch norm",
       {image, image, {{}, f32}, {{}, f32}},
       [](T in) {
         const Shape planes{1, -1, 256};
         const NormGrad grad = batch_norm_grad(in[0].view(planes), in[1].view(planes),
                                               {.out = {}, .mean = in[2], .rstd = in[3]}, {}, false, true);
         return T{grad.x.view({-1, 256})};
       },
       0,
       tolerance(Near::chain, f16)},
      {"rotary",
       {{{3, 6, 64}}, {{6, 32}, f16, 0, true}, {{6, 32}, f16, 0, true}},
       [](T in) { return T{rotary(in[0], in[1], in[2])}; }},
      {"rotary of packed heads",
       {{{6, 3 * 64}}, {{6, 32}, f16, 0, true}, {{6, 32}, f16, 0, true}},
       [](T in) { return T{rotary_packed(in[0], 2, 3, in[1], in[2])}; }},
      {"rotary of 2^32 tokens", {{{2}}, {{1}}, {{1}}}, [](T in) { return T{rotary(in[0], in[1], in[2])}; }, 1},
      {"embedding", {{{}, i64, 50}, {{50, 1000}, f16, 0, true}}, [](T in) { return T{embedding(in[1], in[0])}; }, 1000},
      binary("index_select", {{101}, u8}, {{67}, i64, 101, true},
             [](const Tensor& a, const Tensor& index) { return index_select(a, 1, index); }),
      {"index_add",
       {{{101}}, {{40}, i64, 101, true}, {{40}}},
       [](T in) { return T{index_add_(in[0], 1, in[1], in[2])}; }},
      binary("gather", {{101}, u8}, {{50}, i64, 101},
             [](const Tensor& a, const Tensor& index) { return gather(a, 1, index); }),
      {"scatter", {{{101}, u8}, {{50}, i64, 101}, {{50}, u8}}, [](T in) { return T{scatter(in[0], 1, in[1], in[2])}; }},
      {"conv2d",
       {{{4, 8, 8}}, {{3, 2, 3, 3}, f16, 0, true}},
       [](T in) {
         return T{conv2d(in[0], cat({in[1], in[1]}), {}, {.padding = {1, 1}, .groups = 2})};
       },
       0,
       tolerance(Near::chain, f16),
       [](int64_t row, int64_t rows) {  // all rows of one group, then all rows of the other
         return std::vector<double>{.5 * double(row) / double(rows), .5 + .5 * double(row) / double(rows)};
       }},
      {"conv2d to many channels",
       {{{1, 3, 3}}, {{1, 16, 16}, f16, 0, true}, {{}, f16}},
       [](T in) {
         return T{conv2d(in[1].view({1, 1, 16, 16}), in[0], in[2], {.padding = {1, 1}}).view({-1, 16, 16})};
       },
       256,
       tolerance(Near::chain, f16)},
      {"conv2d's input",
       {{{3, 8, 8}}, {{3, 4, 3, 3}, f16, 0, true}},
       [](T in) {
         return T{conv2d_grad_input(in[0], in[1], {in[0].size(0), 4, 8, 8}, {.padding = {1, 1}})};
       },
       256,
       tolerance(Near::chain, f16)},
      {"conv2d's weight and bias",
       {image, image},
       [](T in) {
         const Shape planes{1, -1, 16, 16};
         const int64_t n = in[0].size(0);
         const WeightBiasGrad grad = conv2d_grad_weight(in[0].view(planes), in[1].view(planes), {n, 1, 3, 3},
                                                        {.padding = {1, 1}, .groups = n}, true);
         return T{grad.weight, grad.bias};
       },
       0,
       tolerance(Near::chain, f16)},
      {"max pool", {{{2, 8, 16}}}, [](T in) { return both(max_pool2d(in[0], {})); }},
      {"gradient of max pool",
       {{{1, 2, 16}}, {{1, 1, 8}}},
       [](T in) { return T{max_pool2d_grad(in[1], max_pool2d(in[0], {}).indices, in[0].shape())}; }},
  };
  cases.insert(cases.end(), all.begin(), all.end());
  for (const DType dtype : {f16, f32}) {  // with tensor cores and without
    const LimitInput head{{2, 9, 32}, dtype}, more{{1, 9, 32}, dtype};
    cases.push_back({str("attention ", dtype), {head, more, more}, [](T in) {
                       const AttentionResult made = attention(in[0], in[1], in[2], {}, {.scale = 0, .causal = true});
                       return T{made.out, made.lse};
                     }});
    cases.push_back({str("gradient of attention ", dtype),
                     {head, more, more, head},
                     [](T in) {
                       const AttentionArgs args{.scale = 0.1, .causal = true};
                       const AttentionResult made = attention(in[0], in[1], in[2], {}, args);
                       const AttentionGrad grad = attention_grad(in[3], in[0], in[1], in[2], {}, made, args);
                       return T{grad.q, grad.k, grad.v};
                     },
                     0,
                     tolerance(Near::chain, f16)});
  }
  // The gradients of weight and bias sum over all rows, which 264 blocks share in a strided loop.
  cases.push_back({.name = "gradient of layer norm",
                   .inputs = {{{1 << 18}}, {{1 << 18}}, {{}, f32}, {{}, f32}},
                   .run =
                       [](T in) {
                         return T{layer_norm_grad(in[0], in[1], {{}, in[2], in[3]}, {1 << 18}, {}, false).x};
                       },
                   .bound = tolerance(Near::chain, f16),
                   .places = [](int64_t row, int64_t) { return std::vector<double>{(double(row % 264) + 0.5) / 264}; },
                   .slow = true});
}

void add_others(std::vector<LimitCase>& cases) {
  for (const bool together : {false, true})
    cases.push_back(step_case(
        together ? "adam of all" : "adam",
        [](Device on, T& in) {
          Tensor none;
          kernels::adam(on, in[0], in[1], in[2], in[3], none, in[4], adam_args);
        },
        together));
  cases.push_back(step_case("sgd", [](Device on, T& in) {
    kernels::sgd(on, in[0], in[1], in[2], in[4],
                 {.lr = 0.1, .momentum = 0.9, .dampening = 0, .weight_decay = 0.1, .nesterov = true, .first = false});
  }));
  cases.push_back({"squares of all", {{{StepBatch::chunk}}}, [](T in) {
                     if (in[0].device().is_cpu()) return T{sum_squares(in[0], {1}, false, f64)};
                     const Tensor sums = empty({in[0].size(0)}, {f64, in[0].device()});
                     StepBatch batch(in[0].device());
                     batch.set({});
                     batch.add_squares({{in[0].view({-1})}}, sums);
                     return T{sums};
                   }});
}

}  // namespace

LimitCase step_case(std::string name, std::function<void(Device, Tensors&)> step, bool together) {
  const LimitInput state{{1000}, f32}, half{{1000}, bf16};
  return {std::move(name), {state, half, state, state, half}, [=](Tensors in) {
            in[3] = mul(in[3], in[3]);
            const Device device = in[0].device();
            if (!together || device.is_cpu()) {
              step(device, in);
            } else {  // in chunks, as when one kernel steps all parameters
              StepBatch batch(device);
              {
                const StepBatch::Scope scope(batch, 0, 1);
                step(device, in);
              }
              batch.set({});
              batch.launch();
            }
            return Tensors{in[0], in[2], in[3], in[4]};
          }};
}

Tensor limit_rows(const LimitInput& input, int number, int64_t begin, int64_t end) {
  const int64_t width = numel_of(input.shape), first = input.full ? 0 : begin * width,
                last = input.full ? width : end * width;
  std::vector<double> values;
  for (int64_t i = first; i < last; ++i) {
    const uint64_t bits = mixed_bits(uint64_t(i) + (uint64_t(number) << 40));
    values.push_back(is_floating(input.dtype) ? (double(bits % 129) - 64) / 32
                                              : double(bits % uint64_t(input.below > 0 ? input.below : 100)));
  }
  return Tensor::from(values, input.full ? input.shape : with_rows(end - begin, input.shape)).to(cpu).to(input.dtype);
}

std::vector<LimitCase> limit_cases() {
  std::vector<LimitCase> cases;
  add_pointwise(cases);
  add_reductions(cases);
  add_layers(cases);
  add_others(cases);
  for (const auto& more : more_limit_cases())
    for (LimitCase& one : more()) cases.push_back(std::move(one));
  return cases;
}

std::vector<std::vector<LimitCase> (*)()>& more_limit_cases() {
  static std::vector<std::vector<LimitCase> (*)()> functions;
  return functions;
}

}  // namespace lockstep::testing
