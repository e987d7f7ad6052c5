// Checks a config as a whole: combinations of keys, batch sizes for a number of ranks. Converts it to our options.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "base/check.h"
#include "engine/check_plan.h"
#include "engine/section.h"
#include "pipeline/split.h"

namespace lockstep::engine {

namespace {

/// Three consistent batch sizes, train = micro * accumulation * ranks, in the order of batch_keys.
using Batch = std::array<int64_t, 3>;
constexpr const char* batch_keys[] = {"train_batch_size", "train_micro_batch_size_per_gpu",
                                      "gradient_accumulation_steps"};

/// a * b * c, or nullopt if that is more than 1e15, which no batch can have.
std::optional<int64_t> product(int64_t a, int64_t b, int64_t c) {
  const double size = double(a) * double(b) * double(c);
  return size <= 1e15 ? std::optional(a * b * c) : std::nullopt;
}

/// Suggests consistent batch sizes, those with the fewest and smallest changes first.
std::vector<std::string> fixes(const Config& c, int64_t ranks) {
  const std::array<std::optional<int64_t>, 3> given = {c.train_batch_size, c.train_micro_batch_size_per_gpu,
                                                       c.gradient_accumulation_steps};
  const auto& [train, micro, accumulation] = given;
  std::vector<Batch> found;
  const auto add = [&](int64_t m, int64_t a) {
    if (m >= 1 && a >= 1 && product(m, a, ranks)) found.push_back({m * a * ranks, m, a});
  };
  const int64_t m = micro.value_or(1), a = accumulation.value_or(1);
  if (micro || accumulation) add(m, a);
  if (train) {
    const int64_t each = *train / ranks;  // samples per rank and step, rounded down
    for (const int64_t near : {each, each + 1}) {
      if (near < 1) continue;
      if (micro)
        for (const int64_t times : {near / m, near / m + 1}) add(m, times);
      if (accumulation)
        for (const int64_t times : {near / a, near / a + 1}) add(times, a);
      for (int64_t d = 1; d * d <= near; ++d)
        if (near % d == 0) add(d, near / d), add(near / d, d);
    }
  }
  const auto changes = [&](const Batch& b) {  // number and size of the changes
    std::pair<int, double> all{0, 0};
    for (size_t i = 0; i < b.size(); ++i) {
      if (!given[i]) continue;
      all.first += b[i] != *given[i];
      all.second += (i == 0 ? 1.1 : 1) * std::abs(std::log(double(b[i]) / double(*given[i])));
    }
    return all;  // train_batch_size weighs more, because results depend on it most
  };
  std::stable_sort(found.begin(), found.end(), [&](const Batch& x, const Batch& y) { return changes(x) < changes(y); });
  std::vector<std::string> texts;
  for (const Batch& b : found) {
    std::string text;
    for (size_t i = 0; i < b.size(); ++i)
      if (given[i] && b[i] != *given[i]) text += str(text.empty() ? "" : " and ", "\"", batch_keys[i], "\": ", b[i]);
    if (!text.empty() && std::find(texts.begin(), texts.end(), text) == texts.end()) texts.push_back(text);
    if (texts.size() == 3) break;
  }
  return texts;
}

/// Fills in missing batch sizes by DeepSpeed's rules; returns the problem, or "".
std::string fit_batch(Config& c, int64_t ranks) {
  const Config asked = c;
  auto &train = c.train_batch_size, &micro = c.train_micro_batch_size_per_gpu,
       &accumulation = c.gradient_accumulation_steps;
  if (!train && !micro) return "expected train_batch_size or train_micro_batch_size_per_gpu, got neither";
  if (train && !micro) {
    if (!accumulation) accumulation = 1;
    micro = *train / ranks / *accumulation;
  } else if (train && !accumulation) {
    accumulation = *train / ranks / *micro;
  } else if (!train) {
    if (!accumulation) accumulation = 1;
    train = product(*micro, *accumulation, ranks);
    if (!train)
      return str("train_micro_batch_size_per_gpu ", *micro, " * gradient_accumulation_steps ", *accumulation, " * ",
                 ranks, " ranks is too large; expected at most 1e15");
  }
  const auto all = product(*micro, *accumulation, ranks);
  if (all && *all == *train && *micro >= 1 && *accumulation >= 1) return "";
  std::string text = str("train_batch_size ", *train, " is not train_micro_batch_size_per_gpu ", *micro,
                         asked.train_micro_batch_size_per_gpu ? "" : " (inferred)", " * gradient_accumulation_steps ",
                         *accumulation, asked.gradient_accumulation_steps ? "" : " (inferred)", " * ", ranks,
                         ranks == 1 ? " rank" : " ranks", all ? str(" = ", *all) : "", "; write one of");
  for (const std::string& fix : fixes(asked, ranks)) text += "\n    " + fix;
  c = asked;
  return text;
}

void check_together(const Config& c, std::vector<std::string>& problems, std::vector<std::string>& warnings) {
  const auto require = [&](bool holds, const std::string& problem) {
    if (!holds) problems.push_back(problem);
  };
  const ZeroConfig& z = c.zero_optimization;
  const std::string stage = str("zero_optimization.stage is ", z.stage);
  require(!(c.fp16.enabled && c.bf16.enabled),
          "fp16.enabled and bf16.enabled: expected one of them at most; leave one out");
  if (c.fp16.enabled && c.fp16.loss_scale == 0) {
    const double begin = std::exp2(double(c.fp16.initial_scale_power));
    require(begin >= c.fp16.min_loss_scale,
            str("fp16.min_loss_scale: expected at most the first loss scale, 2^initial_scale_power = ", begin, ", got ",
                c.fp16.min_loss_scale));
  }

  using zero::Offload;
  const auto check_folder = [&](const std::string& name, const auto& offload) {
    require(offload.device != Offload::nvme || !offload.nvme_path.empty(),
            str("zero_optimization.", name, ".nvme_path: expected a folder, as the device is nvme; got none"));
    if (offload.device == Offload::cpu && !offload.nvme_path.empty())
      warnings.push_back(str("zero_optimization.", name, ".nvme_path: ignored, as the device is cpu; leave it out"));
  };
  // Below stage 3, offload_param has no effect, so its folder is not checked.
  if (z.stage == 3) check_folder("offload_param", z.offload_param);
  else if (z.offload_param.device != Offload::none)
    warnings.push_back(str("zero_optimization.offload_param: ignored below stage 3, and ", stage, "; leave it out"));
  check_folder("offload_optimizer", z.offload_optimizer);
  const Offload device = z.offload_optimizer.device;
  if (const int needed = device == Offload::nvme ? 3 : device == Offload::cpu ? 1 : 0; z.stage < needed) {
    warnings.push_back(str("zero_optimization.offload_optimizer.device: ", name_of(device),
                           " works here in every stage; DeepSpeed wants stage ", needed, needed == 1 ? " or more" : "",
                           ", and ", stage, "; change it only to run there too"));
  }
  require(
      z.offload_optimizer.ratio == 1 || device == Offload::none || z.stage == 3,
      str("zero_optimization.offload_optimizer.ratio: below 1 needs stage 3, ", stage, "; write 1 or leave it out"));
  require(c.aio.block_size % 4096 == 0, str("aio.block_size: expected a multiple of 4096, got ", c.aio.block_size));
  if (z.stage3_gather_16bit_weights_on_model_save && z.stage != 3)
    warnings.push_back(str("zero_optimization.stage3_gather_16bit_weights_on_model_save: has no effect below stage 3; ",
                           stage, ", so leave it out"));

  const ActivationCheckpointingConfig& a = c.activation_checkpointing;
  const std::pair<const char*, bool> without_blocks[] = {
      {"partition_activations", a.partition_activations},
      {"cpu_checkpointing", a.cpu_checkpointing},
      {"profile", a.profile},
      {"synchronize_checkpoint_boundary", a.synchronize_checkpoint_boundary}};
  for (const auto& [name, on] : without_blocks) {
    if (on && !c.checkpoints_activations())
      warnings.push_back(str("activation_checkpointing.", name,
                             ": has no effect without activation_checkpointing.enabled; set that to true"));
  }
  require(!a.contiguous_memory_optimization || (a.partition_activations && a.number_checkpoints),
          str("activation_checkpointing.contiguous_memory_optimization: needs partition_activations and "
              "number_checkpoints, ",
              a.partition_activations ? "" : "partition_activations is false",
              !a.partition_activations && !a.number_checkpoints ? " and " : "",
              a.number_checkpoints ? "" : "number_checkpoints is missing", "; set both, or leave this key out"));

  const parallel::Plan plan{.pp = int(c.pipeline.stages), .zero = int(z.stage)};
  for (const std::string& reason : parallel::reasons_against(plan, {}))
    problems.push_back(str("pipeline.stages: ", plan.pp, ": ", reason));
  for (const std::string& reason : optimizer_reasons(c, plan)) problems.push_back(reason);
  for (const std::string& warning : optimizer_warnings(c)) warnings.push_back(warning);
  try {
    pipeline::SplitBy::parse(c.pipeline.partition);
  } catch (const Error& error) { problems.push_back(str("pipeline.partition: ", error.what())); }
  require(!c.optimizer.type.empty() || c.optimizer.params.as_object().empty(),
          "optimizer.params: expected optimizer.type too, got params only");
  require(!c.scheduler.type.empty() || c.scheduler.params.as_object().empty(),
          "scheduler.type: expected a name with scheduler.params, got params only");
  const auto &sum = c.data_types.grad_accum_dtype, &sent = c.communication_data_type;
  require(!sum || !sent || *sum == *sent, str("data_types.grad_accum_dtype and communication_data_type: expected the "
                                              "same, as gradients are summed in what they are sent in, got ",
                                              sum.value_or(""), " and ", sent.value_or(""), "; leave one out"));
}

DType dtype_of(const std::string& name) { return name == "fp32" ? f32 : name == "fp16" ? f16 : bf16; }

}  // namespace

void check_values(Config& config, std::vector<std::string>& problems) {
  std::vector<std::string> warnings;
  check_ranges(config_keys(), &config, problems);
  check_params(ParamsKind::optimizer, config.optimizer, problems, warnings);
  check_params(ParamsKind::schedule, config.scheduler, problems, warnings);
  check_together(config, problems, warnings);
  for (const Section& section : sections())
    if (section.check) section.check(config, problems, warnings);
  for (const std::string& warning : warnings) {
    if (std::find(config.warnings.begin(), config.warnings.end(), warning) == config.warnings.end())
      config.warnings.push_back(warning);
  }
}

Config resolve(Config config, int dp_world) {
  LOCKSTEP_CHECK(dp_world >= 1, "[config] expected 1 or more data-parallel ranks, got ", dp_world);
  std::vector<std::string> problems;
  check_values(config, problems);
  if (problems.empty()) {
    if (const std::string problem = fit_batch(config, dp_world); !problem.empty()) problems.push_back(problem);
  }
  fail_if_any(config.origin, problems);
  return config;
}

// --- converts the config to options of the library ---

zero::ZeroOptions zero_options(const Config& config) {
  const ZeroConfig& z = config.zero_optimization;
  zero::ZeroOptions o{.stage = int(z.stage),
                      .overlap_comm = z.overlap_comm.value_or(true),
                      .reduce_bucket_size = std::max<int64_t>(1, z.reduce_bucket_size),
                      .reduce_scatter = z.reduce_scatter,
                      .ignore_unused_parameters = z.ignore_unused_parameters};
  // Gradients are summed, over micro-batches and over ranks, in the dtype in which they are sent. Either of
  // these two keys sets it.
  if (const auto& name =
          config.communication_data_type ? config.communication_data_type : config.data_types.grad_accum_dtype)
    o.communication_data_type = dtype_of(*name);
  // With a loss scale (fp16), nonfinite gradients occur in normal training: skip the step. In bf16, check_grad_overflow
  // decides. In f32, nonfinite gradients are an error.
  if (config.fp16.enabled) o.nonfinite = zero::NonFinite::skip;
  else if (config.bf16.enabled)
    o.nonfinite = config.bf16.check_grad_overflow ? zero::NonFinite::skip : zero::NonFinite::propagate;
  o.prefetch_bucket_size = z.stage3_prefetch_bucket_size;
  o.param_persistence_threshold = z.stage3_param_persistence_threshold;
  o.model_persistence_threshold = z.stage3_model_persistence_threshold;
  o.max_live_parameters = z.stage3_max_live_parameters;
  o.max_reuse_distance = z.stage3_max_reuse_distance;
  o.module_size = z.stage3_module_granularity_threshold;
  o.sub_group_size = z.sub_group_size;
  o.offload_optimizer = z.offload_optimizer;
  if (z.stage == 3) o.offload_param = z.offload_param;  // ignored below stage 3, with a warning
  o.aio = config.aio;
  return o;
}

DType parameter_dtype(const Config& config) { return config.fp16.enabled ? f16 : config.bf16.enabled ? bf16 : f32; }

std::optional<optim::DynamicLossScaler::Options> loss_scaler_options(const Config& config) {
  const Fp16Config& f = config.fp16;
  if (!f.enabled) return std::nullopt;
  if (f.loss_scale > 0) {  // fixed: it never grows, and cannot fall
    return optim::DynamicLossScaler::Options{.init_scale = f.loss_scale,
                                             .scale_window = std::numeric_limits<int64_t>::max(),
                                             .min_scale = f.loss_scale,
                                             .raise_error_at_min_scale = false};
  }
  return optim::DynamicLossScaler::Options{.init_scale = std::exp2(double(f.initial_scale_power)),
                                           .scale_window = f.loss_scale_window,
                                           .min_scale = f.min_loss_scale,
                                           .hysteresis = f.hysteresis,
                                           .consecutive_hysteresis = f.consecutive_hysteresis};
}

}  // namespace lockstep::engine
