// "auto" in configuration files: files of every documented kind, and rejected ones.
#include <doctest/doctest.h>

#include <set>

#include "nn/linear.h"
#include "nn/models/gpt.h"
#include "optim/optim.h"
#include "tensor/ops.h"
#include "tests/golden_folder.h"
#include "tests/messages.h"
#include "tests/temp_dir.h"
#include "train/json_paths.h"
#include "train/trainer.h"

using namespace lockstep;
using namespace testing;

namespace {

train::TrainOptions one_rank() {
  train::TrainOptions o;
  o.parallel.ranks = 1;
  return o;
}

}  // namespace

TEST_CASE("auto: configuration files of every documented kind load, filled in, through a Trainer and prepare()") {
  // prepare() is called with batches of 4, one per step, 6 steps, AdamW (lr 0.02, betas 0.9 and 0.95, eps 1e-7, weight
  // decay 0.1), and a model of width 16 (its bucket sizes are 256, 230, 160).
  struct Row {
    const char* file;
    std::vector<std::string> expected;  // keys with their values
    const char* precision = "f32";
    // True: the file defines its own optimizer; prepare() rejects the file, because it is given another.
    bool differs = false;
    std::vector<std::string> set = {};
  };
  const char* const adamw = R"("optimizer.params.lr": 0.02, "optimizer.params.betas": [0.9, 0.95],
    "optimizer.params.eps": 1e-7, "optimizer.params.weight_decay": 0.1)";
  const char* const sizes = R"("train_batch_size": 4, "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 1, "gradient_clipping": 0.5)";
  const char* const warm = R"("scheduler.params.warmup_min_lr": 0, "scheduler.params.warmup_max_lr": 0.02,
    "scheduler.params.warmup_num_steps": 3)";
  const char* const buckets = R"("zero_optimization.reduce_bucket_size": 256,
    "zero_optimization.stage3_prefetch_bucket_size": 230, "zero_optimization.stage3_param_persistence_threshold": 160)";
  const TempDir disk;
  const std::string nvme = "zero_optimization.offload_optimizer.nvme_path=" + disk.str(),
                    nvme_param = "zero_optimization.offload_param.nvme_path=" + disk.str();
  const Row rows[] = {
      {"hf_zero2_auto", {adamw, sizes, warm, R"("fp16.enabled": false)"}},
      {"hf_zero2_auto", {adamw, sizes, R"("fp16.enabled": true)"}, "f16"},
      {"hf_zero3_auto", {adamw, sizes, warm, buckets, R"("fp16.enabled": false, "bf16.enabled": true)"}, "bf16"},
      {"hf_zero2_cpu", {adamw, sizes, R"("zero_optimization.offload_optimizer.device": "cpu")"}},
      {"hf_zero3_cpu", {adamw, sizes, warm, buckets, R"("scheduler.params.total_num_steps": 6)"}},
      {"hf_zero3_nvme", {adamw, sizes, buckets, R"("aio.queue_depth": 32)"}, "f32", false, {nvme, nvme_param}},
      {"hf_zero1", {adamw, sizes, warm, R"("zero_optimization.stage": 1)"}},
      {"hf_zero0", {adamw, sizes, warm}},
      {"hf_bf16", {sizes, R"("bf16.enabled": true, "zero_optimization.reduce_bucket_size": 256)"}, "bf16"},
      {"hf_fp16_static", {adamw, R"("fp16.loss_scale": 128, "train_batch_size": 4)"}},
      {"hf_fp32", {sizes}},
      {"hf_warmup_decay", {adamw, sizes, warm, R"("scheduler.params.total_num_steps": 6)"}},
      {"hf_warmup_cosine", {R"("scheduler.params.total_num_steps": 6, "scheduler.params.warmup_num_steps": 3)"}},
      {"hf_no_batch", {adamw, R"("train_batch_size": 4, "gradient_clipping": 0.5)"}},
      {"hf_old_names", {adamw, sizes, R"("zero_optimization.offload_optimizer.device": "cpu")"}},
      {"hf_comments",
       {R"("train_batch_size": 8, "optimizer.params.lr": 3e-5)",
        R"("optimizer.params.weight_decay": 0.1, "steps_per_print": null)"},
       "f32",
       true},
      {"accelerate_zero2",
       {sizes, warm, R"("zero_optimization.offload_optimizer.device": "none")",
        R"("zero_optimization.reduce_bucket_size": 256)"}},
      {"accelerate_zero3",
       {sizes, warm, buckets, R"("zero_optimization.stage3_gather_16bit_weights_on_model_save": false)"}},
      {"accelerate_stage_auto", {sizes, R"("zero_optimization.stage": 0)"}},
      {"ds_train_batch", {R"("train_batch_size": 8, "train_micro_batch_size_per_gpu": 4)"}, "f32", true},
      {"ds_micro_batch", {R"("train_batch_size": 2, "optimizer.params.weight_decay": 3e-7)"}, "f32", true},
      {"ds_lamb", {R"("train_batch_size": 4, "optimizer.params.max_coeff": 0.3)"}, "f32", true},
      {"ds_range_test", {R"("optimizer.params.momentum": 0.9)"}, "f32", true},
      {"ds_activation_checkpointing", {R"("train_batch_size": 1, "activation_checkpointing.number_checkpoints": 4)"}},
      {"ds_flops_profiler", {R"("flops_profiler.enabled": true)"}},
      {"ds_monitors",
       {R"("tensorboard.job_name": "train_bert", "csv_monitor.enabled": true)"},
       "f32",
       false,
       {"tensorboard.output_path=" + disk.str(), "csv_monitor.output_path=" + disk.str()}},
      {"ds_comms_logger", {R"("comms_logger.prof_ops": ["all_reduce", "all_gather"])"}},
      {"ds_aio", {R"("aio.block_size": 1048576)"}, "f32", false, {nvme}},
      {"ds_switched_off", {R"("train_batch_size": 1)"}},
      {"ds_bert_large", {R"("gradient_accumulation_steps": 2, "fp16.enabled": true)"}, "f32", true},
      {"ds_pipeline", {R"("gradient_accumulation_steps": 4, "pipeline.stages": 1)"}, "f32", true},
  };
  std::set<std::string> files;
  for (const Row& row : rows) {
    INFO(row.file);
    files.insert(row.file);
    train::TrainOptions o = one_rank();
    o.config = std::string(golden_folder()) + "/../../../../tests/golden/configs/" + row.file + ".config";
    o.set = row.set, o.precision = row.precision;
    o.batch = 4;
    o.epochs = 2;
    const optim::AdamWOptions options{.lr = 0.02, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-7, .weight_decay = 0.1};
    const auto tokens =
        data::share(data::TensorDataset(zeros({12, 8}, {.dtype = i64}), zeros({12, 8}, {.dtype = i64})));
    const data::Json own = data::Json::Object{{"gradient_clipping", 0.5}};
    const auto check = [&](const engine::Config& config) {
      const data::Json found = engine::to_json(config);
      for (const std::string& part : row.expected) {
        const data::Json expected = data::parse_json("{" + part + "}", "expected");
        for (const auto& [key, value] : expected.as_object()) {
          const data::Json* at = train::find_at(found, key);
          REQUIRE_MESSAGE(at, key);
          CHECK_MESSAGE(train::same_value(*at, value), key, " is ", at->dump(), ", not ", value.dump());
        }
      }
    };
    for (const bool by_trainer : {true, false}) {
      if (row.differs && !by_trainer) continue;
      const auto body = [&](train::TrainJob& job) {
        nn::GPT model({.vocab = 32, .context = 8, .layers = 1, .width = 16, .heads = 2});
        if (by_trainer) {
          const auto adamw_of = [&](nn::Module& m) { return std::make_unique<optim::AdamW>(m.parameters(), options); };
          train::Trainer trainer(job, model, {.data = tokens, .optimizer = adamw_of, .warmup_steps = 3, .config = own});
          return check(trainer.engine().config());
        }
        optim::AdamW adam(model.parameters(), options);
        optim::GradScaler scaler;
        check(train::prepare(job, model, adam, tokens, nullptr, {.warmup_steps = 3, .config = own}).engine.config());
      };
      CHECK_ERROR_IS(train::start(o, "", body), "(no error)");
    }
  }
  CHECK(files.size() == 30);
}

TEST_CASE("auto: all contradictions are in one Error, and values that nobody fills in are named") {
  const std::pair<const char*, std::vector<std::string>> rows[] = {
      {R"({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 8,
                "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "betas": [0.9, 0.999], "eps": 1e-8}}})",
       {"values that contradict the arguments:\n", "\n- ds train_micro_batch_size_per_gpu=8 vs args --batch=4\n",
        "\n- ds train_batch_size=32 vs args train_batch_size (calculated)=16\n",
        "\n- ds optimizer.params.lr=1e-05 vs args learning_rate=0.02\n",
        "\nThe easiest method is to set these DeepSpeed config values to 'auto'."}},
      {R"({"optimizer": {"type": "AdamW", "params": {"lr": 2e-2, "betas": [0.90, 0.999], "eps": 0.00000001}}})",
       {"(no error)"}},
      {R"({"optimizer": {"type": "SGD", "params": {"lr": "auto", "momentum": "auto"}}})",
       {"optimizer.params.momentum: \"auto\", and the program's optimizer has no such option; write the value"}},
      {R"({"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto"}}})",
       {"scheduler.params.total_num_steps: \"auto\", and the number of steps is unknown"}},
      {R"({"fp16": {"loss_scale": "auto"}})", {"fp16.loss_scale: expected a number >= 0, got \"auto\""}},
  };
  for (const auto& [config, expected] : rows) {
    train::TrainOptions o = one_rank();
    o.config = config;
    o.batch = 4;
    o.parallel.accumulate = 4;
    o.given = {"batch", "accumulate"};
    const std::string said = message([&] {
      train::start(o, "", [](train::TrainJob& job) {
        nn::Linear net({.in = 6, .out = 3});
        optim::AdamW adam(net.parameters(), {.lr = 0.02});
        train::prepare(job, net, adam);
      });
    });
    for (const std::string& part : expected) CHECK_MESSAGE(contains(said, part), part, " in ", said);
  }
}
