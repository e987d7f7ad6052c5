#pragma once
// What a configuration will cost before anything runs: who owns what, bytes of each rank, traffic and time of a step. Shapes are enough;
// nothing of the model's size is allocated, and no rank is started.
#include <cstdint>
#include <string>
#include <vector>

#include "engine/config.h"
#include "nn/gpt.h"
#include "zero/partition.h"

namespace lockstep::engine {

/// A model by the names and shapes of its parameters, in the order of named_parameters().
struct ModelShape {
  struct Parameter {
    std::string name;
    Shape shape;
    int64_t expert = -1;         ///< which one it is of
    int64_t numel() const;
    std::string module() const;  ///< the name without its last part
  };
  std::string name;
  std::vector<Parameter> parameters;
  int64_t layers = 0, width = 0, context = 0, vocab = 0;
  int64_t experts = 0, top_k = 0;  ///< of a layer that has them
  int64_t numel() const;
  /// Multiplications of a token with a matrix: its elements; of an expert, those times the part of tokens that choose it.
  double products(const Parameter& p) const;
  /// Multiplications and additions of one token's forward: two for each weight of a matrix product, and attention over half a context.
  double forward_flops() const;
};
/// The half of a block that has this parameter of a GPT, as pipelines cut them: 0 and 1 are the first block's attention and MLP, each with its norm; -1: none.
int64_t half_block_of(const std::string& name);

/// Experts in place of the MLP of the last of every so many blocks, as moe::add_experts() puts them.
struct ExpertShape {
  int64_t experts = 0, top_k = 1, every = 2;
};
/// nn::GPT's parameters, without making one.
ModelShape gpt_shape(const nn::GPT::Options& options, const ExpertShape& experts = {});
/// "gpt:12x768x12": layers, width, heads.
ModelShape parse_model(const std::string& text, int64_t vocab, int64_t context, const ExpertShape& experts = {});

struct PlannedUnit {
  std::string module;               ///< stage 3: who gathers it
  std::vector<size_t> parameters;   ///< of the ModelShape
  zero::Layout layout;
  bool persistent = true;           ///< whole on every rank at all times
  int ranks = 1;                    ///< that have its parameters, and sum their gradients
};

/// Of one rank, without activations.
struct RankBytes {
  int64_t parameters = 0, gradients = 0, optimizer = 0;
  int64_t parameters_elsewhere = 0, optimizer_elsewhere = 0;  ///< offloaded: host memory or files
  int64_t buffers = 0;                                        ///< of gradients on their way (stages 2 and 3)
  int64_t total() const { return parameters + gradients + optimizer + buffers; }
};

struct Plan {
  Config config;                    ///< resolved
  ModelShape model;
  int ranks = 1;
  DType parameter_dtype = f32, gradient_dtype = f32;
  std::string optimizer;            ///< "AdamW", "Muon and AdamW"
  std::vector<int64_t> state_bytes;  ///< that the optimizer keeps for an element of each parameter, master weights included
  std::vector<PlannedUnit> units;
  std::vector<RankBytes> bytes;     ///< of each rank
  zero::ModelState formula;         ///< without padding, bytes of a rank
  int64_t padding = 0;              ///< elements of all units
  int64_t largest_module = 0;       ///< stage 3: elements that are whole at a time, beside persistent ones and what is gathered ahead
  double gradient_traffic = 0, parameter_traffic = 0;  ///< bytes that a rank sends in a step
};

/// Error for a config that is not legal. `config` as read, not resolved. sharing: neighbouring ranks that have the same samples, each a part of them.
/// expert_parallel: neighbouring samples' ranks that have different experts; the model then has those of one rank.
Plan plan(const Config& config, const ModelShape& model, int ranks, int sharing = 1, int expert_parallel = 1);

/// Speeds that a prediction stands on.
struct Speeds {
  double flops = 0;        ///< of a rank, each second
  double bandwidth = 0;    ///< bytes that a rank sends, each second
  double memory = 0;       ///< bytes that the optimizer reads and writes, each second
};
/// Measured here in about a second: a matrix product in `dtype`, and a copy, which is what ranks of one machine do to send.
Speeds measure_speeds(DType dtype);

/// Seconds of a step, and what they are made of.
struct PredictedTime {
  double compute = 0, communication = 0, optimizer = 0, step = 0;
  double tokens = 0;  ///< of all ranks, each second
};
PredictedTime predict(const Plan& plan, const Speeds& speeds);

}  // namespace lockstep::engine
