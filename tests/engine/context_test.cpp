// Context parallelism under the engine: loss, norm and parameters equal those of one process, with ZeRO 0 to 3,
// pipeline stages and tensor parallelism; checkpoints move between any plans.
#include <doctest/doctest.h>

#include <cmath>

#include "engine/engine.h"
#include "parallel/sequence/context_parallel.h"
#include "parallel/tensor_parallel/apply.h"
#include "pipeline/layers.h"
#include "tests/engine/util.h"

using namespace lockstep;
using namespace testing;

namespace shared_sequences {

using engine::InitializeArgs, engine::EngineBase, engine::PipelineModule;
using sequence::ContextOptions, sequence::Kind, sequence::Order;

namespace {

constexpr int64_t vocab = 11, length = 16;
const ContextOptions ring{}, contiguous{Kind::ring, Order::contiguous}, ulysses{Kind::ulysses};

std::shared_ptr<nn::GPT> make_gpt(double dropout = 0) {
  manual_seed(1);
  auto model = std::make_shared<nn::GPT>(
      nn::GPT::Options{.vocab = vocab, .context = length, .layers = 2, .width = 16, .heads = 4, .dropout = dropout});
  model->to(f64);
  return model;
}

/// A micro-batch of whole sequences: tokens and targets, some of them ignored, more so towards the end of a sequence.
data::Example sample_of(int64_t step, int64_t micro) {
  const RandomState before = random_state();
  manual_seed(9);
  set_random_step(uint64_t(step), uint64_t(micro));
  const Tensor tokens = randint(0, vocab, {2, length}), targets = randint(0, vocab, {2, length}),
               chance = mul_scalar(rand({2, length}), double(length));
  set_random_state(before);
  return {tokens, masked_fill(targets, lt(chance, arange(0, double(length)).to(f32).expand({2, length})), -100)};
}

/// The context-parallel group of a mesh that outlives it.
std::shared_ptr<dist::ProcessGroup> cp_of(const parallel::Mesh& mesh) { return {std::shared_ptr<void>(), &mesh.cp()}; }

/// A training run whose steps have accumulation x dp = 4 micro-batches. It uses SGD, because Adam would amplify
/// gradients that are zero except for rounding.
struct Case {
  std::string plan = "dp1";
  ContextOptions context = {};
  bool by_token = false;  // true: losses are sums over tokens
  int64_t steps = 3;
  std::string schedule = "1f1b", load = {}, save = {};
  double dropout = 0;

  parallel::Plan axes() const { return parallel::parse_plan(plan); }
  Config config() const {
    Config c = config_of(std::max(axes().zero, 0), 4 / axes().dp);
    c.gradient_clipping = 0.5;
    c.pipeline.schedule = schedule;
    return c;
  }
};
const optim::SGDOptions sgd{.lr = 0.3, .momentum = 0.9};

/// The result of a run: the whole model, and loss and norm of each step in "report".
Tensors with_report(Tensors model, const std::vector<double>& report) {
  model["report"] = Tensor::from(report, {int64_t(report.size())});
  return model;
}

Tensors engine_run(const Case& c) {
  const auto all = on_ranks<Tensors>(c.axes().ranks(), [&](int) {
    const parallel::Mesh mesh(c.axes(), dist::world());
    const auto model = make_gpt(c.dropout);
    sequence::share_sequences(*model, cp_of(mesh), c.context);
    const auto mine = [&](const Tensor& x) {
      return sequence::slice(x, 1, c.axes().cp, mesh.at().cp, c.context.order_or_default());
    };
    optim::SGD optimizer(model->parameters(), sgd);
    engine::Engine<nn::GPT> e(*model, {.optimizer = &optimizer, .config = c.config(), .mesh = &mesh, .log = quiet});
    CHECK(e.train_batch_size() == 8);
    if (!c.load.empty()) REQUIRE(e.load_checkpoint(c.load));
    std::vector<double> report;
    while (e.global_steps() < c.steps) {
      for (int64_t i = 0; i < e.gradient_accumulation_steps(); ++i) {
        const data::Example sample = sample_of(e.global_steps(), e.micro_batch());
        const Tensor tokens = mine(sample.input), targets = mine(sample.target);
        const int64_t counted =
            targets.numel() - sum(eq(targets, full({1}, -100, {.dtype = i64})).to(i64)).item<int64_t>();
        if (c.by_token)
          e.backward(cross_entropy(e(tokens).view({-1, vocab}), targets.reshape({-1}), {.reduction = Reduction::sum}),
                     counted);
        else e.backward(cross_entropy(e(tokens).view({-1, vocab}), tokens.reshape({-1})));
        e.step();
      }
      report.push_back(e.train_loss());
      report.push_back(e.get_global_grad_norm());
    }
    CHECK(e.global_samples() == 8 * c.steps);
    if (!c.save.empty()) e.save_checkpoint(c.save);
    return with_report(whole_parameters(e, *model), report);
  });
  for (const Tensors& other : all) CHECK(differing(all[0], other) == "");
  return all[0];
}

EngineBase make_pipeline(const Case& c, const parallel::Mesh& mesh) {
  const auto model = make_gpt(c.dropout);
  InitializeArgs args{.optimizer = [](nn::Module& m) { return std::make_unique<optim::SGD>(m.parameters(), sgd); },
                      .config = c.config(),
                      .mesh = &mesh,
                      .log = quiet};
  if (mesh.plan().tp > 1) args.sliced = tensor_parallel::apply(*model, mesh.tp());
  sequence::share_sequences(*model, cp_of(mesh), c.context);
  return engine::initialize(PipelineModule{.model = model, .num_stages = mesh.plan().pp}, std::move(args));
}

Tensors pipeline_run(const Case& c) {
  const auto all = on_ranks<Tensors>(c.axes().ranks(), [&](int) {
    const parallel::Mesh mesh(c.axes(), dist::world());
    EngineBase e = make_pipeline(c, mesh);
    if (!c.load.empty()) REQUIRE(e.load_checkpoint(c.load));
    const auto data = [&](int64_t micro) {
      const auto mine = [&](const Tensor& x) {
        return sequence::slice(x, 1, mesh.plan().cp, mesh.at().cp, c.context.order_or_default());
      };
      const Tensor tokens = mine(sample_of(e.global_steps(), micro).input);
      return pipeline::Sample{{tokens}, {tokens}};
    };
    std::vector<double> report;
    while (e.global_steps() < c.steps) {
      const double before = e.eval_batch(data), loss = e.train_batch(data);
      if (c.dropout == 0) CHECK(before == doctest::Approx(loss).epsilon(1e-13));
      report.push_back(loss);
      report.push_back(e.get_global_grad_norm());
    }
    CHECK(e.global_samples() == 8 * c.steps);
    if (!c.save.empty()) e.save_checkpoint(c.save);
    Tensors model;
    for (auto& [name, tensor] : e.whole_state().model) model[name] = tensor;
    return with_report(model, report);
  });
  for (const Tensors& other : all) CHECK(equal(other.at("report"), all[0].at("report")));
  return all[0];
}

void check_near(const Tensors& a, const Tensors& b, const std::string& where) {
  CHECK_MESSAGE(distance(a, b) < 1e-12, where << ": " << distance(a, b));
}

}  // namespace

TEST_CASE("context: an engine has the loss, norm and parameters of one process, at every stage of ZeRO") {
  const Tensors one = engine_run({}), by_token = engine_run({.by_token = true});
  CHECK(distance(one, by_token) > 1e-3);
  for (int stage = 0; stage <= 3; ++stage) {
    for (Case c : std::vector<Case>{{"cp2", ring},
                                    {"cp2", ulysses, true},
                                    {"dp2+cp2", ring, true},
                                    {"dp2+cp2", ulysses},
                                    {"cp4", stage % 2 ? contiguous : ulysses}}) {
      c.plan += str("+zero", stage);
      check_near(engine_run(c), c.by_token ? by_token : one, str(c.plan, ", ", name_of(c.context.kind)));
    }
  }
}

TEST_CASE("context: stages, slices and shared sequences in any mix") {
  const Tensors one = engine_run({});
  for (const Case& c : std::vector<Case>{{"pp2+cp2", ring},
                                         {"pp2+cp2", ulysses, false, 3, "gpipe"},
                                         {"cp2+tp2", ring},
                                         {"cp2+tp2", ulysses},
                                         {"dp2+cp2+zero1", contiguous},
                                         {"cp4", ring},
                                         {"dp2+pp2+cp2+zero1", ring},
                                         {"pp2+cp2+tp2", ulysses},
                                         {"pp4+cp2", ring, false, 3, "zb-h1"}}) {
    check_near(pipeline_run(c), one, str(c.plan, ", ", name_of(c.context.kind)));
  }
}

TEST_CASE("context: dropout in stages has the bits that it has without") {
  for (const ContextOptions& options : {ring, ulysses}) {
    const auto run = [&](const char* plan, auto&& train) {
      Tensors model = train(Case{.plan = plan, .context = options, .dropout = 0.2});
      model.erase("report");  // the losses are summed in another order
      return model;
    };
    const Tensors whole = run("cp2", engine_run);
    for (const char* plan : {"cp2", "pp2+cp2"})
      CHECK_MESSAGE(differing(whole, run(plan, pipeline_run)) == "", str(plan, ", ", name_of(options.kind)));
    CHECK(distance(whole, run("dp2+cp2", engine_run)) < 1e-12);  // dropout depends on micro-batches, not on ranks
    CHECK(distance(whole, run("dp1", engine_run)) > 1e-3);
  }
}

TEST_CASE("context: checkpoints of one plan, loaded by another") {
  const Tensors six = engine_run({.steps = 6});
  struct Row {
    Case from, to;
  };
  for (const Row& row : std::vector<Row>{
           {{"pp2+cp2+zero1"}, {"dp1"}}, {{"dp1"}, {"dp2+pp2+cp2+zero1"}}, {{"cp2+tp2", ulysses}, {"pp2+cp2"}}}) {
    const TempDir folder;
    Case from = row.from, to = row.to;
    from.save = to.load = folder.path;
    to.steps = 6;
    pipeline_run(from);
    Tensors rest = pipeline_run(to), expected = six;
    expected["report"] = expected["report"].narrow(0, 6, 6);
    check_near(rest, expected, from.plan + " to " + to.plan);
  }
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"cp2+zero3", "dp2+zero2"}, {"dp2+cp2+zero1", "dp1"}, {"dp1", "cp4+zero2"}}) {
    const TempDir folder;
    engine_run({.plan = from, .save = folder.path});
    Tensors rest = engine_run({.plan = to, .steps = 6, .load = folder.path}), expected = six;
    expected["report"] = expected["report"].narrow(0, 6, 6);
    check_near(rest, expected, from + " to " + to);
  }
}

TEST_CASE("context: pipeline::Engine alone averages over copies and parts") {
  const auto run = [](const std::string& plan) {
    return on_ranks<Tensors>(parallel::parse_plan(plan).ranks(), [&](int) {
      const parallel::Mesh mesh(parallel::parse_plan(plan), dist::world());
      const auto model = make_gpt();
      if (mesh.plan().cp > 1) sequence::share_sequences(*model, cp_of(mesh));
      const auto [layers, loss_of] = pipeline::layers_of(model);
      pipeline::Engine e(layers, {.stages = mesh.plan().pp, .micro_batches = 4 / mesh.plan().dp, .mesh = &mesh},
                         loss_of);
      const double loss = e.train_batch([&](int64_t micro) {
        const Tensor tokens =
            sequence::slice(sample_of(0, micro).input, 1, mesh.plan().cp, mesh.at().cp, Order::zigzag);
        return pipeline::Sample{{tokens}, {tokens}};
      });
      return with_report(
          {{"embedding", mesh.at().pp == 0 ? e.module().parameters()[0].grad().clone() : Tensor::from({0.}, {1})}},
          {loss, e.clip_grad_norm(0.1)});
    })[0];
  };
  const Tensors one = run("dp1");
  for (const char* plan : {"cp2", "pp2+cp2", "dp2+pp2+cp2"}) check_near(run(plan), one, plan);
}

TEST_CASE("context: the same bits under every plan, whether the engine gets an optimizer or makes it") {
  std::optional<nn::State> expected;
  for (const std::string plan : {"dp1", "dp4", "dp2+zero2", "pp2", "dp2+pp2+zero1", "dp2+zero3"}) {
    for (const bool made : {false, true}) {
      CAPTURE(plan);
      const Case c{.plan = plan};
      const auto all = on_ranks<nn::State>(c.axes().ranks(), [&](int) {
        const parallel::Mesh mesh(c.axes(), dist::world());
        const auto model = make_gpt(0.1);
        optim::SGD optimizer(model->parameters(), sgd);
        engine::InitializeArgs args{.config = c.config(), .mesh = &mesh, .log = quiet};
        if (made || mesh.plan().pp > 1)
          args.optimizer = [](nn::Module& m) { return std::make_unique<optim::SGD>(m.parameters(), sgd); };
        else args.optimizer = &optimizer;
        engine::Engine<nn::GPT> e(*model, std::move(args));
        CHECK(e.in_parts() == (mesh.plan().pp > 1));
        CHECK(e.plan() == c.axes());
        for (int64_t step = 0; step < 3; ++step)
          e.train_batch([&](int64_t micro) {
            const data::Example one = sample_of(step, micro);
            return pipeline::Sample{{one.input}, {one.target}};
          });
        return e.whole_state().model;
      });
      if (!expected) expected = all[0];
      REQUIRE(all[0].size() == expected->size());
      std::map<std::string, Tensor> found(all[0].begin(), all[0].end());
      for (const auto& [name, tensor] : *expected) CHECK_MESSAGE(equal(found.at(name), tensor), name);
    }
  }
}

TEST_CASE("context: the engine's data loader, and rejected settings") {
  on_ranks<int>(4, [](int rank) {
    const parallel::Mesh mesh(parallel::parse_plan("dp2+cp2"), dist::world());
    const auto net = make_net();
    optim::SGD optimizer(net->parameters(), sgd);
    engine::Engine<Net> e(*net, {.optimizer = &optimizer,
                                 .training_data = data::share(samples()),
                                 .config = config_of(0, 2),
                                 .mesh = &mesh,
                                 .log = quiet});
    CHECK(e.train_batch_size() == 8);
    CHECK(e.micro_batch() == rank / 2 * 2);
    const Tensor mine = (*e.training_dataloader()->begin()).input, all = empty({4, mine.numel()});
    dist::world().all_gather(all, mine.reshape({-1}));
    CHECK((equal(all[0], all[1]) && equal(all[2], all[3]) && !equal(all[0], all[2])));
    const auto refused = [&](engine::InitializeArgs args) {
      args.optimizer = &optimizer;
      args.config = config_of(0, 2);
      return message([&] { engine::Engine<Net>(*net, args); });
    };
    CHECK(contains(refused({.group = &dist::world(), .mesh = &mesh}), "expected a group or a mesh, got both"));
    const parallel::Mesh stages(parallel::parse_plan("pp2+cp2"), dist::world());
    CHECK(contains(refused({.mesh = &stages}), "2 stages need 2 layers, the model has 1"));
    const auto model = make_gpt();
    const auto given = [&] {
      engine::Engine<nn::GPT>(*model, {.optimizer = &optimizer, .config = config_of(0, 2), .mesh = &stages});
    };
    CHECK(
        contains(message(given), "expected a function that makes the optimizer of this rank's part, as pp2+cp2 cuts"));
    CHECK(contains(message([&] { e.train_batch(); }),
                   "training_data gives whole sequences, and dp2+cp2 needs each rank's part"));
    return 0;
  });
}

}  // namespace shared_sequences
