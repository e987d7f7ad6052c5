// "auto" in a configuration file: values are filled in from what the program knows, and values in the file must agree
// with the program's arguments, as in Transformers.
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "engine/model_shape.h"
#include "train/json_paths.h"
#include "train/program_values.h"

namespace lockstep::train {

using data::Json;

std::vector<ConfigStep> auto_steps();

namespace {

/// A row of the table: a key, the program's argument for it, and value(), which returns the value for "auto". If there
/// is none, value() returns null, and `unknown` is the reason. must_agree: a value in the file must equal value().
struct AutoRow {
  std::string key, argument;
  std::function<Json()> value;
  std::string unknown = {};
  bool must_agree = false;
};

/// Width of the model: the second dimension of its embedding table, or 0 if it has none.
int64_t width_of(nn::Module* model) {
  if (!model) return 0;
  for (const auto& p : engine::shape_of(*model, 0, 1, 0).parameters)
    if (p.is_table && p.shape.size() == 2) return p.shape[1];
  return 0;
}

std::vector<AutoRow> auto_rows(const Json& json, const ProgramValues& v, const Json& own, int64_t ranks,
                               const std::string& half, const std::string& steps_option) {
  std::vector<AutoRow> rows;
  const bool optimizers = v.optimizer_is_argument;
  const auto option = [&v](const char* name) {
    return [&v, name]() -> Json {
      const optim::Optimizer* found = v.optimizer ? v.optimizer() : nullptr;
      return found && found->has(name) ? Json(found->get(0, name)) : Json();
    };
  };
  const auto betas = [beta1 = option("beta1"), beta2 = option("beta2")]() -> Json {
    const Json first = beta1(), second = beta2();
    return first.is_null() || second.is_null() ? Json() : Json(Json::Array{first, second});
  };
  const std::string no_optimizer = "and the program's optimizer has no such option";
  rows.push_back({"optimizer.params.lr", "learning_rate", option("lr"), no_optimizer, optimizers});
  rows.push_back({"optimizer.params.betas", "[adam_beta1, adam_beta2]", betas, no_optimizer, optimizers});
  rows.push_back({"optimizer.params.eps", "adam_epsilon", option("eps"), no_optimizer, optimizers});
  rows.push_back({"optimizer.params.weight_decay", "weight_decay", option("weight_decay"), no_optimizer, optimizers});
  rows.push_back({"optimizer.params.momentum", "momentum", option("momentum"), no_optimizer, optimizers});

  const auto steps = [&json, &v, ranks]() -> Json {
    int64_t of_step = ranks;
    if (is_said(json, "train_batch_size")) {
      of_step = find_at(json, "train_batch_size")->as_int("train_batch_size");
    } else {
      for (const char* key : {"train_micro_batch_size_per_gpu", "gradient_accumulation_steps"})
        if (is_said(json, key)) of_step *= find_at(json, key)->as_int(key);
    }
    const int64_t all = v.steps && of_step > 0 ? v.steps(of_step) : 0;
    return all > 0 ? Json(all) : Json();
  };
  const auto warmup = [&v, steps]() -> Json {
    const Json all = v.warmup_steps < 1 ? steps() : Json();
    const double asked = all.is_null() ? v.warmup_steps : v.warmup_steps * all.as_number();
    return std::max<int64_t>(1, int64_t(std::ceil(asked)));
  };
  rows.push_back({"scheduler.params.warmup_min_lr", "0", [] { return Json(0.); }});
  rows.push_back({"scheduler.params.warmup_max_lr", "learning_rate", option("lr"), no_optimizer, optimizers});
  rows.push_back({"scheduler.params.warmup_num_steps", "warmup_steps", warmup, "", v.all_are_arguments});
  rows.push_back({"scheduler.params.total_num_steps", "max_steps (calculated)", steps,
                  "and the number of steps is unknown: give data of at least one step, or " + steps_option,
                  v.all_are_arguments});

  const Json* clipping = own.find("gradient_clipping");
  const Json norm = v.max_grad_norm ? Json(*v.max_grad_norm) : clipping ? *clipping : Json(1.);
  rows.push_back({"gradient_clipping", "max_grad_norm", [norm] { return norm; }, "", v.all_are_arguments});
  for (const char* name : {"fp16", "bf16", "bfloat16"})
    rows.push_back({str(name, ".enabled"), *name == 'f' ? "fp16" : "bf16",
                    [on = half == (*name == 'f' ? "fp16" : "bf16")] { return Json(on); }});

  // If the width of the model is unknown, "auto" stays in the configuration, and the engine chooses the sizes.
  const auto elements = [&v](double squares, int64_t lines) {
    return [&v, squares, lines]() -> Json {
      const double h = double(width_of(v.model));
      return h == 0 ? Json("auto") : Json(int64_t(squares * h * h) + lines * int64_t(h));
    };
  };
  const std::string zero = "zero_optimization.";
  rows.push_back({zero + "reduce_bucket_size", "h^2", elements(1, 0)});
  rows.push_back({zero + "stage3_prefetch_bucket_size", "0.9 h^2", elements(0.9, 0)});
  rows.push_back({zero + "stage3_param_persistence_threshold", "10 h", elements(0, 10)});
  rows.push_back({zero + "stage3_gather_16bit_weights_on_model_save", "false", [] { return Json(false); }});
  for (const char* what : {"offload_optimizer.", "offload_param."}) {
    rows.push_back({zero + what + "device", "--offload", [] { return Json("none"); }});
    if (!is_said(json, zero + what + "device") || *find_at(json, zero + what + "device") == Json("none"))
      rows.push_back({zero + what + "nvme_path", "--offload", [] { return Json(""); }});
  }
  return rows;
}

void fill_auto(const ConfigDraft& draft) {
  Json& json = draft.json;
  for (const AutoRow& row : auto_rows(json, draft.values, draft.own, draft.ranks, draft.half, draft.steps_option)) {
    const Json* const there = find_at(json, row.key);
    if (!there) continue;
    if (is_auto(json, row.key)) {
      Json value = row.value();
      if (value.is_null())
        draft.problems.unfilled.push_back(str(row.key, ": \"auto\", ", row.unknown, "; write the value"));
      else put_at(json, row.key, std::move(value));
    } else if (row.must_agree) {
      const Json value = row.value();
      if (!value.is_null() && !same_value(*there, value)) draft.problems.differ(row.key, *there, row.argument, value);
    }
  }
}

}  // namespace

std::vector<ConfigStep> auto_steps() { return {fill_auto}; }

}  // namespace lockstep::train
