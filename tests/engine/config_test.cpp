// The configuration file: what it may contain and what it means. Errors are tested in config_errors_test.cpp.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "engine/config_table.h"
#include "optim/optim.h"
#include "tensor/ops.h"
#include "tests/messages.h"
#include "tests/temp_dir.h"

using namespace lockstep;
using namespace lockstep::engine;
using data::Json;

namespace {

bool warns(const Config& config, const std::string& part) {
  return std::ranges::any_of(config.warnings, [&](const std::string& warning) { return contains(warning, part); });
}

/// The line of to_text() for `key`.
std::string line_of(const Config& config, const std::string& key) {
  const std::string text = "\n" + to_text(config);
  const size_t at = text.find("\n" + key + " ");
  return at == text.npos ? "(no line)" : text.substr(at + 1, text.find('\n', at + 1) - at - 1);
}

nn::NamedParameter parameter(const std::string& name, const Shape& shape) {
  return {name, Variable(ones(shape), true)};
}

}  // namespace

TEST_CASE("config: typical files") {
  struct Row {
    const char* name;
    const char* json;
    int ranks;
    int64_t batch;
    DType dtype;
  };
  const Row rows[] = {
      {"zero1",
       R"({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": true}, "zero_optimization": {"stage": 1, "reduce_bucket_size": 5e8}})",
       2, 32, bf16},
      {"zero3 nvme", R"({"train_batch_size": 8, "bf16": {"enabled": true}, "zero_optimization": {"stage": 3,
        "offload_optimizer": {"device": "nvme", "nvme_path": "/local_nvme", "pin_memory": true, "buffer_count": 4, "fast_init": false, "pipeline_read": true, "pipeline_write": true},
        "offload_param": {"device": "nvme", "nvme_path": "/local_nvme", "pin_memory": true, "buffer_count": 5, "buffer_size": 1e8, "max_in_cpu": 1e9},
        "sub_group_size": 1e9, "stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9, "stage3_prefetch_bucket_size": 5e8, "stage3_param_persistence_threshold": 1e6,
        "stage3_gather_16bit_weights_on_model_save": true}, "aio": {"block_size": 262144, "queue_depth": 32, "thread_count": 1, "single_submit": false, "overlap_events": true}})",
       8, 8, bf16},
      {"stage 0",
       R"({"train_batch_size": 6, "gradient_accumulation_steps": 2, "optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}}, "gradient_clipping": 0})",
       3, 6, f32},
      {"auto where we choose",
       R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
        "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto"}})",
       5, 15, f32},
      {"little", R"({"train_micro_batch_size_per_gpu": 1})", 7, 7, f32},
      {"# comments",
       "# of a shell\n{\"train_batch_size\": 4, # four\n/* many\n lines */ \"fp16\": {\"enabled\": false,},}\n", 4, 4,
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
}

TEST_CASE("config: batch sizes follow from one or two of them, at any number of ranks") {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (const int64_t micro : {1, 2, 7}) {
      for (const int64_t accumulation : {1, 3, 8}) {
        const int64_t train = micro * accumulation * ranks;
        for (int missing = 0; missing < 4; ++missing) {
          Config c;
          if (missing != 1) c.train_batch_size = train;
          if (missing != 2) c.train_micro_batch_size_per_gpu = micro;
          if (missing != 3) c.gradient_accumulation_steps = accumulation;
          const Config r = resolve(c, ranks);
          CHECK(*r.train_batch_size == train);
          CHECK(*r.train_micro_batch_size_per_gpu == micro);
          CHECK(*r.gradient_accumulation_steps == accumulation);
        }
        CHECK(*resolve({.train_batch_size = train}, ranks).train_micro_batch_size_per_gpu == micro * accumulation);
        CHECK(*resolve({.train_micro_batch_size_per_gpu = micro}, ranks).train_batch_size == micro * ranks);
        CHECK_ERROR(resolve({.gradient_accumulation_steps = accumulation}, ranks),
                    "expected train_batch_size or train_micro_batch_size_per_gpu, got neither");
      }
    }
  }
}

TEST_CASE("config: the batch sizes that an Error proposes are valid") {
  for (const int64_t train : {1, 7, 10, 16, 64, 1'000'000'000}) {
    for (const int64_t micro : {1, 2, 3, 1'000'000'000}) {
      for (const int64_t accumulation : {1, 5, 8}) {
        for (const int ranks : {1, 2, 3, 8, 1 << 20}) {
          const Config asked{.train_batch_size = train,
                             .train_micro_batch_size_per_gpu = micro,
                             .gradient_accumulation_steps = accumulation};
          const std::string text = message([&] { resolve(asked, ranks); });
          if (text == "(no error)") continue;
          int proposals = 0;
          for (size_t at = text.find("\n    "); at != text.npos; at = text.find("\n    ", at + 1), ++proposals) {
            const std::string fix = text.substr(at + 5, text.find('\n', at + 1) - at - 5);
            Json merged = Json::Object{{"train_batch_size", train},
                                       {"train_micro_batch_size_per_gpu", micro},
                                       {"gradient_accumulation_steps", accumulation}};
            std::string object = fix;
            for (size_t word; (word = object.find(" and ")) != object.npos;) object.replace(word, 5, ", ");
            const Json changed = data::parse_json("{" + object + "}", "fix");
            for (const auto& [key, value] : changed.as_object()) merged[key] = value;
            CHECK_MESSAGE(
                merged.at("train_batch_size").as_int() == merged.at("train_micro_batch_size_per_gpu").as_int() *
                                                              merged.at("gradient_accumulation_steps").as_int() * ranks,
                text);
          }
          CHECK_MESSAGE(proposals >= 1, text);
        }
      }
    }
  }
}

TEST_CASE("config: a file, JSON text and base64 are the same") {
  const std::string json =
      R"({"train_batch_size": 12,   "aio": {}, "zero_optimization": {"offload_param": {"nvme_path": "x?>?>~~"}}})";
  const testing::TempDir folder;
  const std::string path = folder.write("config.json", json);
  const std::string plain =
      "eyJ0cmFpbl9iYXRjaF9zaXplIjogMTIsICAgImFpbyI6IHt9LCAiemVyb19vcHRpbWl6YXRpb24iOiB7Im9mZmxvYWRfcGFyYW0iOiB7Im52bWVf"
      "cGF0aCI6ICJ4Pz4/Pn5+In19fQ==";
  std::string url = plain;
  for (char& c : url) c = c == '+' ? '-' : c == '/' ? '_' : c;
  for (const std::string& source :
       {path, json, plain, url, url.substr(0, url.size() - 2), "  \n" + json, json + std::string(5000, ' ')}) {
    CAPTURE(source);
    const Config c = read_config(source);
    CHECK(c.train_batch_size == 12);
    CHECK(c.zero_optimization.offload_param.nvme_path == "x?>?>~~");
  }
  CHECK(read_config(path).origin == path);
  std::filesystem::remove(path);
  CHECK_ERROR(read_config(path), "expected a configuration file, JSON text or JSON text in base64, got \"" + path);
  CHECK_ERROR(read_config(""), "which is none of them");
  CHECK_ERROR(read_config(std::string(100'000, 'A')), "AAA...\", which is none of them");
  CHECK_ERROR(read_config(folder.str()), "got a folder");
}

TEST_CASE("config: values and their sources") {
  Config c = resolve(
      config_from_json(
          R"({"train_batch_size": 8, "zero_optimization": {"stage": 3, "reduce_bucket_size": 5e8}, "bf16": {"enabled": true},
    "optimizer": {"type": "adamw", "params": {"lr": 0.1, "fused": true}}})"),
      2);
  c.seed = 7;
  struct Row {
    const char *key, *value, *mark;
  };
  const Row rows[] = {
      {"train_batch_size", "8", "(from file)"},
      {"train_micro_batch_size_per_gpu", "4", "(inferred)"},
      {"gradient_accumulation_steps", "1", "(inferred)"},
      {"gradient_clipping", "1.0", "(default)"},
      {"seed", "7", "(set by the program)"},
      {"zero_optimization.stage", "3", "(from file)"},
      {"zero_optimization.reduce_bucket_size", "500000000", "(from file)"},
      {"zero_optimization.stage3_max_reuse_distance", "0", "(default here; DeepSpeed: 1e9)"},
      {"optimizer.type", "\"adamw\"", "(from file)"},
      {"optimizer.params.lr", "0.1", "(from file)"},
      {"optimizer.params.weight_decay", "0.0", "(default)"},
      {"optimizer.params.fused", "true", "(no effect: there is one implementation)"},
      {"scheduler.type", "none", "(default)"},
  };
  for (const Row& row : rows) {
    CAPTURE(std::string(row.key));
    const std::string line = line_of(c, row.key);
    CHECK_MESSAGE(contains(line, std::string(" ") + row.value + " "), line);
    CHECK_MESSAGE(contains(line, row.mark), line);
  }
  CHECK(line_of(c, "optimizer.params.torch_adam") == "(no line)");  // not printed: it has no effect and was not set
}

TEST_CASE("config: the table of keys") {
  const Config defaults;
  std::set<std::string> paths;
  for (const Key& key : config_keys()) {
    CAPTURE(key.path);
    CHECK(paths.insert(key.path).second);
    CHECK((key.take || !key.doc.empty()));
    CHECK(contains(config_reference(), "`" + key.path + "`"));
    if (key.take) continue;
    CHECK(value_of(key, &defaults) == key.fallback);
    if (key.path.ends_with(".params")) continue;
    // Each key accepts its own default.
    Json root = Json::Object(), *at = &root;
    for (size_t begin = 0; begin <= key.path.size();) {
      const size_t end = std::min(key.path.find('.', begin), key.path.size());
      at = &(*at)[key.path.substr(begin, end - begin)];
      begin = end + 1;
    }
    *at = key.fallback;
    if (key.path == "optimizer.type" || key.path == "scheduler.type")
      *at = key.path == "optimizer.type" ? "SGD" : "WarmupLR";
    CHECK_ERROR_IS(config_from_json(root.dump()), "(no error)");
  }
  // The table covers every field of Config. A field without a row would be forgotten, so the rows are counted.
  CHECK(paths.size() > 75);
}

TEST_CASE("config: optimizers by name, with the options of the file") {
  const NamedParameters parameters = {parameter("blocks.0.mlp.weight", {4, 4}),
                                      parameter("blocks.0.mlp.bias", {4}),
                                      {"tokens.weight", parameter("", {8, 4}).variable, true}};
  struct Row {
    const char *type, *params, *name;
    std::map<std::string, double> options;
  };
  const Row rows[] = {
      {"AdamW",
       R"({"lr": 2, "betas": [0.5, 0.25], "eps": 1e-6})",
       "AdamW",
       {{"lr", 2}, {"beta1", 0.5}, {"beta2", 0.25}, {"eps", 1e-6}, {"weight_decay", 0}}},
      {"Adam", R"({"weight_decay": 0.5})", "AdamW", {{"lr", 1e-3}, {"weight_decay", 0.5}}},
      {"Adam", R"({"weight_decay": 0.5, "adam_w_mode": false})", "Adam", {{"weight_decay", 0.5}}},
      {"adam", R"({"weight_decay": 0.5, "adam_w_mode": true})", "AdamW", {{"weight_decay", 0.5}}},
      {"FusedAdam", "{}", "AdamW", {{"lr", 1e-3}}},
      {"CPUAdam", R"({"adam_w_mode": false})", "Adam", {{"lr", 1e-3}}},
      {"DeepSpeedCPUAdam", R"({"lr": 1})", "AdamW", {{"lr", 1}}},
      {"SGD", R"({"lr": 0.1, "momentum": 0.9, "nesterov": true})", "SGD", {{"lr", 0.1}, {"momentum", 0.9}}},
  };
  for (const Row& row : rows) {
    CAPTURE(std::string(row.type));
    const Config c{.optimizer = {.type = row.type, .params = data::parse_json(row.params, "params")}};
    const auto made = make_optimizers(c, parameters);
    REQUIRE(made.size() == 1);
    CHECK(std::string(made[0]->name()) == row.name);
    CHECK(made[0]->parameters().size() == 3);
    for (const auto& [option, value] : row.options) CHECK(made[0]->get(0, option) == value);
    made[0]->step();
  }
  CHECK(make_optimizers({}, parameters).empty());
  CHECK_NOTHROW(config_from_json(R"({"optimizer": {"type": "ADAMW"}})"));
  CHECK(warns(config_from_json(R"({"optimizer": {"type": "Adam", "params": {"weight_decay": 0.1}}})"),
              "Adam decays weights as AdamW does, as in DeepSpeed"));
  CHECK(config_from_json(R"({"optimizer": {"type": "Adam", "params": {"weight_decay": 0.1, "adam_w_mode": false}}})")
            .warnings.empty());
}

TEST_CASE("config: schedules by name, with the options of the file") {
  struct Row {
    const char *type, *params;
    int64_t steps;
    double lr;
  };
  const Row rows[] = {
      {"WarmupLR", R"({"warmup_min_lr": 0, "warmup_max_lr": 0.5, "warmup_num_steps": 4, "warmup_type": "linear"})", 3,
       0.25},
      {"warmuplr", R"({"warmup_max_lr": 0.5, "warmup_num_steps": 1000})", 10, 0.5 * std::log(10) / std::log(1000)},
      {"WarmupDecayLR",
       R"({"total_num_steps": 10, "warmup_max_lr": 0.5, "warmup_num_steps": 2, "warmup_type": "LINEAR"})", 7, 0.25},
      {"WarmupCosineLR", R"({"total_num_steps": 10, "warmup_num_steps": 0, "warmup_type": "linear"})", 3,
       1e-4 + 0.9999 * (1 + std::cos(M_PI / 8)) / 2},
  };
  for (const Row& row : rows) {
    CAPTURE(std::string(row.type));
    const Config c =
        config_from_json(str(R"({"scheduler": {"type": ")", row.type, R"(", "params": )", row.params, "}}"));
    optim::AdamW optimizer({Variable(ones({1}), true)}, {.lr = 1});
    const auto schedule = make_schedule(c, optimizer);
    for (int64_t t = 0; t < row.steps; ++t) schedule->step();
    CHECK(schedule->lr() == doctest::Approx(row.lr).epsilon(1e-6).scale(0));
  }
  optim::AdamW two({{{Variable(ones({1}), true)}, {}}, {{Variable(ones({1}), true)}, {}}});
  const auto schedule = make_schedule(
      config_from_json(
          R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": [0.5, 0.25], "warmup_num_steps": 0}}})"),
      two);
  for (int t = 0; t < 3; ++t) schedule->step();
  CHECK((schedule->lr(0) == 0.5 && schedule->lr(1) == 0.25));
  CHECK(!make_schedule({}, two));
}

TEST_CASE("config: options of ZeRO and of loss scaling") {
  Config c{.communication_data_type = "fp32",
           .zero_optimization = {.stage = 3,
                                 .overlap_comm = false,
                                 .reduce_scatter = false,
                                 .reduce_bucket_size = 5,
                                 .ignore_unused_parameters = false,
                                 .stage3_prefetch_bucket_size = 6,
                                 .stage3_param_persistence_threshold = 7,
                                 .stage3_model_persistence_threshold = 8,
                                 .stage3_max_live_parameters = 9,
                                 .stage3_max_reuse_distance = 10,
                                 .stage3_module_granularity_threshold = 11}};
  // The fields that hold numbers with the same defaults, in the order of ZeroOptions.
  const auto numbers = [](const zero::ZeroOptions& o) {
    return std::tuple(o.overlap_comm, o.reduce_bucket_size, o.prefetch_bucket_size, o.param_persistence_threshold,
                      o.model_persistence_threshold, o.max_live_parameters, o.max_reuse_distance, o.module_size);
  };
  const auto aio = [](const zero::AioOptions& o) { return std::tuple(o.block_size, o.queue_depth, o.thread_count); };
  const zero::ZeroOptions o = zero_options(c);
  CHECK((o.stage == 3 && !o.reduce_scatter && !o.ignore_unused_parameters && o.communication_data_type == f32));
  CHECK((numbers(o) == std::tuple(false, 5, 6, 7, 8, 9, 10, 11)));
  CHECK(o.nonfinite == zero::NonFinite::error);
  // Without a file, the defaults are those of zero/.
  const zero::ZeroOptions ours = zero_options({.zero_optimization = {.stage = 1}}), plain;
  CHECK((numbers(ours) == numbers(plain)));
  CHECK((ours.sub_group_size == plain.sub_group_size &&
         ours.offload_optimizer.pipeline_read == plain.offload_optimizer.pipeline_read &&
         ours.offload_optimizer.buffer_count == plain.offload_optimizer.buffer_count));
  CHECK((aio(ours.aio) == aio(plain.aio)));
  c.zero_optimization.offload_optimizer = {.device = zero::Offload::nvme,
                                           .nvme_path = "/a",
                                           .pin_memory = false,
                                           .buffer_count = 6,
                                           .pipeline_read = false,
                                           .pipeline_write = true,
                                           .fast_init = true,
                                           .ratio = 0.5};
  c.zero_optimization.offload_param = {.device = zero::Offload::cpu,
                                       .nvme_path = "/b",
                                       .pin_memory = true,
                                       .buffer_count = 7,
                                       .buffer_size = 8,
                                       .max_in_cpu = 9};
  c.aio = {.block_size = 8192, .queue_depth = 2, .thread_count = 3, .single_submit = true, .overlap_events = false};
  c.zero_optimization.sub_group_size = 12;
  const zero::ZeroOptions off = zero_options(c);
  CHECK((off.offload_optimizer.device == zero::Offload::nvme && off.offload_optimizer.nvme_path == "/a" &&
         !off.offload_optimizer.pin_memory && off.offload_optimizer.buffer_count == 6));
  CHECK((!off.offload_optimizer.pipeline_read && off.offload_optimizer.pipeline_write &&
         off.offload_optimizer.fast_init && off.offload_optimizer.ratio == 0.5 && off.sub_group_size == 12));
  CHECK((off.offload_param.device == zero::Offload::cpu && off.offload_param.nvme_path == "/b" &&
         off.offload_param.buffer_count == 7 && off.offload_param.buffer_size == 8 &&
         off.offload_param.max_in_cpu == 9));
  CHECK((aio(off.aio) == std::tuple(8192, 2, 3) && off.aio.single_submit && !off.aio.overlap_events));
  c.zero_optimization.stage = 2;
  CHECK(zero_options(c).offload_param.device == zero::Offload::none);
  CHECK(zero_options({.bf16 = {.enabled = true}, .data_types = {.grad_accum_dtype = "fp32"}}).communication_data_type ==
        f32);
  CHECK(warns(config_from_json(
                  R"({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "nvme", "nvme_path": "/x"}}})"),
              "nvme works here in every stage; DeepSpeed wants stage 3, and"));
  CHECK(warns(config_from_json(R"({"zero_optimization": {"offload_optimizer": {"device": "cpu", "nvme_path": "/x"}}})"),
              "nvme_path: ignored, as the device is cpu"));
  CHECK(zero_options({.bf16 = {.enabled = true}}).nonfinite == zero::NonFinite::skip);
  CHECK(zero_options({.bf16 = {.enabled = true, .check_grad_overflow = false}}).nonfinite ==
        zero::NonFinite::propagate);

  CHECK(!loss_scaler_options({}));
  optim::DynamicLossScaler fixed(*loss_scaler_options({.fp16 = {.enabled = true, .loss_scale = 128}}));
  for (int i = 0; i < 5000; ++i) fixed.update(i % 3 == 0);
  CHECK(fixed.scale() == 128);
  optim::DynamicLossScaler dynamic(
      *loss_scaler_options({.fp16 = {.enabled = true, .initial_scale_power = 4, .hysteresis = 1}}));
  CHECK(dynamic.scale() == 16);
  dynamic.update(true);
  CHECK(dynamic.scale() == 8);
}
