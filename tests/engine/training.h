#pragma once
// Trains a model under any plan, and with a loop written by hand. Tests of plans compare the two.
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "optim/schedule.h"
#include "parallel/sequence/context_parallel.h"
#include "parallel/tensor_parallel/apply.h"
#include "tests/engine/util.h"

namespace testing {

/// What is trained: a model with its data, loss and optimizer.
struct Subject {
  const char* name;
  /// The model and its loss. Ranks get the same values. Only replicas may differ; then the first one's values count.
  std::function<engine::PipelineModule(const parallel::Mesh& mesh)> make;
  /// A micro-batch, which depends on step and micro-batch only.
  std::function<pipeline::Sample(int64_t step, int64_t micro)> sample;
  /// Empty: the configuration names the optimizer.
  std::function<std::unique_ptr<optim::Optimizer>(nn::Module&)> optimizer = make_adamw;
  /// The loss in a loop written by hand. Empty: the module's loss_fn.
  pipeline::Loss loss = {};
  /// In a loop, how many targets count: then `loss` is a sum over them. Empty: it is a mean.
  std::function<int64_t(const Tensor& targets)> tokens = {};
};

/// How a subject is trained.
struct Training {
  std::string plan = "dp1";
  DType dtype = f32;
  int64_t micros = 4;  ///< micro-batches of a step, over all replicas
  int64_t steps = 4;
  /// true: a loop with backward() and step(), and an optimizer of the caller's. false: train_batch().
  bool loop = false;
  double clip = 0.5;
  bool recompute = false;  ///< true: repeated blocks run again in backward
  bool empty = false;      ///< true: the model is built without memory
  bool evaluates = false;  ///< true: an evaluation before every step must give the loss of the step
  std::vector<int> bounds = {};
  sequence::ContextOptions context = {};
  tensor_parallel::TensorParallelOptions tp_options = {};
  std::function<void(Config&)> change = {};
  std::string load = {}, save = {};
};

inline std::string text_of(const Subject& subject, const Training& t) {
  return str(subject.name, ", ", t.plan, ", ", t.dtype, ", ", t.micros, " micro-batches, clipped to ", t.clip,
             t.loop ? ", in a loop" : "", t.recompute ? ", recomputed" : "", t.empty ? ", built empty" : "", ", ",
             name_of(t.context.kind));
}

/// The numbers of a step in "report".
constexpr int64_t numbers_of_step = 5;

/// Trains under a plan. Returns the parameters of the whole model, and "report": loss, norm, loss scale, learning rate
/// and skipped steps, after every step.
inline Tensors train(const Subject& subject, const Training& t) {
  const parallel::Plan plan = parallel::parse_plan(t.plan);
  return merged(on_ranks<Tensors>(plan.ranks(), [&](int) {
    const parallel::Mesh mesh(plan, dist::world());
    std::optional<nn::BuildEmpty> scope;
    if (t.empty) scope.emplace();
    engine::PipelineModule module = subject.make(mesh);
    scope.reset();
    Config config = config_of(std::max(plan.zero, 0), t.micros / plan.dp, t.dtype);
    config.gradient_clipping = t.clip;
    const bool in_parts = plan.pp * plan.tp > 1;
    config.activation_checkpointing.enabled = t.recompute && !in_parts;
    if (t.change) t.change(config);
    module.recompute = t.recompute && in_parts;
    if (plan.pp > 1) module.partition_method = "uniform";
    module.bounds = t.bounds;
    engine::InitializeArgs args{.config = config, .mesh = &mesh, .log = quiet};
    const std::shared_ptr<nn::Module> model = module.model;
    std::unique_ptr<optim::Optimizer> given;
    if (t.loop) args.optimizer = (given = subject.optimizer(*model)).get();
    else if (subject.optimizer) args.optimizer = subject.optimizer;
    if (plan.tp > 1) args.sharded = tensor_parallel::apply(*model, mesh.tp(), t.tp_options);
    if (plan.cp > 1) sequence::share_sequences(*model, {std::shared_ptr<void>(), &mesh.cp()}, t.context);
    const pipeline::Loss loss = subject.loss ? subject.loss : module.loss_fn;
    std::optional<engine::Engine<nn::Module>> called;
    std::optional<engine::EngineBase> made;
    engine::EngineBase& e = t.loop ? static_cast<engine::EngineBase&>(called.emplace(*model, std::move(args)))
                                   : made.emplace(std::move(module), std::move(args));
    CHECK(e.in_parts() == in_parts);
    CHECK(e.plan() == plan);
    const bool loaded = t.load.empty() || e.load_checkpoint(t.load);  // not in REQUIRE, which would catch its Error
    REQUIRE(loaded);
    const pipeline::Data data = [&](int64_t micro) {
      pipeline::Sample sample = subject.sample(e.global_steps(), micro);
      if (plan.cp == 1) return sample;
      for (auto* list : {&sample.inputs, &sample.targets})
        for (Tensor& x : *list) x = sequence::slice(x, 1, plan.cp, mesh.at().cp, t.context.order_or_default());
      return sample;
    };
    std::vector<double> report;
    while (e.global_steps() < t.steps) {
      const double before = t.evaluates ? e.eval_batch(data) : NAN;
      if (!t.loop) e.train_batch(data);
      if (t.evaluates) CHECK(before == doctest::Approx(e.train_loss()).epsilon(1e-13));
      for (int64_t i = 0; t.loop && i < e.gradient_accumulation_steps(); ++i) {
        const pipeline::Sample sample = *data(e.micro_batch());
        Variable one = loss({(*called)(sample.inputs[0])}, sample.targets);
        if (const Variable own = nn::own_loss(*model); own.defined()) one = add(one, own.to(one.dtype()));
        if (subject.tokens) e.backward(one, subject.tokens(sample.targets[0]));
        else e.backward(one);
        e.step();
      }
      const double norm = e.get_global_grad_norm();
      report.insert(report.end(), {e.train_loss(), std::isnan(norm) ? -1 : norm, e.loss_scale(), e.get_lr()[0],
                                   double(e.skipped_steps())});
    }
    CHECK(e.global_samples() == e.train_batch_size() * t.steps);
    if (!t.save.empty()) e.save_checkpoint(t.save);
    Tensors mine;
    if (plan.tp == 1) mine = e.exchange() ? copy_parameters(e.module()) : full_parameters(e, e.module());
    else
      for (const auto& [name, tensor] : e.full_state().model) mine[name] = tensor;
    mine.erase("none");  // the only parameter of a stage without parameters
    mine["report"] = Tensor::from(report, {int64_t(report.size())});
    return mine;
  }));
}

/// Trains in one process with a loop written by hand, without an engine. "report": as above.
inline Tensors train_by_hand(const Subject& subject, const Training& t) {
  return on_ranks<Tensors>(1, [&](int) {
    const parallel::Mesh mesh({}, dist::world());
    const engine::PipelineModule module = subject.make(mesh);
    nn::Module& model = *module.model;
    if (t.dtype != f32) model.to(t.dtype);
    const auto optimizer = subject.optimizer(model);
    parallel::GradientSum sum(model.parameters());
    // Gradients of f16 are divided before they are summed.
    const double scale = t.dtype == f16 ? 256. / double(t.micros) : 1;
    manual_seed(1234);
    std::vector<double> report;
    for (int64_t step = 0; step < t.steps; ++step) {
      double total = 0;
      for (int64_t micro = 0; micro < t.micros; ++micro) {
        const pipeline::Sample sample = subject.sample(step, micro);
        set_random_step(uint64_t(step), uint64_t(micro));
        const Tensor x = sample.inputs[0];
        auto* const gpt = dynamic_cast<nn::GPT*>(&model);
        Variable loss =
            gpt ? gpt->loss(x, sample.targets[0]) : module.loss_fn({model.call(x.to(t.dtype))}, sample.targets);
        if (const Variable own = nn::own_loss(model); own.defined()) loss = add(loss, own);
        total += loss.item();
        (scale == 1 ? loss : mul_scalar(loss.to(f32), scale)).backward();
        sum.add();
      }
      sum.finish();
      double norm = -1;
      if (t.clip > 0) {
        for (const Variable& p : model.parameters()) mul_scalar_(p.grad(), 1 / double(t.micros));
        norm = optim::clip_grad_norm(model.parameters(), t.clip);
        optimizer->step();
      } else {
        optimizer->step(1 / (double(t.micros) * scale));
      }
      optimizer->zero_grad();
      report.insert(report.end(), {total / double(t.micros), norm, t.dtype == f16 ? 256. : 1, optimizer->lr(), 0});
    }
    Tensors all = copy_parameters(model);
    all["report"] = Tensor::from(report, {int64_t(report.size())});
    return all;
  })[0];
}

/// The largest difference allowed between two trainings. 0: all bits are equal.
struct Closeness {
  double loss = 0, norm = 0, parameters = 0;
};
/// Checks that `found`, from a training or from one resumed at a checkpoint, has the tensors of `full`.
inline void check_same(const Tensors& full, Tensors found, const Closeness& near, const std::string& where) {
  Tensors expected = full;
  const int64_t all = expected.at("report").numel(), count = found.at("report").numel();
  expected["report"] = expected["report"].narrow(0, all - count, count).clone();
  if (near.loss == 0) {
    CHECK_MESSAGE(differing(expected, found) == "", where, ": ", differing(expected, found));
    return;
  }
  const std::vector<double> a = expected["report"].to_vector<double>(), b = found["report"].to_vector<double>();
  for (size_t i = 0; i < a.size(); ++i) {
    const double allowed = i % numbers_of_step == 0 ? near.loss : i % numbers_of_step == 1 ? near.norm : 0;
    CHECK_MESSAGE(std::abs(a[i] - b[i]) <= allowed * std::max(1., std::abs(a[i])), where, ", number ", i, ": ", b[i],
                  " for ", a[i]);
  }
  if (near.parameters == INFINITY) return;
  expected.erase("report"), found.erase("report");
  CHECK_MESSAGE(distance(expected, found) <= near.parameters, where, ": parameters off by ", distance(expected, found));
}

// The subjects.

constexpr int64_t subject_vocab = 11;

/// Draws what a sample has, and restores the generator when it goes out of scope.
inline RandomScope draws_of(int64_t step, int64_t micro) {
  return RandomScope({.seed = 9, .step = uint64_t(step), .micro_batch = uint64_t(micro)});
}

/// Net of tests/models.h, on rows of six numbers in three classes. Replicas other than the first have other values.
inline Subject net_subject() {
  Subject s{.name = "Net"};
  s.make = [](const parallel::Mesh& mesh) {
    manual_seed(1);
    const auto model = std::make_shared<Net>();
    for (const Variable& p : model->parameters())
      if (mesh.at().dp > 0 && !p.tensor().storage()->is_empty()) add_scalar_(p.tensor(), 1);
    return engine::PipelineModule{.model = model, .loss_fn = loss_of_scores};
  };
  s.sample = [](int64_t step, int64_t micro) {
    const RandomScope own = draws_of(step, micro);
    const Tensor x = randn({2, 6});
    return pipeline::Sample{{x}, {argmax(x.narrow(1, 0, 3), 1)}};
  };
  return s;
}

/// Transformer blocks that tensor parallelism and stages divide, on sequences of five numbers.
inline Subject blocks_subject() {
  Subject s{.name = "Blocks"};
  s.make = [](const parallel::Mesh&) {
    manual_seed(7);
    return engine::PipelineModule{.model = std::make_shared<Blocks>(),
                                  .loss_fn = [](const pipeline::Values& y, const std::vector<Tensor>& targets) {
                                    return mse_loss(y[0].to(f32), targets[0]);
                                  }};
  };
  s.sample = [](int64_t step, int64_t micro) {
    const RandomScope own = draws_of(step, micro);
    const Tensor x = randn({2, 5, 3});
    return pipeline::Sample{{x}, {x.narrow(2, 0, 2)}};
  };
  return s;
}

/// The loss of a GPT's scores.
inline Variable loss_of_words(const pipeline::Values& out, const std::vector<Tensor>& targets) {
  return cross_entropy(out[0].view({-1, subject_vocab}), targets[0].reshape({-1}));
}

/// A small GPT in f64, trained with SGD: Adam would amplify gradients that are zero except for rounding.
inline Subject gpt_subject(double dropout) {
  Subject s{.name = dropout > 0 ? "GPT with dropout" : "GPT"};
  s.make = [dropout](const parallel::Mesh&) {
    manual_seed(1);
    auto model = std::make_shared<nn::GPT>(nn::GPT::Options{
        .vocab = subject_vocab, .context = 16, .layers = 2, .width = 16, .heads = 4, .dropout = dropout});
    model->to(f64);
    return engine::PipelineModule{.model = model};
  };
  s.sample = [](int64_t step, int64_t micro) {
    const RandomScope own = draws_of(step, micro);
    const Tensor tokens = randint(0, subject_vocab, {2, 16});
    return pipeline::Sample{{tokens}, {tokens}};
  };
  s.optimizer = optimizer_of<optim::SGD>(optim::SGDOptions{.lr = 0.3, .momentum = 0.9});
  s.loss = loss_of_words;
  return s;
}

}  // namespace testing
