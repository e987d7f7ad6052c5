#pragma once
// DeepSpeed's inference configuration as plain structs, like the training configuration in engine/config.h: each field
// has the name and position of its key, default values are defined here, and config_keys.inc is the table of
// all keys.
//
//   inference::InferenceConfig config = inference::read_config("inference.json");
//   inference::InferenceConfig small{.dtype = "bf16", .tensor_parallel = {.tp_size = 2}};   // without a file
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "data/json.h"
#include "engine/config.h"
#include "tensor/dtype.h"

namespace lockstep::inference {

/// Tensor parallelism: ranks that share every layer.
struct InferenceTPConfig {
  bool enabled = true;  ///< true: use tp_size ranks; false: tp_size counts as 1
  int64_t tp_size = 1;
};

/// Expert parallelism, and the experts that the model must have.
struct MoeConfig {
  bool enabled = true;                     ///< true: use ep_size ranks; false: ep_size counts as 1
  int64_t ep_size = 1;                     ///< ranks that share the experts of a layer
  std::vector<int64_t> num_experts = {1};  ///< if given, must match the model
  std::string type = "standard";           ///< "standard" or "residual"; if given, must match the model
};

/// Quantization of weights.
struct WeightQuantConfig {
  bool enabled = true;
  int64_t num_bits = 8;
  std::string q_type = "symmetric";
  int64_t q_groups = 1;  ///< minimal number of groups, each with its scale, per matrix
};
/// Switches a kind of quantization on or off.
struct QuantSwitch {
  bool enabled = true;
};
/// Quantization for dtype int8.
struct QuantConfig {
  bool enabled = true;
  WeightQuantConfig weight;
  QuantSwitch activation{.enabled = false}, qkv;
};

/// The object "checkpoint_config". Its keys may also be given at the top level (checkpoint_dir as `checkpoint`).
struct InferenceCheckpointConfig {
  std::string checkpoint_dir, save_mp_checkpoint_path, base_dir;
};

/// ZeRO-Inference: with stage 3, each block is fetched from host memory or a file when it runs.
struct InferenceZeroConfig {
  int64_t stage = 0;
  zero::OffloadParam offload_param;
};

/// The whole configuration. Construct it directly, or read it from a file with read_config().
struct InferenceConfig {
  std::optional<std::string> dtype;  ///< "fp32", "fp16", "bf16" or "int8"; default: dtype of the weights
  InferenceTPConfig tensor_parallel;
  MoeConfig moe;
  QuantConfig quant;
  InferenceZeroConfig zero;
  data::Json injection_policy, checkpoint;
  std::string base_dir, save_mp_checkpoint_path;
  InferenceCheckpointConfig checkpoint_config;
  bool keep_module_on_host = false, triangular_masking = true, enable_cuda_graph = false;
  std::optional<int64_t> max_out_tokens;  ///< tokens of prompt and answer together; default: the model's context
  int64_t min_out_tokens = 1;

  std::string origin = "config";            ///< the file, for messages
  std::set<std::string> given;              ///< keys that the file sets
  std::map<std::string, data::Json> inert;  ///< values of given keys that have no effect here
  std::vector<std::string> warnings;

  /// True if the configuration file sets the key `path`, such as "moe.num_experts".
  bool has(std::string_view path) const { return given.count(std::string(path)) != 0; }
  /// Number of tensor-parallel ranks.
  int tp() const { return tensor_parallel.enabled ? int(tensor_parallel.tp_size) : 1; }
  int ep() const { return moe.enabled ? int(moe.ep_size) : 1; }  ///< number of expert-parallel ranks
  bool is_int8() const { return dtype == "int8"; }               ///< true if weights are quantized to int8
  /// Dtype of the parameters; nullopt: unchanged.
  std::optional<DType> parameter_dtype() const;
  /// The files or the folder with the weights, with base_dir prepended; empty if the model has its weights already.
  std::vector<std::string> checkpoint_files() const;
  std::string save_path() const;  ///< folder for the converted model; "": none
};

/// Reads a configuration from a file, JSON text or base64, as engine::read_config() does. One Error lists all problems.
InferenceConfig read_config(const std::string& source);
/// Checks a configuration that a program has filled in, as read_config() does.
InferenceConfig checked(InferenceConfig config);

/// One line per key with its value and where it comes from, as engine::to_text().
std::string to_text(const InferenceConfig& config);
data::Json to_json(const InferenceConfig& config);  ///< nested objects, which read_config() accepts
/// The text of configuration.md.
std::string config_reference();

/// The source of a configuration: a file, JSON text, base64 of JSON text, or an InferenceConfig; none: the defaults.
struct InferenceConfigSource : engine::SourceOf<InferenceConfig> {
  using SourceOf::SourceOf;
  /// The checked configuration.
  InferenceConfig read() const {
    return !is_given() ? InferenceConfig() : config ? checked(*config) : read_config(text);
  }
};

}  // namespace lockstep::inference
