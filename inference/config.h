#pragma once
// DeepSpeed's inference configuration as plain structs, as engine/config.h has the one for training: a field has the
// name and the place of its key, defaults stand here, and inference/config_keys.inc is the one table of all keys.
//
//   inference::Config config = inference::read_config("inference.json");
//   inference::Config small{.dtype = "bf16", .tensor_parallel = {.tp_size = 2}};   // the same without a file
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

struct TensorParallelConfig {
  bool enabled = true;  ///< false: tp_size counts as 1
  int64_t tp_size = 1;
};

struct MoeConfig {
  bool enabled = true;                     ///< false: ep_size counts as 1
  int64_t ep_size = 1;                     ///< ranks that share the experts of a layer
  std::vector<int64_t> num_experts = {1};  ///< when given: those of the model
  std::string type = "standard";           ///< or residual
};

struct WeightQuantConfig {
  bool enabled = true;
  int64_t num_bits = 8;
  std::string q_type = "symmetric";
  int64_t q_groups = 1;  ///< of a whole matrix
};
struct QuantSwitch {
  bool enabled = true;
};
/// Of dtype int8.
struct QuantConfig {
  bool enabled = true;
  WeightQuantConfig weight;
  QuantSwitch activation{.enabled = false}, qkv;
};

struct CheckpointConfig {
  std::string checkpoint_dir, save_mp_checkpoint_path, base_dir;
};

/// ZeRO-Inference: with stage 3 blocks come from host memory or a file when they run.
struct ZeroConfig {
  int64_t stage = 0;
  zero::OffloadParam offload_param;
};

struct Config {
  std::optional<std::string> dtype;  ///< "fp32", "fp16", "bf16" or "int8"; not given: as the weights are
  TensorParallelConfig tensor_parallel;
  MoeConfig moe;
  QuantConfig quant;
  ZeroConfig zero;
  data::Json injection_policy, checkpoint;
  std::string base_dir, save_mp_checkpoint_path;
  CheckpointConfig checkpoint_config;
  bool keep_module_on_host = false, triangular_masking = true, enable_cuda_graph = false;
  std::optional<int64_t> max_out_tokens;  ///< prompt and answer; not given: the model's context
  int64_t min_out_tokens = 1;

  std::string origin = "config";            ///< the file, for messages
  std::set<std::string> given;              ///< keys that the file names
  std::map<std::string, data::Json> inert;  ///< those of them that do nothing here
  std::vector<std::string> warnings;

  bool has(std::string_view path) const { return given.count(std::string(path)) != 0; }
  int tp() const { return tensor_parallel.enabled ? int(tensor_parallel.tp_size) : 1; }
  int ep() const { return moe.enabled ? int(moe.ep_size) : 1; }
  bool is_int8() const { return dtype == "int8"; }
  /// Of parameters; nullopt: as they are.
  std::optional<DType> parameter_dtype() const;
  /// Where weights come from, base_dir in front; "": the model has them. Of a list of files: that.
  std::vector<std::string> checkpoint_files() const;
  std::string save_path() const;
};

/// As engine::read_config(): a file's name, JSON text or base64 of it. One Error lists everything that is wrong.
Config read_config(const std::string& source);
/// The same checks for one that a program has filled in.
Config checked(Config config);

/// A line a key, with where its value comes from, as engine::to_text() has them.
std::string to_text(const Config& config);
data::Json to_json(const Config& config);
/// docs/inference-config.md
std::string config_reference();

struct ConfigSource : engine::SourceOf<Config> {
  using SourceOf::SourceOf;
  Config read() const { return !is_given() ? Config() : config ? checked(*config) : read_config(text); }
};

}  // namespace lockstep::inference
