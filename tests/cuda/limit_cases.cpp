// limit_cases(): the table of operations of limit_cases.h, and the inputs that they get.
#include "tests/cuda/limit_cases.h"

#include "optim/step_batch.h"
#include "optim/step_kernels.h"
#include "tests/tolerances.h"

namespace testing {
using namespace lockstep;

namespace {

using T = Tensors;

/// A hash of i in which every bit counts.
uint64_t mixed_bits(uint64_t i) {
  i = (i + 0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9;
  i = (i ^ i >> 31) * 0x94d049bb133111eb;
  return i ^ i >> 29;
}

T parts(const ValuesIndices& found) { return {found.values, found.indices}; }
T parts(const NormResult& norm) { return {norm.out, norm.mean, norm.rstd}; }
T parts(const CrossEntropyRows& rows) { return {rows.loss, rows.lse}; }
T parts(const AttentionResult& made) { return {made.out, made.lse}; }

constexpr double chain = tolerance(Near::chain, f16);
const AdamArgs adam_args{.lr = 0.1,
                         .beta1 = 0.9,
                         .beta2 = 0.99,
                         .eps = 1e-3,
                         .weight_decay = 0.1,
                         .decoupled = true,
                         .bias1 = 0.1,
                         .bias2 = 0.01};

std::vector<LimitCase> pointwise_cases() {
  const LimitInput x{{999}}, y{{1000}}, byte{{1000}, u8}, row{{1000}, f16, 0, true}, single{{}, u8}, tile{{40, 25}};
  return {{"gelu", {x}, [](T in) { return T{gelu(in[0])}; }},
          {"exp of f32", {{{1001}, f32}}, [](T in) { return T{exp(in[0])}; }},
          {"a row added", {y, row}, [](T in) { return T{in[0] + in[1]}; }},
          {"a column added", {x, {{1}}}, [](T in) { return T{in[0] + in[1]}; }},
          {"compared", {byte, byte}, [](T in) { return T{lt(in[0], in[1])}; }},
          {"where", {{{999}, boolean, 2}, x, x}, [](T in) { return T{where(in[0], in[1], in[2])}; }},
          {"addcmul", {y, y, row}, [](T in) { return T{addcmul(in[0], in[1], in[2], 0.5)}; }},
          {"lerp", {x, x}, [](T in) { return T{lerp(in[0], in[1], 0.25)}; }},
          {"gradient of gelu",
           {x, x},
           [](T in) { return T{pointwise_grad(PointwiseOp::gelu_tanh, PointwisePart::grad0, {}, in[0], in[1], {})}; }},
          {"gradient of a quotient",
           {y, y, row},
           [](T in) { return T{pointwise_grad(PointwiseOp::div, PointwisePart::grad1, {}, in[0], in[1], in[2] + 5)}; }},
          {"gradients of a gate",
           {y, y, row},
           [](T in) {
             const PointwiseGrads grads = pointwise_grads(PointwiseOp::silu_mul, in[0], in[1], in[2]);
             return T{grads.a, grads.b};
           }},
          {"converted", {byte}, [](T in) { return T{in[0].to(f16)}; }},
          {"every third", {byte}, [](T in) { return T{in[0].slice(1, 1, 1000, 3).contiguous()}; }},
          {"turned", {{{40, 25}, u8}}, [](T in) { return T{in[0].transpose(1, 2).contiguous()}; }},
          {"turned in f32", {{{40, 25}, f32}}, [](T in) { return T{in[0].transpose(1, 2).contiguous()}; }},
          {"permuted",
           {{{5, 7, 29}, u8}},
           [](T in) {
             return T{in[0].permute({0, 3, 1, 2}).contiguous()};
           }},
          {"turned and added", {tile, {{25, 40}}}, [](T in) { return T{in[0].transpose(1, 2) + in[1]}; }},
          {"of lines side by side", {single, single}, [](T in) { return T{stack(in).t().contiguous()}; }},
          {"filled in part",
           {byte},
           [](T in) {
             in[0].slice(1, 0, 1000, 7).fill_(3);
             return in;
           }},
          {"joined", {byte, {{23}, u8}}, [](T in) { return T{cat(in, 1)}; }},
          {"repeated",
           {{{10}, u8}, {{1}, u8}},
           [](T in) {
             return T{(in[0].view({-1, 10, 1}) * in[1].view({-1, 1, 1})).expand({in[0].size(0), 10, 30}).contiguous()};
           }},
          {"lower triangles", {{{21, 33}, u8}}, [](T in) { return T{tril(in[0], 2)}; }},
          {"unscaled", {y}, [](T in) {
             unscale_({in[0]}, 0.5);
             return in;
           }}};
}

std::vector<LimitCase> reductions() {
  const LimitInput x{{1000}}, byte{{1000}, u8}, middle{{20, 48}, u8}, single{{}, u8}, target{{}, i64, 1000};
  return {{"sum", {byte}, [](T in) { return T{sum(in[0], {1})}; }},
          {"mean", {x}, [](T in) { return T{mean(in[0], {1})}; }},
          {"maximum", {{{999}}}, [](T in) { return T{amax(in[0], {1})}; }},
          {"variance", {x}, [](T in) { return T{var(in[0], {1})}; }},
          {"logsumexp", {x}, [](T in) { return T{logsumexp(in[0], {1})}; }},
          {"sum of a middle dim", {middle}, [](T in) { return T{sum(in[0], {1})}; }},
          {"sum of lines side by side", {single, single}, [](T in) { return T{sum(stack(in), {0})}; }},
          {"argmax", {byte}, [](T in) { return parts(max(in[0], 1)); }},
          {"argmin of a middle dim", {middle}, [](T in) { return parts(min(in[0], 1)); }},
          {"sort", {{{100}, u8}}, [](T in) { return parts(sort(in[0], 1)); }},
          {"topk", {byte}, [](T in) { return parts(topk(in[0], 5, 1)); }},
          {"softmax", {x}, [](T in) { return T{softmax(in[0], 1)}; }},
          {"log softmax of an odd length", {{{999}}}, [](T in) { return T{log_softmax(in[0], 1)}; }, 0, 4e-3},
          {"gradient of softmax", {x, x}, [](T in) { return T{softmax_grad(false, in[0], in[1], 1)}; }},
          {"cross entropy", {x, target}, [](T in) { return parts(cross_entropy_rows(in[0], in[1])); }},
          {"cross entropy with its gradient",
           {x, target},
           [](T in) {
             const Tensor loss = empty({in[0].size(0)}, {f32, in[0].device()});
             cross_entropy_rows_into(loss, ones_like(loss), in[0], in[1], {}, {});
             return T{loss, in[0]};
           }},
          {"gradient of cross entropy", {x, target}, [](T in) {
             const Tensor lse = logsumexp(in[0].to(f32), {1});
             return T{cross_entropy_rows_grad(ones_like(lse), in[0], lse, in[1], {}, {}, true)};
           }}};
}

std::vector<LimitCase> layers() {
  const LimitInput x{{1000}}, weight{{1000}, f16, 0, true}, image{{16, 16}}, angles{{6, 32}, f16, 0, true};
  const ConvArgs padded{.padding = {1, 1}};
  std::vector<LimitCase> cases{
      {"layer norm",
       {x, weight, weight},
       [](T in) { return parts(layer_norm(in[0], {1000}, in[1], in[2])); },
       0,
       chain},
      {"RMS norm", {x, weight}, [](T in) { return T{rms_norm(in[0], in[1]).out}; }},
      {"sum and layer norm",
       {x, x, weight, weight},
       [](T in) {
         const AddNorm made = add_norm(in[0], in[1], {1000}, in[2], in[3], {});
         return T{made.sum, made.norm.out};
       },
       0,
       chain},
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
       chain},
      {"gradient of batch norm",
       {image, image, {{}, f32}, {{}, f32}},
       [](T in) {
         const Shape planes{1, -1, 256};
         const NormResult norm{.out = {}, .mean = in[2], .rstd = in[3]};
         return T{batch_norm_grad(in[0].view(planes), in[1].view(planes), norm, {}, false, true).x.view({-1, 256})};
       },
       0,
       chain},
      {"rotary", {{{3, 6, 64}}, angles, angles}, [](T in) { return T{rotary(in[0], in[1], in[2])}; }},
      {"rotary of packed heads",
       {{{6, 3 * 64}}, angles, angles},
       [](T in) { return T{rotary_packed(in[0], 2, 3, in[1], in[2])}; }},
      {"rotary of 2^32 tokens", {{{2}}, {{1}}, {{1}}}, [](T in) { return T{rotary(in[0], in[1], in[2])}; }, 1},
      {"embedding", {{{}, i64, 50}, {{50, 1000}, f16, 0, true}}, [](T in) { return T{embedding(in[1], in[0])}; }, 1000},
      {"index_select", {{{101}, u8}, {{67}, i64, 101, true}}, [](T in) { return T{index_select(in[0], 1, in[1])}; }},
      {"index_add",
       {{{101}}, {{40}, i64, 101, true}, {{40}}},
       [](T in) { return T{index_add_(in[0], 1, in[1], in[2])}; }},
      {"gather", {{{101}, u8}, {{50}, i64, 101}}, [](T in) { return T{gather(in[0], 1, in[1])}; }},
      {"scatter", {{{101}, u8}, {{50}, i64, 101}, {{50}, u8}}, [](T in) { return T{scatter(in[0], 1, in[1], in[2])}; }},
      {"conv2d",
       {{{4, 8, 8}}, {{3, 2, 3, 3}, f16, 0, true}},
       [](T in) {
         return T{conv2d(in[0], cat({in[1], in[1]}), {}, {.padding = {1, 1}, .groups = 2})};
       },
       0,
       chain,
       [](int64_t row, int64_t rows) {  // all rows of one group, then all rows of the other
         return std::vector<double>{.5 * double(row) / double(rows), .5 + .5 * double(row) / double(rows)};
       }},
      {"conv2d to many channels",
       {{{1, 3, 3}}, {{1, 16, 16}, f16, 0, true}, {{}, f16}},
       [=](T in) {
         return T{conv2d(in[1].view({1, 1, 16, 16}), in[0], in[2], padded).view({-1, 16, 16})};
       },
       256,
       chain},
      {"conv2d's input",
       {{{3, 8, 8}}, {{3, 4, 3, 3}, f16, 0, true}},
       [=](T in) {
         return T{conv2d_grad_input(in[0], in[1], {in[0].size(0), 4, 8, 8}, padded)};
       },
       256,
       chain},
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
       chain},
      {"max pool", {{{2, 8, 16}}}, [](T in) { return parts(max_pool2d(in[0], {})); }},
      {"gradient of max pool",
       {{{1, 2, 16}}, {{1, 1, 8}}},
       [](T in) { return T{max_pool2d_grad(in[1], max_pool2d(in[0], {}).indices, in[0].shape())}; }},
  };
  for (const DType dtype : {f16, f32}) {  // with tensor cores and without
    const LimitInput head{{2, 9, 32}, dtype}, more{{1, 9, 32}, dtype};
    const AttentionArgs causal{.scale = 0, .causal = true};
    cases.push_back({str("attention ", dtype), {head, more, more}, [=](T in) {
                       return parts(attention(in[0], in[1], in[2], {}, causal));
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
                     chain});
  }
  // The gradients of weight and bias sum over all rows, which 264 blocks share in a strided loop.
  cases.push_back({.name = "gradient of layer norm",
                   .inputs = {{{1 << 18}}, {{1 << 18}}, {{}, f32}, {{}, f32}},
                   .run =
                       [](T in) {
                         return T{layer_norm_grad(in[0], in[1], {{}, in[2], in[3]}, {1 << 18}, {}, false).x};
                       },
                   .bound = chain,
                   .places = [](int64_t row, int64_t) { return std::vector<double>{(double(row % 264) + 0.5) / 264}; },
                   .slow = true});
  return cases;
}

std::vector<LimitCase> others() {
  std::vector<LimitCase> cases;
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
  return cases;
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
  std::vector<std::vector<LimitCase> (*)()> all{pointwise_cases, reductions, layers, others};
  all.insert(all.end(), more_limit_cases().begin(), more_limit_cases().end());
  std::vector<LimitCase> cases;
  for (const auto& more : all)
    for (LimitCase& one : more()) cases.push_back(std::move(one));
  return cases;
}

std::vector<std::vector<LimitCase> (*)()>& more_limit_cases() {
  static std::vector<std::vector<LimitCase> (*)()> functions;
  return functions;
}

}  // namespace testing
