// DeepSpeed's keys of the configuration file that have no effect of their own, and unchanged DeepSpeed files.
#include <doctest/doctest.h>

#include "engine/section.h"
#include "extensions/deepspeed/other_keys.h"
#include "extensions/deepspeed/reports.h"
#include "tests/messages.h"

using namespace lockstep;
using namespace lockstep::engine;

namespace {

bool warns(const Config& config, const std::string& part) {
  for (const std::string& warning : config.warnings)
    if (contains(warning, part)) return true;
  return false;
}

const char* const guide = R"(
// ds_config.json
{
  "train_batch_size": 16, // samples of a step
  "train_micro_batch_size_per_gpu": 2,
  "gradient_accumulation_steps": 8,
  "optimizer": { // which
    "type": "AdamW", "params": {"lr": 1e-5, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01}},
  "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 1e-5, "warmup_num_steps": 1000}},
  "fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 12, "loss_scale_window": 1000, "hysteresis": 2, "min_loss_scale": 1},
  "zero_optimization": {
    "stage": 2,
    "offload_optimizer": {"device": "cpu", "pin_memory": true},
    "offload_param": {"device": "cpu", "pin_memory": true},
    "overlap_comm": true, "contiguous_gradients": true, "sub_group_size": 1e9, "stage3_prefetch_bucket_size": 0,
    "stage3_param_persistence_threshold": 1e5, "stage3_max_live_parameters": 1e9, "stage3_max_act_size": 1e9},
  "gradient_clipping": 1.0, "prescale_gradients": false, "wall_clock_breakdown": false,
  "flops_profiler": {"enabled": false, "profile_step": 1, "module_depth": -1, "top_modules": 1, "detailed": true, "output_file": null},
  "activation_checkpointing": {"enabled": false, "cpu_checkpointing": false, "partition_activations": false},
  "pipeline": {"seed_layers": false, "micro_batch_size": 0},
  "steps_per_print": 10,
  "seed": 1234, /* of everything */
  "tensorboard": {"enabled": true, "output_path": "tensorboard_logs/", "job_name": "my_deepspeed_experiment"},
})";

}  // namespace

TEST_CASE("config: a tutorial's file, with comments and keys that DeepSpeed does not have") {
  const Config c = resolve(config_from_json(guide), 1);
  CHECK(c.train_batch_size == 16);
  CHECK(c.zero_optimization.stage == 2);
  CHECK(c.zero_optimization.stage3_param_persistence_threshold == 100'000);
  CHECK(c.zero_optimization.sub_group_size == 1'000'000'000);
  CHECK(c.fp16.enabled);
  CHECK(c.optimizer.type == "AdamW");
  CHECK(c.steps_per_print == 10);
  CHECK(!c.section<FlopsProfilerConfig>().output_file);
  CHECK(c.section<TensorBoardConfig>().output_path == "tensorboard_logs/");
  CHECK(c.warnings.size() == 2);
  CHECK(warns(c, "zero_optimization.stage3_max_act_size: accepted, and has no effect: DeepSpeed has no such key"));
  CHECK(warns(c, "zero_optimization.offload_param: ignored below stage 3, and zero_optimization.stage is 2"));
  CHECK(loss_scaler_options(c)->init_scale == 4096);
  CHECK(parameter_dtype(c) == f16);
}

TEST_CASE("config: files of DeepSpeed") {
  struct Row {
    const char* name;
    const char* json;
    int ranks;
    int64_t batch;
    DType dtype;
  };
  const Row rows[] = {
      {"zero2",
       R"({"train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 2, "fp16": {"enabled": true, "initial_scale_power": 32, "min_loss_scale": 1e-5},
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": true}, "allgather_partitions": true, "allgather_bucket_size": 2e8, "overlap_comm": true,
        "reduce_scatter": true, "reduce_bucket_size": 2e8, "contiguous_gradients": true, "round_robin_gradients": true},
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-5, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7, "torch_adam": true, "adam_w_mode": true}},
        "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 5000, "warmup_min_lr": 0, "warmup_max_lr": 3e-5, "warmup_num_steps": 500, "last_batch_iteration": -1}},
        "gradient_clipping": 1.0, "steps_per_print": 2e3, "wall_clock_breakdown": false})",
       4, 64, f16},
      {"old names",
       R"({"train_batch_size": 2, "bfloat16": {"enabled": true}, "zero_optimization": {"stage": 1, "cpu_offload": true}})",
       2, 2, bf16},
      {"switched off",
       R"({"train_batch_size": 1, "steps_per_print": null, "amp": {"enabled": false, "opt_level": "O1"}, "elasticity": {"enabled": false}, "autotuning": {"enabled": false, "fast": true},
        "compression_training": {}, "curriculum_learning": null, "sparse_gradients": false, "fp16": null, "zero_optimization": {"stage": 0, "zero_quantized_weights": false,
        "zero_hpz_partition_size": 1, "mics_shard_size": -1, "offload_optimizer": null}, "pipeline": {"stages": "auto", "partition": "best"}, "tensor_parallel": {"autotp_size": 1}})",
       1, 1, f32},
      {"text with comment signs", R"({"train_batch_size": 1, "csv_monitor": {"output_path": "/a//b#c/*d*/,}"}})", 1, 1,
       f32},
  };
  for (const Row& row : rows) {
    CAPTURE(std::string(row.name));
    const Config c = resolve(config_from_json(row.json), row.ranks);
    CHECK(*c.train_batch_size == row.batch);
    CHECK(*c.train_micro_batch_size_per_gpu * *c.gradient_accumulation_steps * row.ranks == row.batch);
    CHECK(parameter_dtype(c) == row.dtype);
    // The printed configuration parses to the same one.
    const Config again = resolve(config_from_json(to_json(c).dump()), row.ranks);
    CHECK(to_json(again) == to_json(c));
  }
  const Config old = config_from_json(rows[1].json);
  CHECK(old.zero_optimization.offload_optimizer.device == zero::Offload::cpu);
  CHECK(warns(old, "bfloat16: a deprecated name of bf16"));
  CHECK(warns(old, "zero_optimization.cpu_offload: a deprecated name of zero_optimization.offload_optimizer.device"));
  CHECK(config_from_json(rows[2].json).warnings.size() == 1);  // a warning, because autotp_size is 1, not 0
  CHECK(config_from_json(rows[3].json).section<CsvMonitorConfig>().output_path == "/a//b#c/*d*/,}");
}

TEST_CASE("config: a key without effect is printed with the reason") {
  const Config c = config_from_json(R"({"zero_optimization": {"stage": 3, "contiguous_gradients": true}})");
  const std::string text = to_text(c);
  const size_t at = text.find("zero_optimization.contiguous_gradients ");
  REQUIRE(at != text.npos);
  const std::string line = text.substr(at, text.find('\n', at) - at);
  CHECK(contains(line, " true "));
  CHECK(contains(line, "(no effect: gradients always lie one after another)"));
}

TEST_CASE("config: every key is in the reference") {
  CHECK(config_keys().size() > 150);
  for (const Key& key : config_keys()) {
    CHECK((has_status(key, Status::renamed) || !key.doc.empty()));
    CHECK(contains(config_reference(), "`" + key.path + "`"));
    if (has_status(key, Status::renamed)) CHECK(contains(config_reference(), key.fallback.as_string()));
  }
}

TEST_CASE("config: invalid values of DeepSpeed's keys are rejected") {
  struct Row {
    const char *json, *expected;
  };
  const Row rows[] = {
      {R"({"bf16": {"enabled": true}, "bfloat16": {"enabled": false}})",
       "bf16.enabled: the file says bf16.enabled already, and it is true"},
      {R"({"comms_logger": {"prof_ops": "all_reduce"}})",
       "comms_logger.prof_ops: expected a list of strings, got \"all_reduce\""},
      {R"({"comms_logger": {"prof_ops": [1]}})", "comms_logger.prof_ops: expected a list of strings, got [1]"},
      {R"({"csv_monitor": {"output_path": {"a very long value": "that nobody wants to see whole in a message"}}})",
       "got {\"a very long value\": \"that nobody wants to see whole in ..."},
      {R"({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}, "optimizer": {"type": "OneBitLamb"}})",
       "optimizer.type: OneBitLamb exchanges gradients itself and keeps its state with the parameters"},
      {R"({"communication_data_type": "fp16", "optimizer": {"type": "ZeroOneAdam"}})",
       "sends them in the parameters' dtype, but communication_data_type is fp16; leave it out"},
      {R"({"data_types": {"grad_accum_dtype": "fp32"}, "optimizer": {"type": "OneBitSGD"}})",
       "sends them in the parameters' dtype, but data_types.grad_accum_dtype is fp32; leave it out"},
      {R"({"zero_optimization": {"ignore_unused_parameters": true}, "optimizer": {"type": "OneBitSGD"}})",
       "needs a gradient for every parameter, but zero_optimization.ignore_unused_parameters is true"},
      {R"({"zero_optimization": {"stage": 1}, "optimizer": {"type": "OneBitAdam"}})",
       "optimizer.type: OneBitAdam exchanges gradients itself and needs stage 0, but zero_optimization.stage is 1"},
      {R"({"optimizer": {"type": "OneBitAdam", "params": {"freeze_step": 0}}})",
       "optimizer.params.freeze_step: expected an integer >= 1, got 0"},
      // Removed or unimplemented keys.
      {R"({"sparse_gradients": true})",
       "sparse_gradients: DeepSpeed has removed this key; gradients are dense; leave it out"},
      {R"({"elasticity": {"enabled": true}})",
       "elasticity: DeepSpeed has removed this key; start `lockstep run` with the number of ranks"},
      {R"({"amp": {"enabled": true}})",
       "amp: DeepSpeed has removed this key; NVIDIA's Apex has no counterpart; write fp16 or bf16 instead"},
      {R"({"compression_training": {"weight_quantization": {"shared_parameters": {"enabled": true}}}})",
       "compression_training: DeepSpeed has removed this key"},
      {R"({"zero_optimization": {"zero_quantized_weights": true}})",
       "zero_optimization.zero_quantized_weights: expected false or nothing, got true; quantized communication "
       "(ZeRO++) is not supported yet"},
      {R"({"tensor_parallel": {"autotp_size": 4}})",
       "tensor_parallel.autotp_size: expected an integer from 0 to 1, got 4; this file does not split layers; use "
       "tensor_parallel::apply(), or gpt train --plan dpN+tpN"},
      {R"({"wandb": {"enabled": true, "project": "x"}})",
       "wandb: expected {\"enabled\": false} or nothing, got {\"enabled\": true, \"project\": \"x\"}; write "
       "tensorboard or csv_monitor instead"},
      {R"({"gradient_allreduce_op": "sum"})",
       "gradient_allreduce_op: expected \"mean\" or nothing, got \"sum\"; sums are not supported yet"},
      {R"({"bf16": {"bf16_optimizer_states": true}})",
       "bf16.bf16_optimizer_states: expected false or nothing, got true; optimizer state is f32"},
      {R"({"zero_optimization": {"contiguous_gradients": "yes"}})",
       "zero_optimization.contiguous_gradients: expected true or false, got \"yes\""},
      {R"({"zero_optimization": {"cpu_offload": "cpu"}})",
       "zero_optimization.cpu_offload: expected true or false, got \"cpu\""},
  };
  for (const Row& row : rows) {
    CAPTURE(row.json);
    const std::string text = message([&] { resolve(config_from_json(row.json, "c.json"), 2); });
    CHECK_MESSAGE(contains(text, row.expected), text);
    CHECK_MESSAGE(text.find("c.json:") == 0, text);
    CHECK_MESSAGE(!contains(text, "problems\n"), text);
  }
}
