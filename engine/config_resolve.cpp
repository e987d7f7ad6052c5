// What a config must be as a whole: keys that go together, and the batch sizes of a number of ranks.
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "engine/check_plan.h"
#include "engine/config_table.h"
#include "engine/sparse_attention.h"
#include "pipeline/split.h"
#include "tensor/check.h"

namespace lockstep::engine {

namespace {

/// Three batch sizes that fit: train = micro * accumulation * ranks.
struct Batch {
  int64_t train, micro, accumulation;
};

/// a * b * c, or nothing when that is beyond any batch.
std::optional<int64_t> product(int64_t a, int64_t b, int64_t c) {
  const double size = double(a) * double(b) * double(c);
  return size <= 1e15 ? std::optional(a * b * c) : std::nullopt;
}

/// What could be written instead, the least change first: few keys, and little.
std::vector<std::string> fixes(const Config& c, int64_t ranks) {
  const auto &train = c.train_batch_size, &micro = c.train_micro_batch_size_per_gpu,
             &accumulation = c.gradient_accumulation_steps;
  std::vector<Batch> found;
  const auto add = [&](int64_t m, int64_t a) {
    if (m >= 1 && a >= 1 && product(m, a, ranks)) found.push_back({m * a * ranks, m, a});
  };
  const int64_t m = micro.value_or(1), a = accumulation.value_or(1);
  if (micro || accumulation) add(m, a);
  if (train) {
    const int64_t each = *train / ranks;  // samples of a rank in a step, about
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
  const auto changes = [&](const Batch& b) {
    return int(train && b.train != *train) + int(micro && b.micro != *micro) +
           int(accumulation && b.accumulation != *accumulation);
  };
  const auto distance = [&](const Batch& b) {
    const auto steps = [](const std::optional<int64_t>& given, int64_t now) {
      return given ? std::abs(std::log(double(now) / double(*given))) : 0;
    };
    return 1.1 * steps(train, b.train) + steps(micro, b.micro) +
           steps(accumulation, b.accumulation);  // results depend on the first most
  };
  std::stable_sort(found.begin(), found.end(), [&](const Batch& x, const Batch& y) {
    return std::pair(changes(x), distance(x)) < std::pair(changes(y), distance(y));
  });
  std::vector<std::string> texts;
  for (const Batch& b : found) {
    std::string text;
    const auto say = [&](const char* key, const std::optional<int64_t>& given, int64_t now) {
      if (given && now != *given) text += (text.empty() ? "" : " and ") + str("\"", key, "\": ", now);
    };
    say("train_batch_size", train, b.train);
    say("train_micro_batch_size_per_gpu", micro, b.micro);
    say("gradient_accumulation_steps", accumulation, b.accumulation);
    if (!text.empty() && std::find(texts.begin(), texts.end(), text) == texts.end()) texts.push_back(text);
    if (texts.size() == 3) break;
  }
  return texts;
}

/// Fills in the batch sizes that were not given, by DeepSpeed's rules; "" or what is wrong.
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
                 ranks, " ranks is beyond any batch");
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

  const auto offload = [&](const std::string& name, const std::string& device, const std::string& path) {
    require(device != "nvme" || !path.empty(),
            str("zero_optimization.", name, ".nvme_path: expected a folder, as the device is nvme; got none"));
    if (device == "cpu" && !path.empty())
      warnings.push_back(str("zero_optimization.", name, ".nvme_path: ignored, as the device is cpu"));
  };
  // Without stage 3 parameters are not offloaded, and nothing else about it matters.
  if (z.stage == 3) offload("offload_param", z.offload_param.device, z.offload_param.nvme_path);
  else if (z.offload_param.device != "none")
    warnings.push_back(str("zero_optimization.offload_param: ignored below stage 3, and ", stage));
  const std::string& device = z.offload_optimizer.device;
  offload("offload_optimizer", device, z.offload_optimizer.nvme_path);
  if (const int needed = device == "nvme" ? 3 : device == "cpu" ? 1 : 0; z.stage < needed) {
    warnings.push_back(str("zero_optimization.offload_optimizer.device: ", device,
                           " works here in every stage; DeepSpeed wants stage ", needed, needed == 1 ? " or more" : "",
                           ", and ", stage));
  }
  require(
      z.offload_optimizer.ratio == 1 || device == "none" || z.stage == 3,
      str("zero_optimization.offload_optimizer.ratio: below 1 needs stage 3, ", stage, "; write 1 or leave it out"));
  require(c.aio.block_size % 4096 == 0, str("aio.block_size: expected a multiple of 4096, got ", c.aio.block_size));
  if (z.stage3_gather_16bit_weights_on_model_save && z.stage != 3)
    warnings.push_back(
        str("zero_optimization.stage3_gather_16bit_weights_on_model_save: parameters are whole anyway, as ", stage));

  const ActivationCheckpointingConfig& a = c.activation_checkpointing;
  const std::pair<const char*, bool> without_blocks[] = {
      {"partition_activations", a.partition_activations},
      {"cpu_checkpointing", a.cpu_checkpointing},
      {"profile", a.profile},
      {"synchronize_checkpoint_boundary", a.synchronize_checkpoint_boundary}};
  for (const auto& [name, on] : without_blocks) {
    if (on && !a.enabled)
      warnings.push_back(str(
          "activation_checkpointing.", name,
          ": only with activation_checkpointing.enabled, which computes every block of the model again; it is off"));
  }
  require(!a.contiguous_memory_optimization || (a.partition_activations && a.number_checkpoints),
          str("activation_checkpointing.contiguous_memory_optimization: needs partition_activations and "
              "number_checkpoints, ",
              a.partition_activations ? "" : "partition_activations is false",
              !a.partition_activations && !a.number_checkpoints ? " and " : "",
              a.number_checkpoints ? "" : "number_checkpoints is missing"));

  const parallel::Plan plan{.pp = int(c.pipeline.stages), .zero = int(z.stage)};
  for (const std::string& reason : parallel::reasons_against(plan, {}))
    problems.push_back(str("pipeline.stages: ", plan.pp, ": ", reason));
  for (const std::string& reason : one_bit_reasons(c, plan)) problems.push_back(reason);
  for (const std::string& warning : one_bit_warnings(c)) warnings.push_back(warning);
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

}  // namespace

void check_values(Config& config, std::vector<std::string>& problems) {
  std::vector<std::string> warnings;
  for (const Key& key : config_keys()) {
    if (key.status != Status::works) continue;
    const data::Json value = value_of(key, config);
    if (!value.is_null() && !value.is_object() && (key.range.bounds() || !key.range.words.empty()) &&
        !coerced(value, value, key.range)) {
      problems.push_back(str(key.path, ": expected ", expected(key), ", got ", shown(value)));
    }
  }
  check_params(Kind::optimizer, config.optimizer, problems, warnings);
  check_params(Kind::schedule, config.scheduler, problems, warnings);
  read_sparse_attention(config.sparse_attention, problems);
  check_together(config, problems, warnings);
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

}  // namespace lockstep::engine
