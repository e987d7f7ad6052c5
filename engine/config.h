#pragma once
// DeepSpeed's configuration file as plain structs. Each field has the name and position of its key:
// "zero_optimization": {"stage": 2} is config.zero_optimization.stage. Default values are defined here only.
// config_keys.inc is the table of these keys: types, ranges, effect, and DeepSpeed's default where it differs.
// Extensions add sections (section.h). docs/config.md is generated from both.
//
//   engine::Config config = engine::resolve(engine::read_config("ds_config.json"), dist::world().size());
//   engine::Config small{.train_micro_batch_size_per_gpu = 4, .zero_optimization = {.stage = 2}};   // without a file
#include <any>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <typeindex>
#include <utility>
#include <vector>

#include "data/json.h"
#include "nn/module.h"
#include "optim/loss_scaler.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "zero/zero.h"

namespace lockstep::engine {

/// The source of a config: a file's name, JSON text, base64 of JSON, or a struct.
template <class Config> struct SourceOf {
  SourceOf() = default;
  SourceOf(const char* source) : text(source) {}                                // NOLINT: implicit on purpose
  SourceOf(std::string source) : text(std::move(source)) {}                     // NOLINT
  SourceOf(const data::Json& json) : text(json.dump()) {}                       // NOLINT
  SourceOf(Config made) : config(std::make_shared<Config>(std::move(made))) {}  // NOLINT
  /// False if nothing was given.
  bool is_given() const { return config || !text.empty(); }

  std::string text;
  std::shared_ptr<Config> config;
};

/// An optimizer or schedule by its name, such as "AdamW", and its parameters. Empty type: none.
struct NamedConfig {
  std::string type = {};
  data::Json params = data::Json::Object();
};

/// f16 training with loss scaling.
struct Fp16Config {
  bool enabled = false;
  bool auto_cast = false;  ///< true: cast floating inputs of forward to f16; model and loss run under Autocast
  double loss_scale = 0;   ///< fixed loss scale; 0: dynamic
  /// A dynamic scale begins at 2^initial_scale_power. It doubles after loss_scale_window steps without overflow, and
  /// halves after `hysteresis` overflows.
  int64_t initial_scale_power = 16, loss_scale_window = 1000, hysteresis = 2;
  bool consecutive_hysteresis = false;  ///< true: a step without overflow resets the count of overflows
  double min_loss_scale = 1;            ///< overflow at this scale is an Error
};

/// bf16 training with f32 master weights.
struct Bf16Config {
  bool enabled = false;
  bool auto_cast = false;           ///< as in Fp16Config
  bool check_grad_overflow = true;  ///< skip steps with NaN or infinity in the gradients
};

/// ZeRO: sharding and communication. Sizes are numbers of elements.
struct ZeroConfig {
  int64_t stage = 0;
  std::optional<bool> overlap_comm = {};  ///< overlap communication with computation; default: true
  bool reduce_scatter = true;
  int64_t reduce_bucket_size = 6'500'000;
  bool ignore_unused_parameters = true;
  int64_t sub_group_size = 1 << 21;  ///< elements per optimizer kernel call
  int64_t stage3_prefetch_bucket_size = 5'000'000;
  int64_t stage3_param_persistence_threshold = 1000;
  int64_t stage3_model_persistence_threshold = std::numeric_limits<int64_t>::max();
  int64_t stage3_max_live_parameters = 1'000'000'000;
  int64_t stage3_max_reuse_distance = 0;
  int64_t stage3_module_granularity_threshold = 0;
  bool stage3_gather_16bit_weights_on_model_save = false;
  zero::OffloadOptimizer offload_optimizer = {};
  zero::OffloadParam offload_param = {};
};

/// Activation checkpointing; see parallel/activation_checkpoints.h.
struct ActivationCheckpointingConfig {
  bool enabled = false;  ///< true: checkpoint every block, even if the model does not ask for it
  bool partition_activations = false, cpu_checkpointing = false, contiguous_memory_optimization = false;
  std::optional<int64_t> number_checkpoints = {};
  bool synchronize_checkpoint_boundary = false, profile = false;
};

/// How checkpoints are written.
struct CheckpointWriterConfig {
  bool decoupled = false;  ///< write while training continues
};

/// An exponential moving average of the parameters, kept with the optimizer's state.
struct EmaConfig {
  double decay = 0;  ///< decay of the average of parameters; 0: no average
};

/// Options of save_checkpoint().
struct CheckpointConfig {
  int64_t keep = 0;                     ///< number of newest checkpoints to keep; 0: all
  std::string tag_validation = "warn";  ///< when ranks save under different tags: "ignore", "warn" or "fail"
  CheckpointWriterConfig writer = {};
};

/// Options of tensor parallelism. With sequence_parallel, each rank holds only a part of the sequence between the
/// matrix products of a layer.
struct TensorParallelConfig {
  bool sequence_parallel = false;
  /// Number of chunks into which a layer divides the rows of its input. Communication of one chunk overlaps with the
  /// matrix product of the next. 0: automatic, 1: no overlap.
  int64_t overlap_chunks = 0;
};
/// Options of context parallelism.
struct ContextParallelConfig {
  /// "ring": ring attention, with the tokens given to ranks in zigzag order; "ring-contiguous": the same, with
  /// consecutive tokens on each rank; "ulysses": all-to-all between heads and tokens.
  std::string attention = "ring";
};

/// Pipeline parallelism.
struct PipelineConfig {
  int64_t stages = 1;
  std::string partition = "best";              ///< how layers are divided into stages: pipeline::SplitBy::parse()
  int64_t activation_checkpoint_interval = 0;  ///< layers recomputed together; 0: none
  std::string schedule = "1f1b";               ///< name of the schedule: pipeline::parse_kind()
  int64_t chunks = 0;                          ///< chunks of layers per stage; 0: the schedule's default
};

/// The dtype in which gradients are summed.
struct DataTypesConfig {
  std::optional<std::string> grad_accum_dtype = {};  ///< "fp32", "fp16", "bf16"; default: dtype of the parameters
};

/// The whole configuration. Construct it directly, or read it from a file with read_config().
struct Config {
  // train_batch_size = train_micro_batch_size_per_gpu * gradient_accumulation_steps * data-parallel ranks; resolve()
  // fills in the sizes that are missing.
  std::optional<int64_t> train_batch_size, train_micro_batch_size_per_gpu, gradient_accumulation_steps;
  /// False: the caller decides when a step is complete, and calls step() only then.
  bool managed_gradient_accumulation = true;

  NamedConfig optimizer, scheduler;
  EmaConfig ema = {};
  double gradient_clipping = 1;          ///< maximal norm of the gradients; 0: no clipping
  bool prescale_gradients = false;       ///< true: divide gradients by ranks x accumulation before the sum, not after
  double gradient_predivide_factor = 1;  ///< divide by this before the sum, by (ranks x accumulation) / this after it
  /// Dtype for sending gradients: "fp32", "fp16", "bf16"; default: dtype of the parameters.
  std::optional<std::string> communication_data_type = {};

  Fp16Config fp16 = {};
  Bf16Config bf16 = {};
  DataTypesConfig data_types = {};
  ZeroConfig zero_optimization = {};
  zero::AioOptions aio = {};
  ActivationCheckpointingConfig activation_checkpointing = {};
  CheckpointConfig checkpoint = {};
  PipelineConfig pipeline = {};
  TensorParallelConfig tensor_parallel = {};
  ContextParallelConfig context_parallel = {};

  bool dataloader_drop_last = false;
  int64_t seed = 1234;
  std::optional<int64_t> steps_per_print = {};  ///< steps between two printed lines; default: never
  bool wall_clock_breakdown = false, memory_breakdown = false, dump_state = false;

  std::string origin = "config";                 ///< the file, for messages
  std::set<std::string> given = {};              ///< keys that the file sets: "zero_optimization.stage"
  std::map<std::string, data::Json> inert = {};  ///< values of given keys that have no effect here
  std::vector<std::string> warnings = {};        ///< about keys without effect, deprecated keys and doubtful values

  mutable std::map<std::type_index, std::any> sections;  ///< see section(); reading a key adds its section

  /// The section of an extension, a struct of its own (engine/section.h).
  template <class T> T& section() {
    std::any& value = sections[typeid(T)];
    if (!value.has_value()) value = T();
    return *std::any_cast<T>(&value);
  }
  template <class T> const T& section() const {
    static const T defaults{};
    const auto found = sections.find(typeid(T));
    return found == sections.end() ? defaults : *std::any_cast<T>(&found->second);
  }
  /// True if activations are computed again in backward: by `enabled` or, as in DeepSpeed's files, which have no such
  /// key, because the section says where the inputs of checkpoints wait.
  bool checkpoints_activations() const {
    const ActivationCheckpointingConfig& a = activation_checkpointing;
    return a.enabled || (!has("activation_checkpointing.enabled") && (a.partition_activations || a.cpu_checkpointing));
  }
  /// True if the file sets the key.
  bool has(std::string_view path) const { return given.count(std::string(path)) != 0; }
};

/// Reads a configuration from a file's name, JSON text (begins with '{'), or base64 of JSON text (URL-safe or not), as
/// DeepSpeed does. JSON may have comments and trailing commas. One Error lists all problems.
Config read_config(const std::string& source);
/// Reads JSON text; `origin` names it in messages.
Config config_from_json(std::string_view text, const std::string& origin = "config");
/// Returns the JSON that `source` stands for (as in read_config()), without a check of its keys.
data::Json read_config_json(const std::string& source);

/// The config for training on `dp_world` data-parallel ranks: fills in batch sizes, checks ranges and combinations of
/// keys. One Error lists all problems. Warnings about doubtful values are added to Config::warnings.
Config resolve(Config config, int dp_world);

/// One line per key with its value and source: "(from file)", "(default)", "(default here; DeepSpeed: 5e8)".
std::string to_text(const Config& config);
/// The config as nested JSON objects, which read_config() accepts.
data::Json to_json(const Config& config);
/// The text of docs/config.md: docs/config.md.in, and the tables of keys.
std::string config_reference();

// The functions below convert settings of the config into arguments for the library's classes.
/// Options of ZeRO.
zero::ZeroOptions zero_options(const Config& config);
/// Dtype of the parameters: f32, or the 16-bit dtype of fp16 or bf16.
DType parameter_dtype(const Config& config);
/// Options of the loss scaler; nullopt without fp16. A static scale becomes a dynamic one that never grows or shrinks.
std::optional<optim::DynamicLossScaler::Options> loss_scaler_options(const Config& config);

using NamedParameters = std::vector<nn::NamedParameter>;  // nn::Module::named_parameters()
/// The optimizers that optimizer.type names: one, or two for Muon (AdamW trains what is not a matrix); empty without a
/// type. For an optimizer that exchanges gradients, all ranks of `group` (default: dist::world()) must call this
/// together.
std::vector<std::unique_ptr<optim::Optimizer>> make_optimizers(const Config& config, const NamedParameters& parameters,
                                                               dist::ProcessGroup* group = nullptr);
/// The schedule that scheduler.type names; null without a type.
std::unique_ptr<optim::Schedule> make_schedule(const Config& config, optim::Optimizer& optimizer);

}  // namespace lockstep::engine
