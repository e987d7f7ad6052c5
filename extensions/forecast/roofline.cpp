// Predicts the times of kernels on a GPU. See roofline.h.
#include "extensions/forecast/roofline.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>

#include "base/clock.h"
#include "nn/init.h"
#include "optim/optim.h"
#include "tensor/block_layout.h"
#include "tensor/cuda/reduce_shape.h"
#include "tensor/flops.h"

namespace lockstep::report {

const std::vector<Card>& cards() {
  // From NVIDIA's data sheets, SXM versions.
  static const std::vector<Card> all = {{"h200", 989e12, 67e12, 4.8e12, true},
                                        {"h100", 989e12, 67e12, 3.35e12, true},
                                        {"a100", 312e12, 19.5e12, 2.039e12, false}};
  return all;
}

const Card& card_of(const std::string& name) {
  std::string known;
  for (const Card& card : cards()) {
    if (card.name == name) return card;
    known += (known.empty() ? "" : ", ") + card.name;
  }
  fail(str("expected a card of ", known, ", got \"", name, "\""));
}

namespace {

/// Descriptions of the measurements, to which Efficiency::source refers, counting from 1.
constexpr const char* sources[] = {
    "measured on one H200, 27 November 2026, commit f7cfeb5: each kernel of a step of GPT-2 124M with 16 x 1,024\n"
    "      tokens in bf16, by a profiler, and bench_cuda. The same parts of the peaks are assumed for other cards",
    "measured there for causal heads of 64 and 1,024 tokens, by cuDNN's kernels; a step took as long with our\n"
    "      wgmma, and 1.13 times as long without. Other heads and lengths in the proportions of an H100 (Shah\n"
    "      et al., FlashAttention-3, 2024, figures 5 and 6), up to 0.65. A100: 0.5, 0.45 backward, after Dao, 2023",
    "not measured: rewritten since, and expected to reach what copies reached there (\"before\": what was measured)",
    "measured there by bench_cuda: f32 products 0.76. Attention in f32: half of the peak, a calculation",
    "not measured: products of 16 bits on an A100",
};

constexpr double of_copies = 0.80;
// Efficiencies of 16-bit products by cuBLASLt. product_short: with a fused bias, or with nothing fused; product_gelu:
// with gelu fused, whose input is also written; product_gelu_grad: with gelu's derivative fused.
constexpr double start_seconds = 6e-6;
constexpr Efficiency product_short{0.78, of_copies, 1, start_seconds}, product_gelu{0.53, of_copies, 1, start_seconds},
    product_gelu_grad{0.49, of_copies, 1, start_seconds}, product_a100{0.70, of_copies, 5, start_seconds},
    product_f32{0.76, of_copies, 4}, attention_f32{0.50, of_copies, 4}, by_memory{1, of_copies, 1};
// Added time of a product with a long inner dim: its sums are split into parts, which another kernel adds up.
constexpr double split_seconds = 12e-6;

/// A memory-bound kernel, and the fraction (part) of the memory bandwidth that it reached when it was measured. If it
/// launched a small second kernel at that time, that kernel's time is included.
struct Measured {
  const char* name;
  double part;
  bool is_rewritten = true;  // true: the kernel was rewritten after the measurement
};
constexpr Measured measured_parts[] = {
    {"layer_norm", 0.37},     {"rms_norm", 0.37},
    {"add_norm", 0.37},       {"layer_norm_grad", 0.26},
    {"rms_norm_grad", 0.26},  {"add_norm_grad", 0.33},
    {"cross_entropy", 0.326}, {"cross_entropy_grad", 0.54},
    {"softmax", 0.44},        {"embedding_grad", 0.0049},
    {"index_add", 0.0049},    {"rotary", 0.14},
    {"rotary_packed", 0.14},  {"reduce", 0.51},
    {"column_sums", 0.49},    {"adam", 0.73},
    {"square_sums", 0.30},    {"pointwise_grads", 0.63, false},
};

Efficiency by_memory_of(const std::string& name) {
  for (const Measured& m : measured_parts)
    if (m.name == name) return m.is_rewritten ? Efficiency{1, of_copies, 3, 0, m.part} : Efficiency{1, m.part, 1};
  return by_memory;
}

bool is_16_bits(DType dtype) { return dtype == f16 || dtype == bf16; }

using Operand = DryKernel::Operand;

KernelCost product_cost(const DryKernel& k, const Card& card) {
  const Operand &a = k.operand(0), &out = k.operands.back();
  const double inner = double(a.shape.back()), columns = double(out.shape.back()),
               rows = double(out.elements) / std::max(columns, 1.);
  KernelCost cost{.kind = str("product ", int64_t(rows), " x ", int64_t(inner), " x ", int64_t(columns)),
                  .launches = k.fuses ? 1 : 2,  // an activation that is not fused takes its own kernel
                  .flops = 2 * rows * inner * columns,
                  .bytes = double(k.bytes()),
                  .is_short = is_16_bits(a.dtype),
                  .efficiency = product_f32};
  if (!cost.is_short) return cost;
  cost.efficiency = k.name == "matmul_unary_grad"                                    ? product_gelu_grad
                    : std::ranges::count(k.operands, true, &Operand::is_written) > 1 ? product_gelu
                    : card.has_wgmma                                                 ? product_short
                                                                                     : product_a100;
  if (inner > 4 * std::max(rows, columns)) cost.efficiency.start += split_seconds;
  return cost;
}

/// TFLOP/s of attention on an H100 for sequences of 512, 1,024 .. 16,384 tokens; from sources[1].
struct AttentionSpeeds {
  double causal[6], all[6], backward[6];  // speeds with a causal mask; without a mask; of backward without a mask

  /// Returns the speed as a fraction of the H100's 989 TFLOP/s, interpolated on a logarithmic scale.
  double part(int64_t tokens, bool is_causal, bool is_backward) const {
    const double place = std::clamp(std::log2(double(std::max<int64_t>(tokens, 1)) / 512), 0., 5.);
    const auto low = size_t(place), high = std::min<size_t>(low + 1, 5);
    const auto at = [&](const double(&of)[6]) { return of[low] + (place - double(low)) * (of[high] - of[low]); };
    const double forward = at(is_causal ? causal : all);
    return (is_backward ? at(backward) * forward / at(all) : forward) / 989;
  }
};
constexpr AttentionSpeeds flash_2[] = {
    {{180, 229, 262, 284, 295, 299}, {282, 306, 318, 321, 322, 324}, {198, 238, 264, 279, 287, 291}},
    {{191, 260, 298, 319, 333, 335}, {309, 350, 362, 368, 370, 370}, {214, 260, 291, 310, 318, 322}}};
constexpr AttentionSpeeds flash_3[] = {
    {{197, 265, 371, 420, 460, 473}, {333, 392, 460, 476, 496, 497}, {272, 363, 422, 453, 472, 474}},
    {{292, 423, 521, 579, 602, 616}, {467, 565, 625, 638, 646, 648}, {316, 424, 501, 542, 559, 561}}};

KernelCost attention_cost(const DryKernel& k, bool backward, const Card& card) {
  const Operand &q = k.operand(backward), &keys = k.operand(backward + 1);
  const int64_t width = q.shape[3];
  const bool is_short = is_16_bits(q.dtype);
  const auto pairs = double(attended_pairs(q.shape[2], keys.shape[2], k.causal, k.window));
  // Forward: scores and weighted values. Backward: row sums in one kernel, then five products in one kernel (16 bits)
  // or seven in two (f32).
  const int64_t launches = !backward ? 1 : is_short ? 2 : 3, products = !backward ? 2 : is_short ? 5 : 7;
  KernelCost cost{.kind = backward ? "attention, backward" : "attention, forward",
                  .launches = launches,
                  .flops = 2 * double(products) * double(q.shape[0] * q.shape[1] * width) * pairs,
                  .bytes = double(k.bytes()),
                  .is_short = is_short,
                  .efficiency = attention_f32};
  if (!is_short) return cost;
  cost.efficiency = {backward ? 0.45 : 0.50, of_copies, 2};
  if (!card.has_wgmma) return cost;
  const bool on_wgmma = (width == 64 || width == 128) && k.dropout == 0 && k.window == 0;
  // Measured speed divided by the published speed, which is in flash_2 or flash_3.
  const double measured = !on_wgmma ? backward ? 0.65 : 0.72 : backward ? 0.87 : 1.16;
  const AttentionSpeeds& published = (on_wgmma ? flash_3 : flash_2)[width > 64];
  cost.efficiency.flops = std::min(0.65, published.part(keys.shape[2], k.causal, backward) * measured);
  return cost;
}

/// Returns 2 for a reduction to few outputs, which is split into chunks that a second kernel adds up; else 1.
int64_t launches_of_reduce(const DryKernel& k) {
  const Operand &x = k.operand(0), &out = k.operands.back();
  const int width = int(std::min<int64_t>(8, 16 / size_of(x.dtype)));
  const int64_t outputs = std::max<int64_t>(out.elements, 1), each = x.elements / outputs;
  const bool along = x.shape.rank() == 0 || (k.reduced >> (x.shape.rank() - 1) & 1);
  if (along) return 1 + (on_cuda::ReduceShape::of_rows(outputs, (each + width - 1) / width).chunks > 1);
  const int64_t lanes = std::max<int64_t>(x.shape.back(), 1);
  return 1 + (on_cuda::ReduceShape::of_columns(outputs / lanes, each, lanes, width, size_of(x.dtype), 512).chunks > 1);
}

bool is_step(const std::string& name) {
  return name == "adam" || name == "sgd" || name == "rmsprop" || name == "adagrad" || name == "lion";
}

/// Joins optimizer steps: one kernel handles all parameters of the same dtypes (optim/step_batch.h).
std::vector<DryKernel> with_joined_steps(std::vector<DryKernel> kernels) {
  std::vector<DryKernel> all;
  for (DryKernel& k : kernels) {
    const auto same = std::find_if(all.begin(), all.end(), [&](const DryKernel& other) {
      return is_step(k.name) && other.name == k.name && other.operand(0).dtype == k.operand(0).dtype &&
             other.operand(1).dtype == k.operand(1).dtype;
    });
    if (same == all.end()) all.push_back(std::move(k));
    else same->operands.insert(same->operands.end(), k.operands.begin(), k.operands.end());
  }
  return all;
}

KernelCost other_cost(const DryKernel& k) {
  KernelCost cost{.kind = k.name, .bytes = double(k.bytes()), .efficiency = by_memory_of(k.name)};
  const std::string& name = k.name;
  if (name == "reduce") {
    cost.launches = launches_of_reduce(k);
  } else if (name == "embedding" || name == "index_select") {
    // From the table it reads only the rows that it looks up.
    cost.bytes = cost.bytes - double(k.operand(0).bytes()) + double(k.operands.back().bytes());
  } else if (name == "embedding_grad" || name == "index_add") {
    // The kernels sort the indices, then read the gradient once. They add the rows of one index in parts, and write and
    // read the f32 sum of each part. Each pass of the sort reads and writes 8 bytes per index. The table's rows do not
    // count, as a text has few distinct tokens.
    const Operand &grad = k.operand(0), &index = k.operand(1);
    constexpr int64_t sort_tile = 1024;
    for (int64_t run = sort_tile; run < index.elements; run *= 2) ++cost.launches;  // merge passes of the sort
    cost.bytes = double(grad.bytes()) + 2 * 4. * double(grad.elements) / double(rows_of_part) + double(index.bytes()) +
                 16. * double(cost.launches * index.elements);
    cost.launches += 1 + (index.elements > rows_of_part);  // one kernel sums parts, another adds the parts of an index
  } else if (is_step(name) || name == "unscale") {
    cost.kind = "optimizer";
    for (const Operand& o : k.operands)  // operands updated in place are read, too; the 16-bit copy is only written
      if (o.is_written && o.dtype == k.operand(0).dtype) cost.bytes += double(o.bytes());
  }
  return cost;
}

/// A row of the table that `lockstep roofline` prints.
std::string line(const std::string& kind, int64_t calls, int64_t launches, double flops, double bytes, double seconds,
                 const std::string& bound, const std::string& efficiency) {
  std::string text =
      fmt::format("{:<32}{:>6}{:>9}{:>9}{:>9}{:>9}  {:<11}{}", kind, calls, launches,
                  flops > 0 ? fmt::format("{:.3f}", flops / 1e12) : "", fmt::format("{:.3f}", bytes / 1e9),
                  fmt::format("{:.3f}", seconds * 1e3), bound, efficiency);
  return text.substr(0, text.find_last_not_of(' ') + 1) + "\n";
}

}  // namespace

KernelCost cost_of(const DryKernel& kernel, const Card& card) {
  const std::string& name = kernel.name;
  const bool is_product = name == "matmul" || name == "matmul_unary_grad", backward = name == "attention_grad";
  KernelCost cost = is_product                        ? product_cost(kernel, card)
                    : backward || name == "attention" ? attention_cost(kernel, backward, card)
                                                      : other_cost(kernel);
  if (cost.bytes == 0) cost.launches = 0;  // nothing to do
  return cost;
}

int64_t launches_of(const std::vector<DryKernel>& kernels) {
  int64_t all = 0;
  for (const DryKernel& k : with_joined_steps(kernels)) all += cost_of(k).launches;
  return all;
}

DryStep dry_step(const nn::GPT::Options& o, int64_t batch, DType dtype, bool optimizer) {
  LOCKSTEP_CHECK(batch >= 1, "[roofline] expected a batch of 1 or more, got ", batch);
  const Device card{Device::Type::cuda, 0};
  DryRun dry;
  DryStep step{.tokens = batch * o.context};
  const auto model = [&] {
    const nn::BuildEmpty scope;
    return std::make_unique<nn::GPT>(o);
  }();
  model->to(dtype).to(card);
  for (const Variable& p : model->parameters()) {
    p.tensor().storage()->refill();
    step.parameters += p.numel();
  }
  optim::AdamW adam(model->parameters(), {});
  const Tensor tokens = empty({batch, o.context}, {.dtype = i64, .device = card});
  for (int pass = 0; pass < 2; ++pass) {  // the first pass creates optimizer states and casts
    dry.take();
    const double begin = steady_seconds();
    std::optional<MacCounter> macs(std::in_place);
    const Variable loss = model->loss(tokens, tokens);
    step.model_flops = 3 * 2 * double(macs->count());
    macs.reset();
    loss.backward();
    if (optimizer) adam.clipped_step({.max_norm = 1});
    adam.zero_grad();
    step.host = steady_seconds() - begin;
  }
  step.kernels = dry.take();
  return step;
}

Roofline roofline(const DryStep& step, const Card& card) {
  Roofline all;
  std::map<std::string, RooflineRow> rows;
  std::map<std::string, std::array<double, 3>> parts;  // seconds bound by operations, memory and launches
  for (const DryKernel& k : with_joined_steps(step.kernels)) {
    const KernelCost cost = cost_of(k, card);
    if (cost.launches == 0) continue;
    const double peak = cost.is_short ? card.flops16 : card.flops32;
    const std::array times{cost.flops > 0 ? cost.flops / (peak * cost.efficiency.flops) + cost.efficiency.start : 0,
                           cost.bytes / (card.bandwidth * cost.efficiency.bandwidth),
                           double(cost.launches) * least_seconds};
    const auto bound = size_t(std::ranges::max_element(times) - times.begin());
    RooflineRow& row = rows[cost.kind];
    if (row.calls++ == 0) row.cost = cost, row.cost.launches = 0, row.cost.flops = row.cost.bytes = 0;
    row.cost.launches += cost.launches, row.cost.flops += cost.flops, row.cost.bytes += cost.bytes;
    row.seconds += times[bound];
    parts[cost.kind][bound] += times[bound];
    all.launches += cost.launches, all.flops += cost.flops, all.bytes += cost.bytes, all.seconds += times[bound];
  }
  constexpr const char* names[] = {"operations", "memory", "launches"};
  for (auto& [kind, row] : rows) {
    row.bound = names[std::ranges::max_element(parts[kind]) - parts[kind].begin()];
    all.rows.push_back(row);
  }
  std::ranges::stable_sort(all.rows, std::greater(), &RooflineRow::seconds);
  all.tokens = double(step.tokens) / all.seconds;
  all.mfu = step.model_flops / all.seconds / card.flops16;
  all.host = step.host + double(all.launches) * launch_seconds;
  all.graph = graph_seconds;
  return all;
}

std::string text_of(const Roofline& found, const DryStep& step, const Card& card, const std::string& model,
                    const std::string& precision) {
  std::string text = fmt::format("{}: {} parameters, {} tokens a step in {}, on one {}\n\n", model, step.parameters,
                                 step.tokens, precision, card.name);
  text += fmt::format("{:<32}{:>6}{:>9}{:>9}{:>9}{:>9}  {:<11}{}\n", "kernels", "calls", "launches", "TFLOP", "GB",
                      "ms", "bound by", "of peak [source]");
  int64_t calls = 0;
  for (const RooflineRow& row : found.rows) {
    const Efficiency& e = row.cost.efficiency;
    const std::string bound = row.bound;
    calls += row.calls;
    const double peak = bound == "memory"   ? card.bandwidth
                        : row.cost.is_short ? card.flops16
                                            : card.flops32,
                 part = (bound == "memory" ? row.cost.bytes : row.cost.flops) / row.seconds / peak;
    std::string reached;
    if (bound != "launches") reached = fmt::format("{:.2f} [{}]", part, e.source);
    if (bound == "memory" && e.before > 0) reached += fmt::format(", {:.2g} before", e.before);
    text +=
        line(row.cost.kind, row.calls, row.cost.launches, row.cost.flops, row.cost.bytes, row.seconds, bound, reached);
  }
  text += line("together", calls, found.launches, found.flops, found.bytes, found.seconds, "", "");
  text += fmt::format("\nspeed  {:.0f} tokens/s, {:.2f} ms a step\n", found.tokens, found.seconds * 1e3);
  text += fmt::format("MFU    {:.1f} %: {:.2f} TFLOP of the model in that time, of {:.0f} TFLOP/s\n", found.mfu * 100,
                      step.model_flops / 1e12, card.flops16 / 1e12);
  const auto host = [&](const char* launch_mode, double seconds) {
    return fmt::format("host   {:.2f} ms when kernels are started {}: {:.1f} % of the step{}\n", seconds * 1e3,
                       launch_mode, 100 * seconds / found.seconds,
                       seconds > found.seconds ? ", which waits for it" : "");
  };
  text += host("one by one", found.host) + host("as one graph", found.graph);
  text += fmt::format(
      "       ({:.2f} ms are our own code, as measured here; assumed: {:.0f} us for a launch in the "
      "driver, {:.0f} us for a graph;\n       measured: at least {:.1f} us for a kernel on the card)\n",
      step.host * 1e3, launch_seconds * 1e6, graph_seconds * 1e6, least_seconds * 1e6);
  text += "\nThis is a calculation. Its efficiencies:\n";
  for (size_t i = 0; i < std::size(sources); ++i) text += fmt::format("  [{}] {}\n", i + 1, sources[i]);
  return text;
}

}  // namespace lockstep::report
