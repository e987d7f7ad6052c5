#pragma once
// How long a training step takes on a card that is not there: the kernels that the real step asks for
// (tensor/dry_run.h), each by its bytes and its operations at speeds that were measured elsewhere.
//
//   time of a kernel = max(operations / (peak * efficiency), bytes / (bandwidth * efficiency), least time of a launch)
#include <cstdint>
#include <string>
#include <vector>

#include "nn/models/gpt.h"
#include "tensor/dry_run.h"

namespace lockstep::report {

/// A card's figures as its vendor publishes them, dense and without sparsity.
struct Card {
  std::string name;
  double flops16 = 0, flops32 = 0;  ///< a second: tensor cores in f16 and bf16; f32 units
  double bandwidth = 0;             ///< bytes a second
  bool has_wgmma = false;           ///< compute capability 9.0
};
const std::vector<Card>& cards();
/// Error with those that are known.
const Card& card_of(const std::string& name);

/// What of its peak a kind of kernel reaches, and who measured that: an index of sources(), counted from 1.
struct Efficiency {
  double flops = 1, bandwidth = 1;
  int source = 0;
};
const std::vector<std::string>& sources();
inline constexpr int memory_source = 3;  ///< of what is bound by memory

/// One kernel of the table: what the CUDA backend starts for it, and what that costs.
struct KernelCost {
  std::string kind;  ///< kernels of one kind stand in one row: "product 16384 x 768 x 2304"
  int64_t launches = 1;
  double flops = 0;       ///< of tensor cores or, in f32, of f32 units
  double bytes = 0;       ///< read and written, each operand once
  bool is_short = false;  ///< in 16 bits
  Efficiency efficiency = {};
};
KernelCost cost_of(const DryKernel& kernel, const Card& card = cards()[0]);
/// So many kernels and copies the CUDA backend starts for these. test_launches compares it with the emulator's count.
int64_t launches_of(const std::vector<DryKernel>& kernels);

/// A step of training: forward, backward, AdamW.
struct DryStep {
  std::vector<DryKernel> kernels;
  int64_t tokens = 0, parameters = 0;
  double model_flops = 0;  ///< of products and attention: the forward's, three times
  double host = 0;         ///< seconds that this machine took to ask for them
};
/// Goes through a step of `batch` sequences of o.context tokens, with parameters, activations and gradients in `dtype`
/// and f32 master weights where that has 16 bits. The model takes no memory. optimizer: AdamW's step is part of it.
DryStep dry_step(const nn::GPT::Options& o, int64_t batch, DType dtype, bool optimizer = true);

struct RooflineRow {
  KernelCost cost;  ///< of all of them
  int64_t calls = 0;
  double seconds = 0;
  const char* bound = "";  ///< "operations", "memory" or "launches", whichever takes most of the time
};
struct Roofline {
  std::vector<RooflineRow> rows;  ///< the longest first
  int64_t launches = 0;
  double seconds = 0, flops = 0, bytes = 0;
  double tokens = 0;  ///< a second
  double mfu = 0;     ///< model_flops in that time, of the card's peak
  double host = 0;    ///< seconds of the host for a step that it starts one by one
  double graph = 0;   ///< and as one graph
};
Roofline roofline(const DryStep& step, const Card& card);
/// A table, what follows from it, and where the efficiencies are from. The model and its precision by their names.
std::string text_of(const Roofline& found, const DryStep& step, const Card& card, const std::string& model,
                    const std::string& precision);

/// Seconds of the host for a kernel that it starts, beside our own code; to start a graph; and the least that a kernel
/// takes on a card.
inline constexpr double launch_seconds = 5e-6, graph_seconds = 10e-6, least_seconds = 2e-6;

}  // namespace lockstep::report
