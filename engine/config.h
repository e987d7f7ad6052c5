#pragma once
// DeepSpeed's configuration file as plain structs. A field has the name and the place of its key: "zero_optimization":
// {"stage": 2} is config.zero_optimization.stage. Defaults stand here and nowhere else; where they differ from
// DeepSpeed's, config_keys.inc says so. That file is the one table of all keys: types, ranges, what works, what is
// accepted and does nothing, what is refused, with a reason each.
//
//   engine::Config config = engine::resolve(engine::read_config("ds_config.json"), dist::world().size());
//   engine::Config small{.train_micro_batch_size_per_gpu = 4, .zero_optimization = {.stage = 2}};        // the same
//   without a file
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/json.h"
#include "nn/fp8.h"
#include "nn/module.h"
#include "nn/sparse.h"
#include "optim/loss_scaler.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "zero/zero.h"

namespace lockstep::engine {

/// Where a config comes from: a file, JSON text, base64 of it, or a struct.
template <class Config> struct SourceOf {
  SourceOf() = default;
  SourceOf(const char* source) : text(source) {}                                // NOLINT: implicit on purpose
  SourceOf(std::string source) : text(std::move(source)) {}                     // NOLINT
  SourceOf(const data::Json& json) : text(json.dump()) {}                       // NOLINT
  SourceOf(Config made) : config(std::make_shared<Config>(std::move(made))) {}  // NOLINT
  bool is_given() const { return config || !text.empty(); }

  std::string text;
  std::shared_ptr<Config> config;
};

/// What to build by name: "AdamW" and its params. Without a type there is none.
struct NamedConfig {
  std::string type;
  data::Json params = data::Json::Object();
};

struct Fp16Config {
  bool enabled = false;
  bool auto_cast = false;  ///< cast floating inputs of forward
  double loss_scale = 0;   ///< 0: dynamic
  int64_t initial_scale_power = 16, loss_scale_window = 1000, hysteresis = 2;
  bool consecutive_hysteresis = false;
  double min_loss_scale = 1;
};

struct Bf16Config {
  bool enabled = false;
  bool auto_cast = false;
  bool check_grad_overflow = true;  ///< a step with NaN or infinity is skipped
};

/// Linears in 8-bit floats (nn/fp8.h); all else in bf16.
struct Fp8Config {
  bool enabled = false;
  std::string format = "hybrid";  ///< "e4m3": gradients, too
  int64_t margin = 0, amax_history_len = 1024;
  std::string amax_compute_algo = "max";  ///< "most_recent"
};

/// Sizes count elements.
struct ZeroConfig {
  int64_t stage = 0;
  std::optional<bool> overlap_comm;  ///< not given: yes
  bool reduce_scatter = true;
  int64_t reduce_bucket_size = 6'500'000;
  bool ignore_unused_parameters = true;
  int64_t sub_group_size = 1 << 21;  ///< the optimizer steps over so many at a time
  int64_t stage3_prefetch_bucket_size = 5'000'000;
  int64_t stage3_param_persistence_threshold = 1000;
  int64_t stage3_model_persistence_threshold = std::numeric_limits<int64_t>::max();
  int64_t stage3_max_live_parameters = 1'000'000'000;
  int64_t stage3_max_reuse_distance = 0;
  int64_t stage3_module_granularity_threshold = 0;
  bool stage3_gather_16bit_weights_on_model_save = false;
  zero::OffloadOptimizer offload_optimizer;
  zero::OffloadParam offload_param;
};

struct ActivationCheckpointingConfig {
  bool enabled = false;  ///< checkpoint every block, whether or not the model asks for it
  bool partition_activations = false, cpu_checkpointing = false, contiguous_memory_optimization = false;
  std::optional<int64_t> number_checkpoints;
  bool synchronize_checkpoint_boundary = false, profile = false;
};

struct FlopsProfilerConfig {
  bool enabled = false;
  int64_t profile_step = 1, module_depth = -1, top_modules = 1;
  bool detailed = true;
  std::optional<std::string> output_file;
};

struct MonitorConfig {
  bool enabled = false;
  std::string output_path;
  std::string job_name = "DeepSpeedJobName";
};

struct CommsLoggerConfig {
  bool enabled = false, verbose = false, prof_all = true, debug = false;
  std::vector<std::string> prof_ops;
};

struct CheckpointWriterConfig {
  bool decoupled = false;  ///< save while training goes on
};

/// An exponential moving average of the parameters, kept with the optimizer's state.
struct EmaConfig {
  double decay = 0;  ///< 0: none
};

struct CheckpointConfig {
  int64_t keep = 0;                     ///< so many stay, the newest; 0: all
  std::string tag_validation = "warn";  ///< "ignore", "warn" or "fail" when ranks save under different tags
  CheckpointWriterConfig writer;
};

/// Plans with tp and cp (train/).
struct TensorParallelConfig {
  bool sequence_parallel = false;
  int64_t overlap_chunks = 0;  ///< 0: automatic, 1: one product
};
struct ContextParallelConfig {
  std::string attention = "ring";  ///< tokens in zigzag; "ring-contiguous"; "ulysses": heads against tokens
};

struct PipelineConfig {
  int64_t stages = 1;
  std::string partition = "best";              ///< as pipeline::SplitBy::parse() reads it
  int64_t activation_checkpoint_interval = 0;  ///< layers; 0: none
  std::string schedule = "1f1b";               ///< as pipeline::parse_kind() reads it
  int64_t chunks = 0;                          ///< of layers at each stage; 0: as the schedule has by default
};

struct DataTypesConfig {
  std::optional<std::string> grad_accum_dtype;  ///< "fp32", "fp16", "bf16"; not given: that of the parameters
};

struct Config {
  // train_batch_size = train_micro_batch_size_per_gpu * gradient_accumulation_steps * ranks; resolve() fills in what is
  // missing.
  std::optional<int64_t> train_batch_size, train_micro_batch_size_per_gpu, gradient_accumulation_steps;
  /// false: step() is called at boundaries only, and the caller knows where these are
  bool managed_gradient_accumulation = true;

  NamedConfig optimizer, scheduler;
  EmaConfig ema;
  double gradient_clipping = 1;  ///< 0: none
  bool prescale_gradients = false;
  double gradient_predivide_factor = 1;
  std::optional<std::string> communication_data_type;  ///< "fp32", "fp16", "bf16"

  Fp16Config fp16;
  Bf16Config bf16;
  Fp8Config fp8;
  DataTypesConfig data_types;
  ZeroConfig zero_optimization;
  zero::AioOptions aio;
  ActivationCheckpointingConfig activation_checkpointing;
  CheckpointConfig checkpoint;
  PipelineConfig pipeline;
  TensorParallelConfig tensor_parallel;
  ContextParallelConfig context_parallel;
  data::Json sparse_attention;  ///< false or null: none; else an object, see sparse_attention()

  bool dataloader_drop_last = false;
  int64_t seed = 1234;
  std::optional<int64_t> steps_per_print;  ///< not given: never
  bool wall_clock_breakdown = false, memory_breakdown = false, dump_state = false;
  FlopsProfilerConfig flops_profiler;
  MonitorConfig tensorboard, csv_monitor;
  CommsLoggerConfig comms_logger;

  std::string origin = "config";            ///< the file, for messages
  std::set<std::string> given;              ///< keys that the file names: "zero_optimization.stage"
  std::map<std::string, data::Json> inert;  ///< those of them that do nothing here
  std::vector<std::string> warnings;  ///< keys that would do something elsewhere, deprecated keys, doubtful values

  bool has(std::string_view path) const { return given.count(std::string(path)) != 0; }
};

/// A file's name, JSON text (begins with '{'), or that in base64 (URL-safe or not), as DeepSpeed takes them. JSON may
/// have comments and trailing commas. One Error lists everything that is wrong.
Config read_config(const std::string& source);
Config config_from_json(std::string_view text, const std::string& origin = "config");
/// The same source as JSON that config_from_json() takes; nothing of it is checked yet.
data::Json read_config_json(const std::string& source);

/// The config that `dp_world` data-parallel ranks train with: batch sizes filled in, ranges and pairs of keys checked.
/// One Error lists everything that is wrong; what is only doubtful is added to warnings.
Config resolve(Config config, int dp_world);

/// Every key with its value, a line each, and where it comes from: "(from file)", "(default)", "(default here;
/// DeepSpeed: 5e8)".
std::string to_text(const Config& config);
/// The same as an object of objects that read_config() takes.
data::Json to_json(const Config& config);
/// docs/config.md
std::string config_reference();

// What the config asks for, as objects of the library.
zero::ZeroOptions zero_options(const Config& config);
/// Error for a block that is wrong. nullopt: none.
std::optional<nn::SparsityConfig> sparse_attention(const Config& config);
/// f32, or what fp16 or bf16 ask for: the dtype of parameters.
DType parameter_dtype(const Config& config);
/// nullopt without fp8.
std::optional<nn::Fp8Options> fp8_options(const Config& config);
/// nullopt without fp16. A static loss scale is one whose window never ends.
std::optional<optim::DynamicLossScaler::Options> loss_scaler_options(const Config& config);

using NamedParameters = std::vector<nn::NamedParameter>;  // nn::Module::named_parameters()
/// The optimizers that optimizer.type asks for: one, or two for Muon (matrices; AdamW for the rest). Empty without a
/// type. Collective for the 1-bit ones, whose ranks are `group`, default dist::world().
std::vector<std::unique_ptr<optim::Optimizer>> make_optimizers(const Config& config, const NamedParameters& parameters,
                                                               dist::ProcessGroup* group = nullptr);
/// The schedule that scheduler.type asks for; null without a type.
std::unique_ptr<optim::Schedule> make_schedule(const Config& config, optim::Optimizer& optimizer);

}  // namespace lockstep::engine
