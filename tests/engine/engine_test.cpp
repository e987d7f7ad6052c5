// The engine: bits, the order of calls, and what it rejects.

#include "tests/engine/util.h"

using namespace lockstep;
using namespace testing;
using engine::initialize;

namespace {

/// Runs body with a small engine on `ranks` ranks.
void run(int ranks, const Config& config, const std::function<void(NetEngine& n, int rank)>& body) {
  on_ranks(ranks, [&](int rank) {
    NetEngine n({.optimizer = sgd_of(0.1), .config = config, .log = quiet});
    body(n, rank);
  });
}

}  // namespace

TEST_CASE(
    "engine: its loader deals the micro-batches of MicroBatchSampler, and fills or leaves out an epoch's last step") {
  for (const bool drop : {false, true}) {
    const auto run = [&](int ranks) {
      return on_ranks<Tensors>(ranks, [&](int rank) {
        Config c = config_of(2, 4 / ranks);
        c.dataloader_drop_last = drop;
        const auto data = samples(19);
        NetEngine n({.optimizer = make_adamw, .training_data = data::share(data), .config = c, .log = quiet},
                    make_net(rank));
        auto* const loader = n.e.training_dataloader();
        // Micro-batches of 2 in steps of 8 samples: 2 steps, or 3 with the incomplete one.
        CHECK(loader->size() * ranks == (drop ? 8 : 12));
        const data::MicroBatchSampler sampler({.samples = 19,
                                               .micro_batch = 2,
                                               .micro_batches = 4,
                                               .world = ranks,
                                               .rank = rank,
                                               .seed = 1234,
                                               .interleaved = true,
                                               .drop_last = drop});
        std::vector<float> dealt, expected;
        for (auto& [x, y] : *loader)
          for (const float value : x.to_vector<float>()) dealt.push_back(value);
        for (const int64_t i : sampler(0))
          for (const float value : data.get(i).input.to_vector<float>()) expected.push_back(value);
        CHECK(dealt == expected);
        train_steps(n.e, 7);
        return n.parameters();
      })[0];
    };
    CHECK(differing(run(1), run(2)) == "");
  }
}

TEST_CASE("engine: losses weighted by tokens are the mean over all tokens, however they are dealt") {
  // Four micro-batches of different sizes, 24 rows in all, equal one batch of 24.
  const std::vector<int64_t> lengths{1, 5, 11, 7};
  const auto run = [&](int ranks, int stage) {
    return on_ranks<Tensors>(ranks, [&](int) {
      NetEngine n({.optimizer = sgd_of(0.5), .config = config_of(stage, 4 / ranks), .log = quiet});
      n.net->p = 0;
      auto& e = n.e;
      const auto data = samples(24);
      for (int64_t i = 0; i < e.gradient_accumulation_steps(); ++i) {
        int64_t begin = 0;
        for (int64_t k = 0; k < e.micro_batch(); ++k) begin += lengths[size_t(k)];
        const int64_t rows = lengths[size_t(e.micro_batch())];
        e.backward(cross_entropy(e(data.inputs().narrow(0, begin, rows)), data.targets().narrow(0, begin, rows),
                                 {.reduction = Reduction::sum}),
                   rows);
        e.step();
      }
      Tensors all = n.parameters();
      all["loss"] = Tensor::from({e.train_loss()}, {1});
      return all;
    })[0];
  };
  const auto net = make_net();
  net->p = 0;
  const auto data = samples(24);
  const Variable loss = cross_entropy((*net)(data.inputs()), data.targets());
  loss.backward();
  optim::SGD(net->parameters(), {.lr = 0.5}).step();
  Tensors full = copy_parameters(*net);
  full["loss"] = Tensor::from({loss.item()}, {1});
  const Tensors one = run(1, 0);
  CHECK(distance(full, one) < 1e-6);
  for (const int stage : {0, 1, 2, 3})
    for (const int ranks : {2, 4}) CHECK(differing(one, run(ranks, stage)) == "");
}

TEST_CASE("engine: counters, boundaries and getters") {
  on_ranks(2, [&](int rank) {
    const auto net = make_net();
    optim::SGD optimizer(net->parameters(), {.lr = 0.25});
    Config c = config_of(2, 3);
    c.steps_per_print = 5;
    auto e = initialize(*net, optimizer, c);
    CHECK(e.train_batch_size() == 12);
    CHECK(e.train_micro_batch_size_per_gpu() == 2);
    CHECK(e.gradient_accumulation_steps() == 3);
    CHECK(e.steps_per_print() == 5);
    CHECK(e.global_rank() == rank);
    CHECK(e.group().size() == 2);
    CHECK(e.config().zero_optimization.stage == 2);
    CHECK(e.get_lr() == std::vector<double>{0.25});
    CHECK(e.loss_scale() == 1);
    CHECK(std::isnan(e.get_global_grad_norm()));
    for (int i = 0; i < 6; ++i) {
      CHECK(e.is_gradient_accumulation_boundary() == (i % 3 == 2));
      CHECK(e.micro_batch() == i % 3 * 2 + rank);
      e.backward(mean(square(e(ones({2, 6})))));
      CHECK(e.is_gradient_accumulation_boundary() == (i % 3 == 2));
      e.step();
      CHECK(e.micro_steps() == i + 1);
      CHECK(e.global_steps() == (i + 1) / 3);
    }
    CHECK(e.global_samples() == 24);
    CHECK(e.skipped_steps() == 0);
    CHECK(e.get_global_grad_norm() > 0);
    CHECK(e.train_loss() > 0);
    e.set_lr(0.5);
    CHECK(optimizer.lr() == 0.5);
    e.eval();
    CHECK(!net->is_training());
    e.train();
    CHECK(net->is_training());
  });
}

TEST_CASE("engine: the caller knows where boundaries are") {
  // 2 ranks x 3 backwards = 6 equal micro-batches; their sum divided by gradient_accumulation_steps 3 is the mean.
  const auto run = [](int stage, bool managed) {
    return on_ranks<Tensors>(2, [&](int) {
      Config c = config_of(stage, 4);
      c.managed_gradient_accumulation = managed;
      NetEngine n({.optimizer = sgd_of(0.1), .config = c, .log = quiet});
      n.net->p = 0;
      for (int step = 0; step < 2; ++step) {
        for (int i = 0; i < 4; ++i) {
          CHECK(n.e.is_gradient_accumulation_boundary() == (!managed || i == 3));
          n.backward(1 + n.e.micro_batch() % 2);
          if (managed) n.e.step();
        }
        if (!managed) n.e.step();
        CHECK(n.e.global_steps() == step + 1);
      }
      return n.parameters();
    })[0];
  };
  for (const int stage : {0, 1, 2, 3}) CHECK(distance(run(stage, false), run(stage, true)) < 1e-6);
  for (const int stage : {1, 2, 3}) CHECK(differing(run(0, false), run(stage, false)) == "");
}

TEST_CASE("engine: several engines, one loss") {
  for (const DType dtype : {f32, f16}) {
    const auto trained = [&](bool together) {
      return on_ranks<Tensors>(2, [&](int) {
        Config of_b = config_of(1, 1, dtype);
        of_b.fp16.initial_scale_power = 4;
        NetEngine a({.optimizer = sgd_of(0.1), .config = config_of(2, 1, dtype), .log = quiet}),
            b({.optimizer = sgd_of(0.1), .config = of_b, .log = quiet}, make_net(7));
        a.net->p = b.net->p = 0;
        const auto loss_a = [&] { return a.loss().to(f32); };
        const auto loss_b = [&] { return b.loss().to(f32) * 0.5; };
        for (int step = 0; step < 2; ++step) {
          if (together) engine::scale(loss_a() + loss_b(), {&a.e, &b.e}).backward();
          else a.e.backward(loss_a()), b.e.backward(loss_b());
          a.e.step();
          b.e.step();
        }
        CHECK(a.e.skipped_steps() + b.e.skipped_steps() == 0);
        Tensors all = a.parameters();
        for (auto& [name, tensor] : b.parameters()) all["b." + name] = tensor;
        return all;
      })[0];
    };
    CHECK(distance(trained(true), trained(false)) < (dtype == f32 ? 1e-7 : 2e-3));
  }
  CHECK_ERROR(run(2, config_of(1, 1, f16), [](NetEngine& n, int) { n.loss().backward(); }),
              "engine.scale(loss).backward()");
  // Without loss scaling, calling backward() directly is fine.
  run(2, config_of(1, 2), [](NetEngine& n, int) {
    for (int i = 0; i < 4; ++i) n.loss().backward(), n.e.step();
    CHECK(n.e.global_steps() == 2);
  });
}

TEST_CASE("engine: calls in the wrong order") {
  struct Row {
    int64_t accumulation;
    std::function<void(NetEngine& n, int rank)> body;
    const char* text;
  };
  const Row rows[] = {
      {1, [](auto& n, int) { n.e.step(); }, "[step] expected a backward() since the last step(), got none"},
      {2, [](auto& n, int) { n.train_once(), n.e.step(); }, "expected a backward() since the last step()"},
      {2, [](auto& n, int) { n.backward(), n.backward(); }, "expected step() after every backward()"},
      {1,
       [](auto& n, int) {
         const Variable loss = n.loss();
         n.e.backward(loss), n.e.step(), n.e.backward(loss);
       },
       "was freed by an earlier backward"},
      {1, [](auto& n, int) { n.e.close(), n.loss(); },
       "[forward] expected an engine that is open, got one after close()"},
      {1, [](auto& n, int) { n.e.close(), n.e.close(), n.e.step(); }, "[step] expected an engine that is open"},
      {1, [](auto& n, int) { n.e.backward(Variable(ones({1}), true)); },
       "expected a loss that depends on the model's parameters"},
      {1,
       [](auto& n, int) {
         n.e.backward(square(n.e(ones({2, 6}))));
       },
       "expected a loss of one element, got (2, 3)"},
      {1, [](auto& n, int) { n.e.backward(n.loss(), -2); }, "expected a number of tokens >= 0, got -2"},
      {1, [](auto& n, int) { n.e.backward(n.loss(), 0), n.e.step(); }, "expected at least one token"},
      {2, [](auto& n, int) { n.train_once(), n.e.backward(n.loss(), 3); },
       "with a number of tokens, or all without; got both"},
      {1,
       [](auto& n, int rank) {
         rank == 0 ? n.e.backward(n.loss()) : n.e.backward(n.loss(), 3);
         n.e.step();
       },
       "or all to call backward(loss_sum, tokens), got both"},
  };
  for (const Row& row : rows) {
    for (const int stage : {0, 2, 3}) {
      CAPTURE(stage);
      CHECK_ERROR(run(2, config_of(stage, row.accumulation), row.body), row.text);
    }
  }
  CHECK_ERROR(run(2, config_of(1, 1),
                  [](NetEngine& n, int) {
                    const auto local = n.e.no_sync();
                    n.train_once();
                  }),
              "[step] expected to be called outside of no_sync()");
  CHECK_ERROR(run(2, config_of(2, 1), [](NetEngine& n, int) { (void)n.e.no_sync(); }),
              "in stage 2 no rank keeps whole gradients");
}

TEST_CASE("engine: after an exception inside a backward, zero_grad() starts the step again") {
  for (const int stage : {0, 1, 2, 3}) {
    const auto trained = [&](bool fails) {
      return on_ranks<Tensors>(2, [&](int) {
        NetEngine n({.optimizer = sgd_of(0.1), .config = config_of(stage, 2), .log = quiet});
        if (fails) {
          n.train_once();
          const int hook = n.net->a.weight.on_grad([](const Tensor&) -> Tensor { fail("on purpose"); });
          CHECK_ERROR(n.backward(), "on purpose");
          n.net->a.weight.remove_hook(hook);
          CHECK_ERROR(n.e.step(), "expected zero_grad() after a backward that ended with an exception");
          n.e.zero_grad();
        }
        n.train_once();
        n.train_once();
        CHECK(n.e.global_steps() == 1);
        return n.parameters();
      })[0];
    };
    CHECK(differing(trained(false), trained(true)) == "");
  }
}

TEST_CASE("engine: one that is destroyed restores the model, so that another can use it") {
  nn::Sequential model(nn::Linear({.in = 2, .out = 2}), nn::Linear({.in = 2, .out = 2}));
  Config c = config_of(0, 1);
  c.activation_checkpointing.enabled = true;
  on_ranks(1, [&](int) {
    for (int i = 0; i < 2; ++i) {
      optim::SGD optimizer(model.parameters(), {.lr = 0.1});
      auto e = initialize(model, optimizer, c);
    }
  });
}

TEST_CASE("engine: DeepSpeed's section activation_checkpointing, which has no `enabled`") {
  const auto trained = [](const char* section, std::vector<std::string>* said) {
    return on_ranks<Tensors>(1, [&](int) {
      const std::string text =
          str(R"({"train_micro_batch_size_per_gpu": 2, "activation_checkpointing": {)", section, "}}");
      NetEngine n({.optimizer = sgd_of(0.1),
                   .config = engine::config_from_json(text),
                   .log = [said](const std::string& line) { said->push_back(line); }});
      for (int i = 0; i < 2; ++i) n.train_once();
      return n.parameters();
    })[0];
  };
  std::vector<std::string> said;
  const Tensors plain = trained("", &said);
  // Net has neither a ModuleList nor a Sequential, but layers().
  for (const char* section : {R"("cpu_checkpointing": true)", R"("partition_activations": true)", R"("enabled": true)",
                              R"("enabled": false, "cpu_checkpointing": true)"})
    CHECK_MESSAGE(differing(plain, trained(section, &said)) == "", section);
  const auto lines = [&](const char* part) {
    return std::ranges::count_if(said, [&](const std::string& line) { return contains(line, part); });
  };
  CHECK(lines("cpu_checkpointing: has no effect without activation_checkpointing.enabled") == 1);  // the last row
  CHECK(lines("activation_checkpointing has no effect") == 0);
  // A model without layers(): a note, or an Error if the file asks for it by our key.
  Mlp mlp;
  optim::SGD optimizer(mlp.parameters(), {.lr = 0.1});
  Config c = config_of(0, 1);
  const auto log = [&](const std::string& line) { said.push_back(line); };
  const auto make = [&] {
    on_ranks(1, [&](int) { initialize(mlp, {.optimizer = &optimizer, .config = c, .log = log}); });
  };
  c.activation_checkpointing.cpu_checkpointing = true;
  make();
  CHECK(lines("note: activation_checkpointing has no effect: [checkpoint] expected a module with blocks") == 1);
  c.activation_checkpointing.enabled = true;
  CHECK_ERROR(make(), "expected a module with blocks (a ModuleList or Sequential), got Mlp");
}

TEST_CASE("engine: ranks and the device") {
  on_ranks(2, [](int rank) {
    NetEngine n({.optimizer = sgd_of(0.1), .config = config_of(1, 1), .log = quiet});
    CHECK(n.e.global_rank() == rank);
    CHECK(n.e.local_rank() == rank);
    CHECK(n.e.device() == n.net->a.weight.device());
  });
}

TEST_CASE("engine: inputs of another dtype than the model") {
  Config c = config_of(1, 1, bf16);
  c.bf16.auto_cast = false;
  const auto call = [&](DType dtype) { run(1, c, [=](NetEngine& n, int) { n.e(ones({2, 6}).to(dtype)); }); };
  for (const char* part :
       {"expected one dtype, got f32 and bf16", "set bf16.auto_cast to true, or convert inputs with .to(bf16)",
        "give the loss outputs.to(f32)"})
    CHECK_ERROR(call(f32), part);
  CHECK_ERROR_IS(call(bf16), "(no error)");
}

TEST_CASE("engine: settings that initialize() rejects, and its messages") {
  const auto net = make_net();
  optim::SGD optimizer(net->parameters(), {.lr = 0.1});
  const engine::Arguments args{.deepspeed_config = "a.json"};
  Config drop = config_of(0, 8);
  drop.dataloader_drop_last = true;
  struct Row {
    engine::InitializeArgs args;
    const char* expected;
  };
  const Row rows[] = {
      {{.optimizer = &optimizer}, "[initialize] expected a config, got none"},
      {{.optimizer = &optimizer, .config = config_of(0, 1), .args = &args},
       "expected one config, got two: .config and --deepspeed_config a.json"},
      {{.config = config_of(0, 1)}, "expected an optimizer, got none"},
      {{.optimizer = &optimizer, .training_data = data::share(samples(0)), .config = config_of(0, 1)},
       "expected training_data of at least train_batch_size 2 samples, got 0"},
      {{.optimizer = &optimizer, .training_data = data::share(samples(15)), .config = drop},
       "at least train_batch_size 16 samples (dataloader_drop_last leaves out the rest), got 15"},
  };
  for (const Row& row : rows) {
    engine::InitializeArgs asked = row.args;
    asked.log = quiet;
    on_ranks(1, [&](int) { CHECK_ERROR(initialize(*net, asked), row.expected); });
  }
  // The failed calls left no hooks behind.
  mean(square((*net)(ones({2, 6})))).backward();
  // A single process without a launcher; a second call is no error.
  if (!engine::is_launched()) {
    CHECK(engine::init_distributed().size() == 1);
    CHECK(&engine::init_distributed() == &dist::world());
    dist::shutdown();
  }
}

TEST_CASE("engine: the metric of a step is the mean over ranks, whatever schedule takes it") {
  struct Follows : optim::Schedule {
    using optim::Schedule::Schedule;
    double observed = 0;
    void step(double metric) override { observed = metric; }
    double value(int, int64_t) const override { return 0.1; }
  };
  on_ranks(2, [](int rank) {
    NetEngine n({.optimizer = make_adamw,
                 .lr_scheduler = [](optim::Optimizer& o) { return std::make_unique<Follows>(o); },
                 .config = config_of(0, 1),
                 .log = quiet});
    n.backward();
    n.e.step(rank);
    CHECK(static_cast<Follows*>(n.e.lr_scheduler())->observed == 0.5);
  });
}

TEST_CASE("engine: eval_batch is the mean over the targets of all micro-batches and ranks, where these are counted") {
  const auto count = [](const std::vector<Tensor>& targets) {
    const auto ids = targets.at(0).to_vector<int64_t>();
    return int64_t(std::count_if(ids.begin(), ids.end(), [](int64_t id) { return id >= 0; }));
  };
  const Tensor ignored = Tensor::from<int64_t>({-100, -100}, {2}), one = Tensor::from<int64_t>({1, -100}, {2}),
               both = Tensor::from<int64_t>({2, 0}, {2});
  for (const int ranks : {1, 2}) {
    on_ranks(ranks, [&](int) {
      const std::shared_ptr<Net> net = make_net();
      engine::EngineBase e({.model = net, .loss_fn = loss_of_scores, .tokens = count},
                           {.optimizer = make_adamw, .config = config_of(0, 1), .log = quiet});
      const Tensor x = samples(8).get_batch(std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7}).value().input;
      const Tensor y[] = {ignored, one, both, ignored};
      const double found = e.eval_batch(
          [&](int64_t i) {
            return pipeline::Sample{{x.narrow(0, 2 * i, 2)}, {y[i]}};
          },
          4 / ranks);
      const NoGrad no_grad;
      net->eval();
      const double full = cross_entropy((*net)(x), Variable(cat({y[0], y[1], y[2], y[3]}, 0))).item();
      CHECK(found == doctest::Approx(full).epsilon(1e-6));
    });
  }
}
