// Optimizers that few programs need, by their names in configurations: their options, and the plans that reject them.
#include <doctest/doctest.h>

#include "engine/check_plan.h"
#include "engine/params.h"
#include "extensions/optimizers/optimizers.h"
#include "tests/messages.h"

using namespace lockstep;
using namespace lockstep::engine;

TEST_CASE("config: rare rules by name, with the options of the file") {
  const NamedParameters parameters = {{"blocks.0.mlp.weight", Variable(ones({4, 4}), true)},
                                      {"blocks.0.mlp.bias", Variable(ones({4}), true)},
                                      {"tokens.weight", Variable(ones({8, 4}), true), true}};
  struct Row {
    const char *type, *params, *name;
    std::map<std::string, double> options;
  };
  const Row rows[] = {
      {"Lamb", R"({"max_coeff": 5, "min_coeff": 0.1})", "LAMB", {{"max_trust", 5}, {"min_trust", 0.1}, {"eps", 1e-8}}},
      {"Lion", "{}", "Lion", {{"lr", 1e-3}, {"beta2", 0.99}}},
      {"Adagrad", R"({"initial_accumulator_value": 1})", "Adagrad", {{"lr", 1e-2}, {"initial_accumulator", 1}}},
      {"RMSprop", R"({"alpha": 0.5})", "RMSprop", {{"alpha", 0.5}}},
      {"nadam", R"({"momentum_decay": 0.1})", "NAdam", {{"momentum_decay", 0.1}, {"lr", 2e-3}}},
      {"RAdam", R"({"betas": [0.5, 0.25]})", "RAdam", {{"beta2", 0.25}}},
      {"Adamax", "{}", "Adamax", {{"lr", 2e-3}}},
      {"Adadelta", R"({"rho": 0.5})", "Adadelta", {{"rho", 0.5}, {"lr", 1}}},
      {"ASGD", R"({"t0": 10})", "ASGD", {{"t0", 10}}},
      {"Rprop", R"({"etas": [0.25, 2]})", "Rprop", {{"eta_minus", 0.25}, {"eta_plus", 2}, {"step_max", 50}}},
      {"Adafactor", R"({"eps": [0, 0.5]})", "Adafactor", {{"eps2", 0.5}}},
      {"Sophia", R"({"batch": 16})", "Sophia", {{"batch", 16}, {"rho", 0.04}}},
      {"AdamWScheduleFree", R"({"warmup_steps": 4})", "AdamWScheduleFree", {{"warmup_steps", 4}, {"lr", 2.5e-3}}},
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

  const Config c{.optimizer = {.type = "Muon",
                               .params = data::parse_json(
                                   R"({"lr": 0.5, "adam_lr": 0.25, "adjust_lr_fn": "match_rms_adamw"})", "params")}};
  const auto two = make_optimizers(c, parameters);
  REQUIRE(two.size() == 2);
  CHECK((std::string(two[0]->name()) == "Muon" && two[0]->parameters().size() == 1 && two[0]->lr() == 0.5));
  CHECK(dynamic_cast<optim::Muon&>(*two[0]).group_options(0).adjust_lr_fn == "match_rms_adamw");
  CHECK((std::string(two[1]->name()) == "AdamW" && two[1]->parameters().size() == 2 && two[1]->lr() == 0.25));
  CHECK(make_optimizers(c, {parameters[1]}).size() == 1);
}

TEST_CASE("states of other shapes: impossible conversions are rejected with the reason") {
  const auto check = [](const std::string& plan, const std::string& text, const char* said) {
    CHECK_ERROR(check_plan(read_config(text), parallel::parse_plan(plan), {}), said);
  };
  for (const char* name : {"Muon", "Adafactor", "Lamb"}) {
    const std::string text = str(R"({"optimizer": {"type": ")", name, R"("}})");
    check("dp2+tp2", text, "needs whole matrices, which tp2 shards; leave tp out");
    check("pp2", text, "(no error)");
  }
  check("dp2", R"({"optimizer": {"type": "Adafactor"}, "zero_optimization": {"stage": 2,
      "offload_optimizer": {"device": "nvme", "nvme_path": "/tmp"}}})",
        "offload to cpu, or use AdamW");
  CHECK_ERROR(check_plan(Config(), {.dp = 2}, {}, "LBFGS"), "evaluates the loss many times a step");
}
