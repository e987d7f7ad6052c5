// Checkpoints of an engine: resuming under any stage and number of ranks, partial loading, and rejected files.
#include "data/safetensors.h"
#include "tests/engine/util.h"

using namespace lockstep;
using namespace testing;
using engine::initialize;

namespace {

struct Job {
  int ranks = 1;
  Config config;
};

/// An engine with every kind of state: AdamW with warm-up, loss scaling, a data loader, dropout.
struct SavingTrainer {
  std::vector<std::string> said;
  NetEngine own;
  engine::Engine<Net>& e = own.e;
  Net& net = *own.net;

  explicit SavingTrainer(const Config& config)
      : own({.optimizer = make_adamw,
             .training_data = data::share(samples(40)),
             .lr_scheduler = make_warmup,
             .config = config,
             .log = [this](const std::string& text) { said.push_back(text); }}) {}
  Tensors parameters() { return own.parameters(); }
};

Config saved_config(int stage, int64_t accumulation, DType dtype = f32) {
  Config c = config_of(stage, accumulation, dtype);
  c.gradient_clipping = 0.5;
  c.fp16.loss_scale_window = 3;
  return c;
}

Tensors uninterrupted(const Config& config, int64_t steps) {
  return on_ranks<Tensors>(1, [&](int) {
    SavingTrainer t(config);
    train_steps(t.e, steps);
    return t.parameters();
  })[0];
}

void save_after(const Job& job, const std::string& dir, int64_t steps, const engine::SaveArgs& args = {}) {
  on_ranks(job.ranks, [&](int) {
    SavingTrainer t(job.config);
    train_steps(t.e, steps);
    t.e.save_checkpoint(dir, args);
    t.e.wait_for_checkpoint();
  });
}

/// Runs body at each stage on two ranks, with a folder for the stage.
void at_stages(const std::vector<int>& stages,
               const std::function<void(int stage, const TempDir& folder, int rank)>& body) {
  for (const int stage : stages) {
    CAPTURE(stage);
    const TempDir folder;
    on_ranks(2, [&](int rank) { body(stage, folder, rank); });
  }
}

}  // namespace

TEST_CASE("engine: a run goes on from a checkpoint in any stage and world, bit for bit") {
  struct Row {
    DType dtype;
    Job from, to;
  };
  std::vector<Row> rows;
  for (const DType dtype : {f32, bf16, f16}) {
    for (const int stage : {0, 1, 2, 3}) {
      rows.push_back({dtype, {2, saved_config(stage, 2, dtype)}, {4, saved_config(3 - stage, 1, dtype)}});
      rows.push_back({dtype, {1, saved_config(stage, 4, dtype)}, {2, saved_config((stage + 1) % 4, 2, dtype)}});
      rows.push_back({dtype, {4, saved_config(stage, 1, dtype)}, {4, saved_config(stage, 1, dtype)}});
    }
  }
  std::map<DType, Tensors> entire;
  for (const DType dtype : {f32, bf16, f16}) entire[dtype] = uninterrupted(saved_config(1, 4, dtype), 12);
  for (const Row& row : rows) {
    const TempDir folder;
    save_after(row.from, folder / "run", 7);  // 40 samples, 8 per step: the middle of the second epoch
    const Tensors after = alike(row.to.ranks, [&](int) {
      manual_seed(77);
      SavingTrainer t(row.to.config);
      CHECK(t.e.load_checkpoint(folder / "run"));
      CHECK(t.e.global_steps() == 7);
      CHECK(t.e.global_samples() == 56);
      CHECK(t.e.lr_scheduler()->last_step() == 7);
      CHECK(t.e.training_dataloader()->epoch() == 1);
      train_steps(t.e, 5);
      return t.parameters();
    });
    CHECK_MESSAGE(differing(entire[row.dtype], after) == "", row.dtype, ", ", row.from.ranks, " ranks in stage ",
                  row.from.config.zero_optimization.stage, " to ", row.to.ranks, " in stage ",
                  row.to.config.zero_optimization.stage);
  }
}

TEST_CASE("engine: with offload, the same bits, and checkpoints of and for it") {
  const TempDir folder;
  const auto offloaded = [&](int stage, int64_t accumulation, zero::Offload device) {
    Config c = saved_config(stage, accumulation, bf16);
    c.zero_optimization.offload_optimizer = {.device = device, .nvme_path = folder.str()};
    if (stage == 3) c.zero_optimization.offload_param = {.device = device, .nvme_path = folder.str()};
    return c;
  };
  const Tensors entire = uninterrupted(saved_config(1, 4, bf16), 6);
  for (const int stage : {1, 2, 3}) {
    for (const zero::Offload device : {zero::Offload::cpu, zero::Offload::nvme}) {
      CAPTURE(stage);
      CAPTURE(std::string(name_of(device)));
      const std::string dir = folder / str(stage, name_of(device)), back = dir + "-back";
      save_after({2, offloaded(stage, 2, device)}, dir, 3);
      const auto after = on_ranks<Tensors>(2, [&](int) {
        {
          SavingTrainer t(saved_config(1, 2, bf16));
          t.e.load_checkpoint(dir);
          train_steps(t.e, 1);
          t.e.save_checkpoint(back);
        }
        SavingTrainer t(offloaded(stage, 2, device));
        t.e.load_checkpoint(back);
        train_steps(t.e, 2);
        return t.parameters();
      });
      CHECK(differing(entire, after[0]) == "");
    }
  }
}

TEST_CASE("engine: tags, latest, client state, async, and an engine that saves and loads itself") {
  const TempDir folder;
  for (const bool async : {false, true}) {
    on_ranks(2, [&](int) {
      const std::string dir = folder / (async ? "async" : "sync");
      Config config = saved_config(2, 1);
      config.checkpoint.writer.decoupled = async;
      SavingTrainer t(config);
      CHECK(!t.e.load_checkpoint(dir));
      train_steps(t.e, 2);
      data::Json state{data::Json::Object{}};
      state["epoch"] = 3;
      t.e.save_checkpoint(dir, {.client_state = state});
      train_steps(t.e, 1);  // trains while the state after step 2 is being written
      t.e.save_checkpoint(dir, {.tag = "other", .save_latest = false, .async = async});
      t.e.wait_for_checkpoint();
      const Tensors third = t.parameters();
      const auto latest = t.e.load_checkpoint(dir);
      CHECK(latest->client_state.at("epoch").as_int() == 3);
      CHECK(latest->path.ends_with("global_step2"));
      CHECK(t.e.global_steps() == 2);
      train_steps(t.e, 1);
      CHECK(differing(third, t.parameters()) == "");
      CHECK(t.e.load_checkpoint(dir, {.tag = "other"})->path.ends_with("other"));
      CHECK(t.e.global_steps() == 3);
    });
  }
}

TEST_CASE("engine: parts of a checkpoint") {
  const TempDir folder;
  save_after({2, saved_config(1, 1)}, folder / "run", 3);
  for (const int stage : {0, 1, 2, 3}) {
    on_ranks(2, [&](int) {
      const auto with = [&](const engine::LoadArgs& args) {
        auto t = std::make_unique<SavingTrainer>(saved_config(stage, 1));
        train_steps(t->e, 1);
        t->e.load_checkpoint(folder / "run", args);
        return t;
      };
      const auto all = with({}), module = with({.load_module_only = true}),
                 fresh = with({.load_optimizer_states = false}), rates = with({.load_lr_scheduler_states = false});
      for (SavingTrainer* t : {module.get(), fresh.get(), rates.get()})
        CHECK(differing(all->parameters(), t->parameters()) == "");
      CHECK(module->e.global_steps() == 1);
      CHECK(fresh->e.global_steps() == 3);
      CHECK(rates->e.lr_scheduler()->last_step() == 1);
      CHECK(all->e.lr_scheduler()->last_step() == 3);
      for (const zero::StatePiece& piece : fresh->e.zero().state())
        if (piece.name == "optimizer.exp_avg.b.weight") CHECK(max(abs(piece.tensor)).item() > 0);
      CHECK(fresh->e.zero().numbers().at("optimizer.step.b.weight") == 1);
      CHECK(all->e.zero().numbers().at("optimizer.step.b.weight") == 3);
    });
  }
}

TEST_CASE("engine: between f32 and 16 bits the master weights are the f32 ones") {
  at_stages({0, 2, 3}, [](int stage, const TempDir& folder, int) {
    SavingTrainer low(saved_config(stage, 1, bf16)), wide(saved_config(stage, 1)), back(saved_config(stage, 1, bf16));
    train_steps(low.e, 2);
    low.e.save_checkpoint(folder / "low");
    wide.e.load_checkpoint(folder / "low");
    wide.e.save_checkpoint(folder / "wide");
    back.e.load_checkpoint(folder / "wide");
    train_steps(low.e, 2);
    train_steps(back.e, 2);
    CHECK(differing(low.parameters(), back.parameters()) == "");
  });
}

TEST_CASE("engine: an average that a checkpoint does not have begins at the parameters") {
  for (const DType dtype : {f32, bf16}) {
    at_stages({0, 1, 3}, [=](int stage, const TempDir& folder, int rank) {
      Config config = saved_config(stage, 1, dtype);
      SavingTrainer without(config);
      train_steps(without.e, 2);
      without.e.save_checkpoint(folder / "run");
      config.ema.decay = 0.75;
      SavingTrainer with(config);
      for (const bool strict : {true, false}) {
        with.e.load_checkpoint(folder / "run", {.load_module_strict = strict});
        const auto state = with.e.full_state().optimizer.tensors;
        const Tensors all(state.begin(), state.end());
        for (const auto& [name, tensor] : with.parameters()) {
          if (rank != 0) break;  // only rank 0 gets the whole state
          const Tensor average = all.at("state." + name + ".ema");
          CHECK_MESSAGE(equal(average, dtype == f32 ? tensor : all.at("state." + name + ".master")), name);
        }
        train_steps(with.e, 1);
      }
    });
  }
}

TEST_CASE("engine: writes to 16-bit parameters are in the next step, and in what is saved before it") {
  at_stages({0, 2}, [](int stage, const TempDir& folder, int) {
    SavingTrainer t(saved_config(stage, 1, bf16)), wide(saved_config(stage, 1));
    train_steps(t.e, 2);
    {
      const NoGrad no_grad;
      t.net.b.weight.tensor().fill_(0.5);
    }
    t.e.save_checkpoint(folder / "run");
    wide.e.load_checkpoint(folder / "run");
    CHECK(all(eq(wide.parameters().at("b.weight"), full({1}, 0.5))).item<bool>());
    train_steps(t.e, 1);
    const Tensor now = t.parameters().at("b.weight").to(f32);
    CHECK(amax(abs(sub(now, full({1}, 0.5)))).item() < 0.05);
  });
}

TEST_CASE("engine: a model alone gives master weights to 16 bits") {
  at_stages({0, 1, 3}, [](int stage, const TempDir& folder, int) {
    SavingTrainer t(saved_config(stage, 1, bf16));
    train_steps(t.e, 1);
    t.e.save_checkpoint(folder / "run");
    const Tensors saved = t.parameters();
    train_steps(t.e, 3);
    t.e.load_checkpoint(folder / "run", {.load_module_only = true});
    CHECK(differing(saved, t.parameters()) == "");
    t.e.set_lr(0);
    // a step with learning rate 0 changes nothing, so the master weights equal the parameters
    t.e.backward(t.own.loss());
    t.e.step();
    CHECK(differing(saved, t.parameters()) == "");
  });
}

TEST_CASE("engine: frozen parameters, in the checkpoint and left out") {
  at_stages({0, 1, 3}, [](int stage, const TempDir& folder, int) {
    const auto of_trained = [](nn::Module& m) {
      std::vector<Variable> trained = m.parameters();
      std::erase_if(trained, [](const Variable& p) { return !p.requires_grad(); });
      return std::make_unique<optim::SGD>(trained, optim::SGDOptions{.lr = 0.1});
    };
    const auto make = [&](int seed) {
      auto net = make_net(seed);
      net->b.requires_grad_(false);
      return NetEngine({.optimizer = of_trained, .config = saved_config(stage, 1), .log = quiet}, std::move(net));
    };
    NetEngine a = make(0), b = make(5);
    const Tensors of_a = a.parameters();
    a.e.save_checkpoint(folder / "all");
    a.e.save_checkpoint(folder / "trained", {.exclude_frozen_parameters = true});
    const Tensors of_b = b.parameters();
    b.e.load_checkpoint(folder / "trained");
    CHECK(equal(b.parameters()["a.weight"], of_a.at("a.weight")));
    CHECK(equal(b.parameters()["b.weight"], of_b.at("b.weight")));
    b.e.load_checkpoint(folder / "all");
    CHECK(differing(of_a, b.parameters()) == "");
  });
}

TEST_CASE("engine: the model as one file") {
  const TempDir folder;
  for (const bool gather : {true, false}) {
    at_stages({0, 2, 3}, [=](int stage, const TempDir& folder, int rank) {
      Config c = saved_config(stage, 1, bf16);
      c.zero_optimization.stage3_gather_16bit_weights_on_model_save = gather;
      SavingTrainer t(c);
      train_steps(t.e, 1);
      CHECK(t.e.save_16bit_model(folder.path) == (gather || stage < 3));
      if (stage == 3 && !gather) {
        if (rank == 0) CHECK(contains(t.said.back(), "stage3_gather_16bit_weights_on_model_save to true"));
        return;
      }
      const auto file = data::SafeTensors::open(folder / "model.safetensors");
      for (const auto& [name, tensor] : t.parameters()) CHECK(equal(tensor, file.tensor(name)));
    });
  }
}

TEST_CASE("engine: checkpoints that are refused") {
  const TempDir folder;
  save_after({1, saved_config(1, 1)}, folder / "run", 1);
  const std::string file = folder.write("file", "x");
  struct Row {
    int ranks, accumulation;
    std::function<void(SavingTrainer& t)> body;
    const char* expected;
  };
  for (const Row& row :
       std::vector<Row>{{2, 2, [&](auto& t) { t.own.backward(), t.e.save_checkpoint(folder / "a"); },
                         "expected a call after step(), got one after a backward()"},
                        {1, 1, [](auto& t) { t.e.load_checkpoint(""); }, "expected a folder, got an empty name"},
                        {1, 1, [](auto& t) { t.e.save_checkpoint(""); }, "expected a folder, got an empty name"},
                        {1, 1, [&](auto& t) { t.e.save_checkpoint(folder / "a", {.tag = "../up"}); }, "../up"},
                        {1, 1, [&](auto& t) { t.e.load_checkpoint(folder / "run", {.tag = "nothing"}); }, "nothing"},
                        {2, 1, [&](auto& t) { t.e.save_16bit_model(file); }, "was not saved"}}) {
    CHECK_ERROR(on_ranks(row.ranks,
                         [&](int) {
                           SavingTrainer t(saved_config(1, row.accumulation));
                           row.body(t);
                         }),
                row.expected);
  }
  // A model with different parameters.
  CHECK_ERROR(on_ranks(1,
                       [&](int) {
                         Mlp net;
                         optim::AdamW optimizer(net.parameters(), {});
                         auto e = initialize(net, optimizer, saved_config(1, 1));
                         e.load_checkpoint(folder / "run");
                       }),
              "c.weight");
}

TEST_CASE("engine: a checkpoint that only one rank saves names those that are absent") {
  const TempDir folder;
  const std::string error = message([&] {
    on_ranks(2, [&](int rank) {
      SavingTrainer t(saved_config(1, 1));
      if (rank == 0) t.e.save_checkpoint(folder / "run");
      else t.e.group().barrier(dist::Seconds(0), "the end");
    });
  });
  CAPTURE(error);
  CHECK(contains(error, "rank 1"));
  CHECK(contains(error, "checkpoint"));
}

TEST_CASE("engine: micro-batches that fill no step are said in time, and the last checkpoint is written") {
  const auto is_said = [](const SavingTrainer& t, const char* part) {
    return std::any_of(t.said.begin(), t.said.end(), [&](const auto& line) { return contains(line, part); });
  };
  at_stages({0, 2, 3}, [&](int stage, const TempDir& folder, int rank) {
    SavingTrainer t(saved_config(stage, 4));
    const auto own = samples(10);
    data::DataLoader batches(own, {.batch_size = 2});
    const auto evaluate = [&](const Tensor& x) {
      const NoGrad no_grad;
      t.net.eval();
      t.e(x);
      t.net.train();
    };
    const auto epoch = [&] {
      for (auto& [x, y] : batches) {
        // an evaluation in the middle of a step does not count as micro-batches
        for (auto& [u, v] : data::DataLoader(own, {.batch_size = 5})) evaluate(u);
        t.e.backward(cross_entropy(t.e(x), y));
        t.e.step();
      }
    };
    epoch();
    CHECK(!is_said(t, "micro-batches"));
    evaluate(own.get(0).input.reshape({1, 6}));  // after the epoch
    if (rank == 0) CHECK(is_said(t, "a loop over a DataLoader ended with 1 of the 4 micro-batches of a step"));
    epoch();
    const Tensors before = t.parameters();
    CHECK(t.e.global_steps() == 2);
    t.e.save_checkpoint(folder / "run");
    t.e.wait_for_checkpoint();
    if (rank == 0) CHECK(is_said(t, "save_checkpoint() after 2 of the 4 micro-batches"));
    SavingTrainer other(saved_config(1, 4));
    CHECK(other.e.load_checkpoint(folder / "run"));
    CHECK(other.e.global_steps() == 2);
    CHECK(differing(before, other.parameters()) == "");
  });
  // With the engine's own loader, the incomplete step is repeated.
  const TempDir folder;
  const Tensors entire = uninterrupted(saved_config(1, 4), 3);
  on_ranks(1, [&](int) {
    SavingTrainer t(saved_config(1, 4));
    int count = 0;
    for (auto& [x, y] : *t.e.training_dataloader()) {
      t.e.backward(cross_entropy(t.e(x), y));
      t.e.step();
      if (++count == 7) break;
    }
    t.e.save_checkpoint(folder / "run");
    SavingTrainer other(saved_config(1, 4));
    other.e.load_checkpoint(folder / "run");
    train_steps(other.e, 2);
    CHECK(differing(entire, other.parameters()) == "");
  });
}

TEST_CASE("engine: a run that goes on says what it was trained with, where the program says other things") {
  const TempDir folder;
  save_after({1, saved_config(1, 1)}, folder / "run", 3);
  on_ranks(1, [&](int) {
    SavingTrainer same(saved_config(1, 1));
    same.e.load_checkpoint(folder / "run");
    for (const std::string& line : same.said) CHECK_MESSAGE(!contains(line, "is restored to"), line);
    Config config = saved_config(1, 1);
    config.seed = 77;
    const auto net = make_net();
    optim::AdamW optimizer(net->parameters(), {.lr = 1e-3, .weight_decay = 0.2});
    optim::WarmupLR schedule(optimizer, {.warmup_num_steps = 8});
    std::string said;
    engine::Engine<Net> e(*net, {.optimizer = &optimizer,
                                 .training_data = data::share(samples(40)),
                                 .lr_scheduler = &schedule,
                                 .config = config,
                                 .log = [&](const std::string& text) { said += text + "\n"; }});
    e.load_checkpoint(folder / "run");
    for (const char* part : {"lr is restored to 0.01 from the checkpoint; the program set 0.001",
                             "weight_decay is restored to 0.1", "seed is restored to 1234"})
      CHECK_MESSAGE(contains(said, part), part, " in ", said);
    CHECK(!contains(said, "beta"));
  });
}
