// Error messages for invalid configuration files: the key, what was expected, what was given, and what to do.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>

#include "engine/config.h"
#include "tests/messages.h"
#include "tests/temp_dir.h"

using namespace lockstep;
using namespace lockstep::engine;

namespace {

std::string refused(const std::string& json) {
  return message([&] { resolve(config_from_json(json, "c.json"), 2); });
}

}  // namespace

TEST_CASE("config: malformed files, one problem each") {
  struct Row {
    const char *json, *expected;
  };
  const Row rows[] = {
      // Invalid JSON.
      {"", "c.json:1:1: "},
      {"{", "c.json:1:2: "},
      {"[]", "c.json: expected an object {...}, got a list"},
      {"3", "c.json: expected an object {...}, got an integer"},
      {"{} {}", "c.json:1:4: "},
      {"{\"seed\": 1,\n \"seed\": 2}", "c.json:2:8: key \"seed\" appears twice"},
      {"{\n\"seed\": 1\n\"fp16\": {}}", "c.json:3:"},
      {R"({"seed": 1,, "fp16": {}})", "c.json:1:12: "},
      {R"({,})", "c.json:1:2: "},
      {R"({"seed": NaN})", "c.json:1:10: expected JSON, got NaN; write a finite number"},
      {R"({"gradient_clipping": -Infinity})", "got Infinity; write a finite number"},
      {R"({"gradient_clipping": 1e999})", "c.json:1:27: number overflow parsing '1e999'"},
      {R"({"seed": 123456789012345678901234567890})", "does not fit in 64 bits"},
      {R"({"wall_clock_breakdown": True})", "c.json:1:26: expected JSON, got True; write true"},
      {R"({"steps_per_print": None})", "got None; write null"},
      {R"({optimizer: {}})",
       "c.json:1:2: expected JSON, got optimizer; strings and names of keys must be in double quotes"},
      {R"({"optimizer": {"type": AdamW}})", "got AdamW; strings and names of keys must be in double quotes"},
      {"{\"seed\": 1 /* no end", "c.json:1:12: this comment does not end"},
      {"{\"se\x80\": 1}", "c.json:1:"},
      // Unknown keys.
      {R"({"optimzer": {"type": "AdamW"}})", "optimzer: no such key; did you mean optimizer?"},
      {R"({"zero_optimization": {"stagee": 2}})", "zero_optimization.stagee: no such key; did you mean stage?"},
      {R"({"zero_optimization": {"offload_optimizer": {"devise": "cpu"}}})",
       "zero_optimization.offload_optimizer.devise: no such key; did you mean device?"},
      {R"({"stage": 2})", "stage: no such key; it belongs in zero_optimization"},
      {R"({"zero_optimization": {"aio": {"block_size": 1048576}}})",
       "zero_optimization.aio: no such key; it belongs in the top level"},
      {R"({"fp16": {"optimizer": {"type": "Adam"}}})", "fp16.optimizer: no such key; it belongs in the top level"},
      {R"({"zero_optimization": {"gradient_clipping": 1}})",
       "zero_optimization.gradient_clipping: no such key; it belongs in the top level"},
      {R"({"zero_optimization.stage": 2})",
       "zero_optimization.stage: no such key; keys inside keys are objects inside objects"},
      {R"({"lr": 0.1})", "lr: no such key"},
      {R"({"": 1})", ": no such key"},
      {R"({"a\nb": 1})", R"(a\nb: no such key)"},
      // Wrong types.
      {R"({"fp16": true})", "fp16: expected an object {...}, got true"},
      {R"({"zero_optimization": true})",
       "zero_optimization: expected an object {...}, got true; write {\"stage\": 1} for true"},
      {R"({"train_batch_size": "8"})", "train_batch_size: expected an integer from 1 to 1e9, or null, got \"8\""},
      {R"({"train_batch_size": true})", "train_batch_size: expected an integer from 1 to 1e9, or null, got true"},
      {R"({"train_batch_size": 2.5})", "train_batch_size: expected an integer from 1 to 1e9, or null, got 2.5"},
      {R"({"train_batch_size": [8]})", "got [8]"},
      {R"({"seed": 1e19})", "seed: expected an integer >= 0"},
      {R"({"fp16": {"enabled": 1}})", "fp16.enabled: expected true or false, got 1"},
      {R"({"fp16": {"enabled": "true"}})", "fp16.enabled: expected true or false, got \"true\""},
      {R"({"fp16": {"loss_scale": true}})", "fp16.loss_scale: expected a number >= 0, got true"},
      {R"({"fp16": {"enabled": null}})", "fp16.enabled: expected true or false, got null"},
      {R"({"optimizer": {"type": 3}})", "optimizer.type: expected a string, got 3"},
      {R"({"optimizer": {"type": "SGD", "params": []}})", "optimizer.params: expected an object {...}, got []"},
      // Ranges and words.
      {R"({"train_batch_size": 0})", "train_batch_size: expected an integer from 1 to 1e9, or null, got "},
      {R"({"gradient_accumulation_steps": -1})",
       "gradient_accumulation_steps: expected an integer from 1 to 1e9, or null, got "},
      {R"({"train_batch_size": 1e15})", "train_batch_size: expected an integer from 1 to 1e9, or null, got "},
      {R"({"gradient_clipping": -0.5})", "gradient_clipping: expected a number >= 0, got -0.5"},
      {R"({"gradient_predivide_factor": 0})", "gradient_predivide_factor: expected a number > 0, got 0"},
      {R"({"zero_optimization": {"stage": 4}})", "zero_optimization.stage: expected an integer from 0 to 3, got 4"},
      {R"({"zero_optimization": {"stage": -1}})", "zero_optimization.stage: expected an integer from 0 to 3, got -1"},
      {R"({"zero_optimization": {"reduce_bucket_size": -1}})",
       "zero_optimization.reduce_bucket_size: expected an integer >= 0, got -1"},
      {R"({"steps_per_print": "sometimes"})",
       "steps_per_print: expected an integer from 1 to 1e15, or null, got \"sometimes\""},
      {R"({"fp16": {"loss_scale_window": 0}})", "fp16.loss_scale_window: expected an integer from 1 to 1e15, got 0"},
      {R"({"fp16": {"min_loss_scale": 0}})", "fp16.min_loss_scale: expected a number > 0, got 0"},
      {R"({"zero_optimization": {"offload_optimizer": {"device": "gpu"}}})",
       "zero_optimization.offload_optimizer.device: expected none, cpu or nvme, got \"gpu\"; did you mean cpu?"},
      {R"({"communication_data_type": "fp64"})",
       "communication_data_type: expected fp32, fp16 or bf16, or null, got \"fp64\"; did you mean fp32?"},
      {R"({"checkpoint": {"tag_validation": "Never"}})",
       "checkpoint.tag_validation: expected ignore, warn or fail, got \"Never\""},
      {R"({"zero_optimization": {"offload_optimizer": {"ratio": 1.5}}})",
       "zero_optimization.offload_optimizer.ratio: expected a number from 0 to 1, got 1.5"},
      // "auto" where the engine cannot fill it in
      {R"({"fp16": {"enabled": "auto"}})",
       "fp16.enabled: expected true or false, got \"auto\", which Hugging Face's Trainer fills in; write the value, "
       "such as false (the default)"},
      {R"({"optimizer": {"type": "AdamW", "params": {"lr": "auto"}}})",
       "optimizer.params.lr: expected a number, got \"auto\", which Hugging Face's Trainer fills in; write the value, "
       "such as 0.001 (the default)"},
      {R"({"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto"}}})",
       "scheduler.params.total_num_steps: expected an integer >= 1, got \"auto\", which Hugging Face's Trainer fills "
       "in; write the value"},
      // Conflicting keys.
      {R"({"fp16": {"enabled": true}, "bf16": {"enabled": true}})",
       "fp16.enabled and bf16.enabled: expected one of them at most"},
      {R"({"fp16": {"enabled": true, "initial_scale_power": 2, "min_loss_scale": 8}})",
       "fp16.min_loss_scale: expected at most the first loss scale, 2^initial_scale_power = 4, got 8"},
      {R"({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}})",
       "zero_optimization.offload_param.nvme_path: expected a folder, as the device is nvme; got none"},
      {R"({"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "nvme"}}})",
       "zero_optimization.offload_optimizer.nvme_path: expected a folder, as the device is nvme; got none"},
      {R"({"aio": {"block_size": 5000}})", "aio.block_size: expected a multiple of 4096, got 5000"},
      {R"({"aio": {"thread_count": 0}})", "aio.thread_count: expected an integer from 1 to 64, got 0"},
      {R"({"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}})",
       "zero_optimization.offload_optimizer.ratio: below 1 needs stage 3"},
      {R"({"activation_checkpointing": {"contiguous_memory_optimization": true}})",
       "activation_checkpointing.contiguous_memory_optimization: needs partition_activations and number_checkpoints, "
       "partition_activations is false and number_checkpoints is missing"},
      {R"({"activation_checkpointing": {"contiguous_memory_optimization": true, "partition_activations": true}})",
       "number_checkpoints, number_checkpoints is missing"},
      {R"({"zero_optimization": {"stage": 2}, "pipeline": {"stages": 2}})",
       "pipeline.stages: 2: zero2 shards gradients after every micro-batch"},
      {R"({"pipeline": {"stages": 2, "partition": "halves"}})",
       "pipeline.partition: [split] expected uniform, parameters, best or type:PATTERN"},
      {R"({"pipeline": {"schedule": "1f1"}})", "pipeline.schedule: expected gpipe, 1f1b, interleaved, zb-h1"},
      {R"({"communication_data_type": "bf16", "data_types": {"grad_accum_dtype": "fp32"}})",
       "data_types.grad_accum_dtype and communication_data_type: expected the same"},
      {R"({"optimizer": {"params": {"lr": 1}}})", "optimizer.params: expected optimizer.type too, got params only"},
      // Optimizers and schedules.
      {R"({"optimizer": {"type": "AdmaW"}})", "optimizer.type: expected one of AdamW, Adam, "},
      {R"({"optimizer": {"type": "AdmaW"}})", "got \"AdmaW\"; did you mean Adam"},
      {R"({"optimizer": {"type": "AdamW", "params": {"beta": 1}}})",
       "optimizer.params.beta: AdamW has no such option; did you mean betas?"},
      {R"({"optimizer": {"type": "AdamW", "params": {"max_grad_norm": 1}}})",
       "optimizer.params.max_grad_norm: AdamW has no such option; write gradient_clipping at the top level"},
      {R"({"optimizer": {"type": "AdamW", "params": {"betas": [0.9]}}})",
       "optimizer.params.betas: expected a list of two numbers, got [0.9]"},
      {R"({"optimizer": {"type": "AdamW", "params": {"betas": [0.9, 1.5]}}})",
       "optimizer.params: expected beta2 in [0, 1), got 1.5"},
      {R"({"optimizer": {"type": "AdamW", "params": {"lr": -1}}})",
       "optimizer.params: expected lr in [0, inf), got -1"},
      {R"({"optimizer": {"type": "AdamW", "params": {"lr": "1e-3"}}})",
       "optimizer.params.lr: expected a number, got \"1e-3\""},
      {R"({"optimizer": {"type": "AdamW", "params": {"adam_w_mode": false}}})",
       "optimizer.params.adam_w_mode: expected true, as AdamW always decouples weight decay, got false"},
      {R"({"optimizer": {"type": "SGD", "params": {"nesterov": true}}})",
       "optimizer.params: nesterov needs momentum > 0"},
      {R"({"scheduler": {"type": "WarmupLr2"}})", "did you mean WarmupLR?"},
      {R"({"scheduler": {"type": "WarmupDecayLR"}})",
       "scheduler.params.total_num_steps: expected an integer >= 1, as WarmupDecayLR needs it; got none"},
      {R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_type": "cosine"}}})",
       "scheduler.params.warmup_type: expected log or linear, got \"cosine\""},
      {R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_steps": 5}}})",
       "scheduler.params.warmup_steps: WarmupLR has no such option"},
      {R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": [1, 2], "warmup_max_lr": [1, 2, 3]}}})",
       "scheduler.params: expected one warmup_min_lr or one for each of 3 groups, got 2"},
      {R"({"scheduler": {"params": {"gamma": 2}}})",
       "scheduler.type: expected a name with scheduler.params, got params only"},
      // Batch sizes on 2 ranks.
      {R"({"train_batch_size": 16, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 8})",
       "train_batch_size 16 is not train_micro_batch_size_per_gpu 2 * gradient_accumulation_steps 8 * 2 ranks = 32; "
       "write one of\n    \"gradient_accumulation_steps\": 4\n    \"train_micro_batch_size_per_gpu\": 1\n    "
       "\"train_batch_size\": 32"},
      {R"({"train_batch_size": 9, "train_micro_batch_size_per_gpu": 2})",
       "train_batch_size 9 is not train_micro_batch_size_per_gpu 2 * gradient_accumulation_steps 2 (inferred) * 2 "
       "ranks = 8"},
      {R"({"train_batch_size": 1})",
       "train_batch_size 1 is not train_micro_batch_size_per_gpu 0 (inferred) * gradient_accumulation_steps 1 "
       "(inferred) * 2 ranks = 0; write one of\n    \"train_batch_size\": 2"},
      {R"({"gradient_accumulation_steps": 4})",
       "expected train_batch_size or train_micro_batch_size_per_gpu, got neither"},
      {R"({"train_micro_batch_size_per_gpu": 1e9, "gradient_accumulation_steps": 1e9})", " ranks is too large"},
  };
  CHECK(std::size(rows) >= 50);
  for (const Row& row : rows) {
    CAPTURE(row.json);
    const std::string text = refused(row.json);
    CHECK_MESSAGE(contains(text, row.expected), text);
    CHECK_MESSAGE(text.find("c.json:") == 0, text);
    CHECK_MESSAGE(!contains(text, "problems\n"), text);
  }
}

TEST_CASE("config: all problems of a file at once") {
  const std::string text = refused(
      R"({"optimzer": {}, "fp16": {"enabled": "auto", "hysteresis": 0}, "elasticity": {"enabled": true}, "optimizer": {"type": "SGD", "params": {"lr": true, "mom": 1}},
    "zero_optimization": {"stage": 5, "offload_optimizer": {"device": "cloud"}}})");
  CHECK(contains(text, "c.json: 8 problems\n"));
  CHECK(std::count(text.begin(), text.end(), '\n') == 8);
  for (const char* part : {"\n  optimzer: ", "\n  fp16.enabled: ", "\n  fp16.hysteresis: ", "\n  elasticity: ",
                           "\n  optimizer.params.lr: ", "\n  optimizer.params.mom: ", "\n  zero_optimization.stage: ",
                           "\n  zero_optimization.offload_optimizer.device: "}) {
    CHECK_MESSAGE(contains(text, part), text);
  }
}

TEST_CASE("config: a config made by a program is checked as a file is") {
  struct Row {
    Config config;
    const char* expected;
  };
  const Row rows[] = {
      {{.train_batch_size = 0}, "config: train_batch_size: expected an integer from 1 to 1e9, or null, got 0"},
      {{.train_batch_size = 2, .gradient_clipping = -1}, "gradient_clipping: expected a number >= 0"},
      {{.train_batch_size = 2, .gradient_clipping = NAN}, "gradient_clipping: expected a number >= 0"},
      {{.train_batch_size = 2, .zero_optimization = {.stage = 7}},
       "zero_optimization.stage: expected an integer from 0 to 3, got 7"},
      {{.train_batch_size = 2, .communication_data_type = "f32"},
       "communication_data_type: expected fp32, fp16 or bf16, or null, got \"f32\""},
      {{.train_batch_size = 2, .optimizer = {.type = "Adm"}}, "optimizer.type: expected one of"},
      {{.train_batch_size = 2, .fp16 = {.enabled = true}, .bf16 = {.enabled = true}}, "expected one of them at most"},
  };
  for (const Row& row : rows)
    CHECK_MESSAGE(contains(message([&] { resolve(row.config, 1); }), row.expected), row.expected);
  CHECK_ERROR(resolve({.train_batch_size = 2}, 0), "expected 1 or more data-parallel ranks, got 0");
}

TEST_CASE(
    "config: messages stay short, whatever is in the file; pipes do not make it wait; what accelerate writes is read") {
  const std::string million(1'000'000, '1');
  for (const std::string& json :
       {"{\"seed\": " + million + "}", "{\"seed\": \"" + million + "\"}", "{\"seed\": 1." + million + "e999999}",
        "{\"" + million + "\": 1}", "{\"" + million + "\": 1, \"" + million + "\": 2}",
        "{\"optimizer\": {\"type\": \"" + million + "\"}}", million}) {
    const std::string said = message([&] { config_from_json(json.substr(0, 1 << 20), "c.json"); });
    CHECK_MESSAGE((!said.empty() && said.size() < 1000), said.substr(0, 2000));
  }
  const testing::TempDir folder;
  const std::string pipe = (folder.path / "pipe").string();
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  CHECK_ERROR(read_config(pipe), "expected a regular file, got a device or pipe: ");
  const Config config = config_from_json(
      R"({"steps_per_print": "inf", "train_batch_size": 4, "zero_optimization": {"stage": 2, "reduce_bucket_size": 0}})",
      "c.json");
  CHECK(!config.steps_per_print);
  CHECK(zero_options(resolve(config, 2)).reduce_bucket_size == 1);
}
