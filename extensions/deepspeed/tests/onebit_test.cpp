// The 1-bit optimizers (by their DeepSpeed names) under the engine: steps before compression are bit-identical to the
// plain optimizer, compressed steps keep ranks equal and send little, a resumed run continues bit for bit.
#include "extensions/deepspeed/onebit/onebit.h"
#include "engine/check_plan.h"
#include "extensions/deepspeed/reports.h"
#include "tests/engine/training.h"

using namespace lockstep;
using namespace testing;
using engine::initialize;

namespace {

Config with(const char* type, const char* params, int64_t accumulation = 1, DType dtype = f32) {
  return with_optimizer(config_of(0, accumulation, dtype), type, params);
}

struct Optimizer {
  const char *name, *params;
};
const Optimizer compressing[] = {
    {"OneBitAdam", R"({"lr": 0.01, "weight_decay": 0.1, "freeze_step": 3})"},
    {"OneBitAdam", R"({"lr": 0.01, "freeze_step": 3, "bias_correction": false})"},
    {"OneBitLamb", R"({"lr": 0.01, "freeze_step": 3})"},
    {"ZeroOneAdam",
     R"({"lr": 0.01, "var_freeze_step": 3, "var_update_scaler": 2, "local_step_scaler": 3, "local_step_clipper": 2})"},
    {"OneBitSGD", R"({"lr": 0.05, "freeze_step": 2})"},
};

/// Everything that a checkpoint would contain.
Tensors everything_of(NetTrainer& t) {
  onebit::optimizer_of(t.e)->synchronize();
  Tensors all = copy_parameters(*t.net);
  for (auto& [name, tensor] : t.e.optimizer().state().tensors) all[name] = tensor.clone();
  return all;
}

}  // namespace

TEST_CASE(
    "engine, 1-bit: exact steps are bit-identical to the plain optimizer at stage 0, for any split into "
    "micro-batches") {
  struct Row {
    const char *plain, *plain_params, *name, *params;
  };
  const Row rows[] = {
      {"AdamW", R"({"lr": 0.01, "weight_decay": 0.1})", "OneBitAdam", R"({"lr": 0.01, "weight_decay": 0.1})"},
      {"Lamb", R"({"lr": 0.01, "weight_decay": 0.01, "eps": 1e-8})", "onebitlamb",
       R"({"lr": 0.01, "weight_decay": 0.01})"},
      {"AdamW", R"({"lr": 0.01, "betas": [0.8, 0.99]})", "ZeroOneAdam", R"({"lr": 0.01, "betas": [0.8, 0.99]})"},
      {"SGD", R"({"lr": 0.1, "momentum": 0.9})", "OneBitSGD", R"({"lr": 0.1, "freeze_step": 100})"},
  };
  for (const Row& row : rows) {
    for (const DType dtype : {f32, bf16, f16}) {
      const auto run = [&](const char* plan, const char* name, const char* params) {
        Subject subject = net_subject();
        subject.optimizer = {};
        Tensors found = train(subject, {.plan = plan, .dtype = dtype, .steps = 3, .clip = 0, .change = [=](Config& c) {
                                          c = with_optimizer(c, name, params);
                                          // avoids subnormal gradients, whose mean over ranks would be rounded
                                          c.fp16.initial_scale_power = 14;
                                        }});
        found.erase("report");
        return found;
      };
      const Tensors plain = run("dp1", row.plain, row.plain_params);
      for (const char* plan : {"dp1", "dp2", "dp4"})
        CHECK_MESSAGE(differing(plain, run(plan, row.name, row.params)) == "", row.name, ", ", dtype, ", ", plan);
    }
  }
}

TEST_CASE("engine, 1-bit: a run goes on from its checkpoint to the bit, and on other numbers of ranks") {
  for (const Optimizer& optimizer : compressing) {
    for (const DType dtype : {f32, bf16, f16}) {
      CAPTURE(optimizer.name);
      CAPTURE(dtype);
      const TempDir folder;
      Config config = with(optimizer.name, optimizer.params, 2, dtype);
      config.gradient_clipping = 0.5;
      config.scheduler = {.type = "WarmupLR",
                          .params = data::parse_json(R"({"warmup_max_lr": 0.02, "warmup_num_steps": 8})", "params")};
      const Tensors full = alike(2, [&](int rank) {
        NetTrainer t(config, rank);
        train_steps(t.e, 6);  // compressed since step 4; with 0/1 Adam, ranks may differ here
        t.e.save_checkpoint(folder / "run");
        train_steps(t.e, 5);
        CHECK(onebit::optimizer_of(t.e)->volume().compressed_steps >= 5);
        CHECK(std::isfinite(t.e.get_global_grad_norm()));
        return everything_of(t);
      });
      const Tensors resumed = alike(2, [&](int) {
        NetTrainer t(config, 5);
        CHECK(t.e.load_checkpoint(folder / "run"));
        CHECK(onebit::optimizer_of(t.e)->steps() == 6);
        CHECK(!t.has_said("compression errors start at zero"));
        train_steps(t.e, 5);
        return everything_of(t);
      });
      CHECK(differing(full, resumed) == "");
      if (dtype != bf16) continue;
      for (const int ranks : {1, 4}) {
        config.gradient_accumulation_steps = 4 / ranks;
        const Tensors other = alike(ranks, [&](int rank) {
          NetTrainer t(config);
          t.e.load_checkpoint(folder / "run");
          if (rank == 0)
            CHECK(t.has_said(str("was saved by 2 ranks: compression errors start at zero, because ", ranks, " ranks")));
          train_steps(t.e, 3);
          return everything_of(t);
        });
        for (const auto& [name, tensor] : other) CHECK(all_finite(tensor));
      }
    }
  }
}

TEST_CASE("engine, 1-bit: between f32 and 16 bits, from AdamW, and a model alone") {
  const char* const params = R"({"lr": 0.01, "freeze_step": 2})";
  const TempDir folder;
  on_ranks(2, [&](int) {
    NetTrainer low(with("OneBitAdam", params, 1, bf16));
    train_steps(low.e, 4);
    low.e.save_checkpoint(folder / "low");
    NetTrainer wide(with("OneBitAdam", params));
    wide.e.load_checkpoint(folder / "low");
    wide.e.save_checkpoint(folder / "wide");
    NetTrainer back(with("OneBitAdam", params, 1, bf16));
    back.e.load_checkpoint(folder / "wide");
    train_steps(low.e, 3);
    train_steps(back.e, 3);
    CHECK(differing(everything_of(low), everything_of(back)) == "");

    train_steps(back.e, 1);
    // the master weights are reset to the loaded parameters
    back.e.load_checkpoint(folder / "wide", {.load_module_only = true});
    CHECK(onebit::optimizer_of(back.e)->steps() == 8);
    back.e.save_checkpoint(folder / "again");
    wide.e.load_checkpoint(folder / "again");
    NetTrainer first(with("OneBitAdam", params, 1, bf16));
    first.e.load_checkpoint(folder / "low", {.load_module_only = true});
    const Tensors loaded = copy_parameters(*first.net), masters = copy_parameters(*wide.net);
    for (const auto& [name, tensor] : loaded) CHECK(all(eq(tensor.to(f32), masters.at(name))).item<bool>());

    NetTrainer adam(with("AdamW", R"({"lr": 0.01, "weight_decay": 0})"));
    train_steps(adam.e, 2);
    adam.e.save_checkpoint(folder / "adam");
    NetTrainer on(with("OneBitAdam", params));
    on.e.load_checkpoint(folder / "adam");
    CHECK(onebit::optimizer_of(on.e)->steps() == 2);
    train_steps(on.e, 1);
    CHECK(onebit::optimizer_of(on.e)->volume().compressed_steps == 1);
  });
  const std::string other = message([&] {
    on_ranks(2, [&](int) {
      NetTrainer adam(with("AdamW", "{}"));
      adam.e.load_checkpoint(folder / "low");
    });
  });
  CHECK(contains(other, "freeze_step"));
  CHECK(contains(other, "load it into the optimizer class that saved it"));
}

TEST_CASE("engine, 1-bit: token counts, a plain backward, no_sync() and a boundary of one's own give the same step") {
  enum class Loop { engine, tokens, plain, no_sync, own_boundary };
  const auto run = [](Loop loop, DType dtype) {
    return alike(2, [&](int rank) {
      Config config = with("OneBitAdam", R"({"lr": 0.01, "freeze_step": 1})", 2, dtype);
      if (loop == Loop::own_boundary) {
        config.managed_gradient_accumulation = false;
        config.train_micro_batch_size_per_gpu = 3;
      }
      const auto net = make_net(rank);
      net->p = 0;
      auto e = initialize(*net, config);
      for (int64_t step = 0; step < 3; ++step) {
        for (int64_t i = 0; i < 2; ++i) {
          manual_seed(7);
          set_random_step(uint64_t(step), uint64_t(rank * 2 + i));
          const Tensor x = randn({4, 6}), y = argmax(x.narrow(1, 0, 3), 1);
          const Variable loss = cross_entropy(e(x.to(dtype)), y);
          std::optional<engine::EngineBase::NoSync> local;
          if (loop == Loop::no_sync && i == 0) local.emplace(e);
          if (loop == Loop::tokens) e.backward(mul_scalar(loss.to(f32), 4), 4);
          else if (loop == Loop::plain) e.scale(loss).backward();
          else e.backward(loss);
          local.reset();
          if (loop != Loop::own_boundary || i == 1) e.step();
        }
      }
      CHECK(e.global_steps() == 3);
      CHECK(onebit::optimizer_of(e)->volume().compressed_steps == 2);
      return copy_parameters(*net);
    });
  };
  for (const DType dtype : {f32, f16}) {
    const Tensors plain = run(Loop::engine, dtype);
    for (const Loop loop : {Loop::tokens, Loop::plain, Loop::no_sync}) {
      CAPTURE(int(loop));
      CAPTURE(dtype);
      CHECK(differing(plain, run(loop, dtype)) == "");
    }
  }
  run(Loop::own_boundary, f32);  // has other samples, so only the ranks are compared
}

TEST_CASE("engine, 1-bit: the bytes sent, and the engine's report of them") {
  for (const Optimizer& optimizer : compressing) {
    CAPTURE(optimizer.name);
    Config config = with(optimizer.name, optimizer.params);
    config.section<engine::CommsLoggerConfig>().enabled = true;
    config.steps_per_print = 6;
    config.memory_breakdown = true;
    config.wall_clock_breakdown = true;
    on_ranks(2, [&](int rank) {
      NetTrainer t(config);
      train_steps(t.e, 6);
      const onebit::Volume& v = onebit::optimizer_of(t.e)->volume();
      CHECK(v.exact_steps + v.compressed_steps == 6);
      CHECK(v.compressed_steps >= 3);
      CHECK(v.exact_bytes / std::max<int64_t>(v.exact_steps, 1) > 16 * (v.compressed_bytes / v.compressed_steps));
      const std::string table = comms_summary(t.e, false);
      CHECK(contains(table, "all_to_all"));
      CHECK(contains(table, "all_gather"));
      CHECK(!contains(table, "reduce_scatter"));
      if (rank != 0) return;
      CHECK(t.has_said("step=6, skipped=0"));
      CHECK(t.has_said("bwd_allreduce"));
      CHECK(t.has_said("optimizer"));
    });
  }
}

TEST_CASE("engine, 1-bit: an overflow at one rank is skipped by all, and without a loss scale an error that names it") {
  struct Row {
    DType dtype;
    int64_t bad_step;
  };
  for (const Row& row : {Row{f16, 0}, Row{f16, 4}, Row{f32, 0}, Row{f32, 4}}) {
    CAPTURE(row.dtype);
    CAPTURE(row.bad_step);
    const auto run = [&] {
      return on_ranks<bool>(2, [&](int rank) {
        NetTrainer t(with("OneBitAdam", R"({"lr": 0.01, "freeze_step": 2})", 1, row.dtype));
        train_steps(t.e, row.bad_step);
        const Tensors before = copy_parameters(*t.net);
        const Tensor x = zeros({2, 6}).to(row.dtype), y = zeros({2}, {.dtype = i64});
        t.e.backward(mul_scalar(cross_entropy(t.e(x), y).to(f32), rank == 1 ? INFINITY : 1));
        t.e.step();
        CHECK(differing(before, copy_parameters(*t.net)) == "");
        CHECK(t.e.skipped_steps() == 1);
        CHECK(t.e.loss_scale() == 128);
        CHECK(std::isnan(t.e.get_global_grad_norm()));
        train_steps(t.e, 2);
        CHECK(differing(before, copy_parameters(*t.net)) != "");
        return t.has_said("is skipped: the gradient of a.weight is not finite, first at rank 1");
      });
    };
    if (row.dtype == f32) {
      const std::string text = message(run);
      CHECK(contains(text, str("a gradient is NaN or infinite, first in the gradient of a.weight at rank 1, in step ",
                               row.bad_step + 1)));
      CHECK(contains(text, "Nothing was changed"));
    } else {
      const std::vector<bool> said = run();
      CHECK((said[0] || said[1]));
    }
  }
}

TEST_CASE("engine, 1-bit: invalid settings are rejected") {
  // with an optimizer of the program, over the parameters that `which` returns
  const auto program = [](const Config& config, const std::string& said, const auto& which) {
    CHECK_ERROR(on_ranks(2,
                         [&](int) {
                           const auto net = make_net();
                           onebit::OneBitAdam optimizer(which(*net), {.lr = 0.01});
                           initialize(*net, optimizer, config);
                         }),
                said);
  };
  const auto all = [](Net& net) { return net.parameters(); };
  program(config_of(0, 1), "(no error)", all);
  for (const int stage : {1, 2, 3})
    program(config_of(stage, 1),
            str("OneBitAdam exchanges gradients itself and needs stage 0, but zero_optimization.stage is ", stage),
            all);
  Config offload = config_of(0, 1);
  offload.zero_optimization.offload_optimizer.device = zero::Offload::cpu;
  program(offload, "OneBitAdam exchanges gradients itself and keeps its state with the parameters", all);
  program(config_of(0, 1),
          "expected every parameter that requires grad in OneBitAdam, these are missing: norm.weight, norm.bias, "
          "b.weight",
          [](Net& net) { return net.a.parameters(); });

  const auto by_name = [](const char* params, const std::string& said, const std::function<void(NetTrainer&)>& body) {
    CHECK_ERROR(on_ranks(2,
                         [&](int) {
                           NetTrainer t(with("OneBitAdam", params));
                           body(t);
                         }),
                said);
  };
  by_name("{}",
          "[zero] expected an engine with ZeRO, got one whose optimizer OneBitAdam keeps the whole model on every rank",
          [](NetTrainer& t) { t.e.zero(); });
  by_name("{}", "expected a gradient for every parameter on every rank, got none for norm.weight", [](NetTrainer& t) {
    t.e.backward(sum(t.net->a(zeros({2, 6}))));
    t.e.step();
  });
  by_name(R"({"freeze_steps": 3})", "did you mean freeze_step?", [](NetTrainer&) {});
  CHECK_ERROR(on_ranks(2,
                       [](int) {
                         const auto net = make_net();
                         const auto single = dist::world().split(dist::world().rank(), 0, "alone");
                         onebit::OneBitAdam optimizer(net->parameters(), {.lr = 0.01}, single.get());
                         initialize(*net, optimizer, config_of(0, 1));
                       }),
              "expected OneBitAdam on the engine's group of 2 ranks, got one on another group, of 1");
}

TEST_CASE("engine, 1-bit: experts over ranks and averaged parameters are refused") {
  const auto reasons = engine::reasons_against(with("OneBitAdam", "{}"), {.dp = 2, .ep = 2}, {.ranks = 2});
  std::string all;
  for (const std::string& reason : reasons) all += reason + "; ";
  CHECK_MESSAGE(contains(all, "averages gradients over all ranks, but with ep2 ranks hold different experts"), all);
  Config averaged = with("OneBitAdam", "{}");
  averaged.ema.decay = 0.9;
  CHECK_ERROR(engine::resolve(averaged, 2), "leave ema out");
}
