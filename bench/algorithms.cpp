// bench_algorithms: times the algorithms that cuBLASLt proposes for each product of a GPT-2's training step in bf16.
// Prints the fastest algorithm's settings as a row of tensor/cuda/timed_algorithms.def.
//
//   bench_algorithms [--device cuda:0] [--tokens 16384] [--width 768] [--vocab 50257] [--algorithms 16]
//
// Prints a JSON object per product, and one for the step. cuBLASLt's own choice is the first proposal. The products of
// the output layer are also timed with the vocabulary rounded up, which does not count in the step's sum.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "data/json.h"
#include "tensor/cuda/timed_algorithms.h"
#include "tensor/ops.h"
#include "tensor/padded.h"
#include "tensor/random.h"
#include "tensor/stream.h"

using namespace lockstep;
using namespace lockstep::on_cuda;
using data::Json;

namespace {

struct Options {
  Device device{Device::Type::cuda, 0};
  int64_t tokens = 16384, width = 768, vocab = 50257, algorithms = 16;
};

/// One of the step's products, row-major: out (m, n) = op(a) op(b), summed over k.
struct StepProduct {
  const char* name;
  int64_t calls, m, n, k;  // calls in a step of 12 layers
  bool transposed_a, transposed_b;
  cublasLtEpilogue_t epilogue;
  bool adds = false;  // adds a residual of out's shape
};

std::vector<StepProduct> products(const Options& o) {
  const int64_t t = o.tokens, w = o.width;
  constexpr auto none = CUBLASLT_EPILOGUE_DEFAULT, bias = CUBLASLT_EPILOGUE_BIAS,
                 gelu = CUBLASLT_EPILOGUE_GELU_AUX_BIAS, dgelu = CUBLASLT_EPILOGUE_DGELU;
  std::vector<StepProduct> all = {
      {"queries, keys and values", 12, t, 3 * w, w, false, true, bias},
      {"attention's output", 12, t, w, w, false, true, bias, true},
      {"up, with gelu", 12, t, 4 * w, w, false, true, gelu},
      {"down", 12, t, w, 4 * w, false, true, bias, true},
      {"gradient of down's input, with gelu's derivative", 12, t, 4 * w, w, false, false, dgelu},
      {"gradient of up's input", 12, t, w, 4 * w, false, false, none},
      {"gradient of attention's output", 12, t, w, w, false, false, none},
      {"gradient of queries, keys and values", 12, t, w, 3 * w, false, false, none},
      {"gradient of down's weight", 12, w, 4 * w, t, true, false, none},
      {"gradient of up's weight", 12, 4 * w, w, t, true, false, none},
      {"gradient of the output's weight", 12, w, w, t, true, false, none},
      {"gradient of the packed weight", 12, 3 * w, w, t, true, false, none}};
  const int64_t round = padded_columns(o.vocab);
  const StepProduct of_head[] = {{"logits", 1, t, o.vocab, w, false, true, none},
                                 {"gradient of the head's input", 1, t, w, o.vocab, false, false, none},
                                 {"gradient of the head's weight", 1, o.vocab, w, t, true, false, none},
                                 {"logits of a round vocabulary", 0, t, round, w, false, true, none},
                                 {"gradient of that head's input", 0, t, w, round, false, false, none},
                                 {"gradient of that head's weight", 0, round, w, t, true, false, none}};
  for (const StepProduct& p : of_head)
    if (p.calls > 0 || round != o.vocab) all.push_back(p);
  return all;
}

constexpr size_t workspace_bytes = 32 << 20;

/// A product's operands on the device, and its descriptors. plan.a describes b, since column-major cuBLASLt swaps them.
struct Prepared {
  Tensor a, b, out, residual = {}, bias = {}, pre = {};
  blas::Product plan = {};
};

Prepared prepare(const StepProduct& p, Device device) {
  const TensorOptions on{.dtype = bf16, .device = device};
  const auto matrix = [&](int64_t rows, int64_t columns, bool transposed) {
    const Tensor x = empty_padded(transposed ? Shape{columns, rows} : Shape{rows, columns}, on);
    x.copy_(randn(x.shape(), on));
    return x;
  };
  Prepared all{.a = matrix(p.m, p.k, p.transposed_a),
               .b = matrix(p.k, p.n, p.transposed_b),
               .out = empty_padded({p.m, p.n}, on)};
  cublasLtMatmulDesc_t made = nullptr;
  blas::check_blas("cublasLtMatmulDescCreate", cublasLtMatmulDescCreate(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  blas::Product& plan = all.plan;
  plan.description.reset(made);
  blas::set(plan.description, CUBLASLT_MATMUL_DESC_TRANSA, int32_t(p.transposed_b ? CUBLAS_OP_T : CUBLAS_OP_N));
  blas::set(plan.description, CUBLASLT_MATMUL_DESC_TRANSB, int32_t(p.transposed_a ? CUBLAS_OP_T : CUBLAS_OP_N));
  blas::set(plan.description, CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t(p.epilogue));
  if (p.epilogue == CUBLASLT_EPILOGUE_BIAS || p.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) {
    all.bias = zeros({p.n}, on);
    blas::set(plan.description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(all.bias.raw_data()));
  }
  if (p.epilogue == CUBLASLT_EPILOGUE_DGELU || p.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) {
    all.pre = randn({p.m, p.n}, on);
    blas::set(plan.description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, static_cast<void*>(all.pre.raw_data()));
    blas::set(plan.description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.n);
  }
  if (p.adds) all.residual = randn({p.m, p.n}, on);
  const auto layout = [&](const Tensor& x) { return blas::layout(CUDA_R_16BF, x.size(1), x.size(0), row_step(x)); };
  plan.a = layout(all.b), plan.b = layout(all.a), plan.c = layout(all.out);
  return all;
}

std::vector<cublasLtMatmulHeuristicResult_t> proposals(const Prepared& p, int64_t limit) {
  cublasLtMatmulPreference_t made = nullptr;
  blas::check_blas("cublasLtMatmulPreferenceCreate", cublasLtMatmulPreferenceCreate(&made));
  const blas::Preference preference(made);
  blas::set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
  blas::set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<size_t>(limit));
  int count = 0;
  const blas::Product& plan = p.plan;
  blas::check_blas(
      "cublasLtMatmulAlgoGetHeuristic",
      cublasLtMatmulAlgoGetHeuristic(blas::handle(), plan.description.get(), plan.a.get(), plan.b.get(), plan.c.get(),
                                     plan.c.get(), preference.get(), int(limit), found.data(), &count));
  found.resize(size_t(count));
  std::erase_if(found, [](const auto& one) { return one.state != CUBLAS_STATUS_SUCCESS; });
  return found;
}

/// Median milliseconds of one call, or infinity if the library cannot run it.
double time_of(const Prepared& p, const blas::Algorithm& algorithm, void* workspace, Device device) {
  const blas::Product& plan = p.plan;
  const float alpha = 1, beta = p.residual.defined() ? 1 : 0;
  const Tensor& from = p.residual.defined() ? p.residual : p.out;
  const auto run = [&] {
    return cublasLtMatmul(blas::handle(), plan.description.get(), &alpha, p.b.raw_data(), plan.a.get(), p.a.raw_data(),
                          plan.b.get(), &beta, from.raw_data(), plan.c.get(), p.out.raw_data(), plan.c.get(),
                          &algorithm.algorithm, workspace, algorithm.workspace, cuda::current_stream());
  };
  for (int i = 0; i < 3; ++i)
    if (run() != CUBLAS_STATUS_SUCCESS) return INFINITY;
  std::vector<double> all;
  Event start(device, true), end(device, true);
  constexpr int repeat = 8, samples = 5;
  for (int i = 0; i < samples; ++i) {
    start.record();
    for (int k = 0; k < repeat; ++k) blas::check_blas("cublasLtMatmul", run());
    end.record();
    end.synchronize();
    all.push_back(end.milliseconds_since(start) / repeat);
  }
  std::nth_element(all.begin(), all.begin() + samples / 2, all.end());
  return all[samples / 2];
}

void run_all(const Options& o) {
  cuda::select_device(o.device.index);
  const cuda::DeviceLimits& card = cuda::limits();
  double first_sum = 0, best_sum = 0;
  const Tensor workspace = empty({int64_t(workspace_bytes)}, {.dtype = u8, .device = o.device});
  for (const StepProduct& p : products(o)) {
    const Prepared made = prepare(p, o.device);
    const auto found = proposals(made, o.algorithms);
    // Times the first proposal as cuBLASLt returned it, then every proposal rebuilt from the settings of its table row.
    const double first = found.empty()
                             ? INFINITY
                             : time_of(made, {found[0].algo, found[0].workspaceSize}, workspace.raw_data(), o.device);
    std::vector<double> ms;
    for (const auto& algorithm : found) {
      const std::vector<blas::Algorithm> again = blas::algorithm_of(blas::settings_of(algorithm.algo), bf16, made.plan);
      ms.push_back(again.empty() ? INFINITY : time_of(made, again[0], workspace.raw_data(), o.device));
    }
    const size_t best = size_t(std::min_element(ms.begin(), ms.end()) - ms.begin());
    Json line = Json::Object{{"name", p.name}, {"calls", p.calls}, {"m", p.m}, {"n", p.n}, {"k", p.k}};
    if (ms.empty() || std::isinf(first) || std::isinf(ms[best])) {
      line["error"] = "cuBLASLt has no algorithm";
    } else {
      const blas::TimedAlgorithm row{{card.major * 10 + card.minor, card.multiprocessors, bf16, p.m, p.n, p.k,
                                      p.transposed_a, p.transposed_b, uint32_t(p.epilogue), p.adds},
                                     blas::settings_of(found[best].algo)};
      line["tried"] = int64_t(ms.size());
      line["first_ms"] = first;
      line["best_ms"] = ms[best];
      line["tflops"] = 2e-9 * double(p.m) * double(p.n) * double(p.k) / ms[best];
      line["row"] = blas::text_of(row);
      first_sum += double(p.calls) * first, best_sum += double(p.calls) * ms[best];
    }
    fmt::print("{}\n", line.dump());
    std::fflush(stdout);
  }
  fmt::print("{}\n", Json(Json::Object{{"name", "all products of a step"},
                                       {"cublaslt", int64_t(cublasLtGetVersion())},
                                       {"first_ms", first_sum},
                                       {"best_ms", best_sum}})
                         .dump());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Options o;
    for (int i = 1; i < argc; ++i) {
      LOCKSTEP_CHECK(i + 1 < argc, "expected a value after ", argv[i]);
      const std::string name = argv[i], value = argv[++i];
      int64_t* const number = name == "--tokens"       ? &o.tokens
                              : name == "--width"      ? &o.width
                              : name == "--vocab"      ? &o.vocab
                              : name == "--algorithms" ? &o.algorithms
                                                       : nullptr;
      if (number) *number = std::max<int64_t>(std::stoll(value), 1);
      else if (name == "--device") o.device = parse_device(value);
      else fail("expected --device, --tokens, --width, --vocab or --algorithms, got " + name);
    }
    check_device("bench_algorithms", o.device);
    run_all(o);
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
  return 0;
}
