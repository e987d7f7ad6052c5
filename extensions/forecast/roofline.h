#pragma once
// Predicts the time of a training step on a GPU that is not there. The kernels come from a dry run of the real step
// (dry_run.h); the bytes and operations of a kernel are divided by the speeds that such kernels reached.
//
//   time of a kernel = max(operations / (peak * efficiency) + start, bytes / (bandwidth * efficiency), least_seconds)
//
// Most efficiencies come from a step of GPT-2 124M whose kernels were timed one by one on an H200.
#include <cstdint>

#include "extensions/forecast/dry_run.h"
#include "nn/models/gpt.h"

namespace lockstep::report {

/// Speeds of a GPU that its vendor has published, for dense (not sparse) products.
struct Card {
  std::string name;
  double flops16 = 0, flops32 = 0;  ///< FLOP/s of tensor cores in f16 and bf16, and of f32 units
  double bandwidth = 0;             ///< bytes/s
  bool has_wgmma = false;           ///< true for compute capability 9.0
};
/// The known GPUs.
const std::vector<Card>& cards();
/// Finds a GPU by name. Error listing the known ones if there is none.
const Card& card_of(const std::string& name);

/// The fractions of a card's peak FLOP/s (flops) and bandwidth that a kind of kernel reaches. source: the number of the
/// entry in text_of()'s list that says where they were measured. start: seconds in which a kernel is below full speed,
/// while its first tiles arrive and its last ones end. before: the fraction of the bandwidth that was measured before
/// the kernel was rewritten; 0: not rewritten.
struct Efficiency {
  double flops = 1, bandwidth = 1;
  int source = 0;
  double start = 0, before = 0;
};

/// The cost of one kernel on CUDA. A dry run of the step lists the kernels.
struct KernelCost {
  std::string kind;  ///< kernels of one kind share a row: "product 16384 x 768 x 2304"
  int64_t launches = 1;
  double flops = 0;       ///< operations of tensor cores, or of f32 units for f32
  double bytes = 0;       ///< read and written, each operand once
  bool is_short = false;  ///< true for 16-bit operands
  Efficiency efficiency = {};
};
/// The cost of a kernel. Efficiencies depend on the card.
KernelCost cost_of(const DryKernel& kernel, const Card& card = cards()[0]);
/// Number of kernels and copies that the CUDA backend launches for `kernels`. test_launches compares it with the
/// emulator's count.
int64_t launches_of(const std::vector<DryKernel>& kernels);

/// The kernels of a training step: forward, backward, AdamW.
struct DryStep {
  std::vector<DryKernel> kernels;
  int64_t tokens = 0, parameters = 0;
  double model_flops = 0;  ///< FLOPs of products and attention: three times those of the forward
  double host = 0;         ///< seconds that this machine took to issue the kernels
};
/// Dry run of a step with `batch` sequences of o.context tokens. Parameters, activations and gradients are in `dtype`,
/// with f32 master weights if it has 16 bits. The model takes no memory. optimizer: include clipping and AdamW's step.
DryStep dry_step(const nn::GPT::Options& o, int64_t batch, DType dtype, bool optimizer = true);

/// The kernels of one kind, added up.
struct RooflineRow {
  KernelCost cost;  ///< total
  int64_t calls = 0;
  double seconds = 0;
  const char* bound = "";  ///< "operations", "memory" or "launches", whichever takes most of the time
};
/// The prediction for a step.
struct Roofline {
  std::vector<RooflineRow> rows;  ///< sorted by time, longest first
  int64_t launches = 0;
  double seconds = 0, flops = 0, bytes = 0;
  double tokens = 0;  ///< tokens per second
  double mfu = 0;     ///< model FLOPs utilization: model_flops / seconds / peak
  double host = 0;    ///< seconds of the host if it launches kernels one by one
  double graph = 0;   ///< seconds of the host for a CUDA graph
};
/// Predicts the time of a step on a card.
Roofline roofline(const DryStep& step, const Card& card);
/// The prediction as a table with conclusions and the sources of the efficiencies. model, precision: names to print.
std::string text_of(const Roofline& found, const DryStep& step, const Card& card, const std::string& model,
                    const std::string& precision);

/// launch_seconds, graph_seconds: assumed host time of a kernel launch in the driver, and of a graph launch.
/// least_seconds: measured time of the shortest kernels on the GPU.
inline constexpr double launch_seconds = 5e-6, graph_seconds = 10e-6, least_seconds = 2.3e-6;

}  // namespace lockstep::report
