// Samples of several inputs and targets: under the Trainer, by train_batch(), and in loops of one's own.
#include <doctest/doctest.h>

#include <cmath>
#include <map>

#include "optim/optim.h"
#include "parallel/ddp.h"
#include "tests/messages.h"
#include "tests/models.h"
#include "tests/output.h"
#include "tests/ranks.h"
#include "train/trainer.h"

using namespace lockstep;
using namespace testing;

namespace several {  // trainer_test.cpp has the same names
namespace {

/// The sum of a classification and of a regression, each with a target of its own.
Variable loss(const Variable& scores, const std::vector<Tensor>& targets) {
  return cross_entropy(scores, targets.at(0)) + mse_loss(scores, targets.at(1));
}
Variable accuracy(const Variable& scores, const std::vector<Tensor>& targets) {
  return mean(Variable(eq(argmax(scores.tensor(), -1), targets.at(0)).to(f32)));
}

/// A model of two inputs, one of which it takes as a tensor.
struct TwoInputs : nn::Layer<TwoInputs> {
  nn::Linear left = linear(6, 16), right = linear(4, 16), head = linear(16, 3);
  Variable forward(const Variable& a, const Tensor& b) { return head(joined(a, b)); }
  void fields(nn::Fields& f) override {
    f("left", left, nn::cut::columns)("right", right, nn::cut::columns)("head", head, nn::cut::rows);
  }
  nn::LayerList layers() override {
    nn::LayerList list;
    list.add({.kind = "Joined",
              .fields = {left, right},
              .forward = [this](const nn::Values& in) { return nn::Values{joined(in[0], in[1])}; },
              .takes = 2});
    list.add(head);
    list.loss = [](const Variable& scores, const std::vector<Tensor>& targets) { return loss(scores, targets); };
    return list;
  }

 private:
  Variable joined(const Variable& a, const Variable& b) { return gelu(left(a) + right(b)); }
};
/// The same without layers().
struct OneLayer : nn::Layer<OneLayer> {
  nn::Linear left = linear(6, 16), right = linear(4, 16), head = linear(16, 3);
  Variable forward(const Variable& a, const Variable& b) { return head(gelu(left(a) + right(b))); }
  void fields(nn::Fields& f) override {
    f("left", left, nn::cut::columns)("right", right, nn::cut::columns)("head", head, nn::cut::rows);
  }
};
/// A model without forward(). The first of its layers() is another model's only layer.
struct Appended : nn::Layer<Appended> {
  OneLayer first;
  nn::Linear last = linear(3, 3);
  void fields(nn::Fields& f) override { f("first", first)("last", last); }
  nn::LayerList layers() override { return nn::LayerList().append(first.layers()).add(last); }
};
/// A model whose two inputs only layers() takes.
struct OnlyLayers : nn::Layer<OnlyLayers> {
  TwoInputs inner;
  void fields(nn::Fields& f) override { f("inner", inner); }
  nn::LayerList layers() override { return inner.layers(); }
};

data::TensorDataset samples(int64_t count, uint64_t seed) {
  manual_seed(seed);
  const Tensor a = randn({count, 6}), b = randn({count, 4}), values = randn({count, 3});
  return data::TensorDataset(a, argmax(a.narrow(1, 0, 3), 1), {b}, {values});
}

using Values = std::map<std::string, std::vector<float>>;
struct Found {
  Values model;
  std::vector<std::pair<std::string, double>> values;
};
Values values_of(const nn::State& state) {
  Values all;
  for (const auto& [name, tensor] : state) all[name] = tensor.to_vector<float>();
  return all;
}

struct Row {
  const char* plan = "";
  int ranks = 0;
  int64_t accumulate = 4, steps = 0;
};
train::TrainOptions options(const Row& row) {
  train::TrainOptions o;
  o.plan = row.plan;
  o.parallel.ranks = row.ranks;
  o.parallel.accumulate = row.accumulate;
  o.batch = 4;
  o.epochs = 2;
  o.steps = row.steps;
  o.json = true;
  return o;
}

template <class M = TwoInputs>
Found run(const Row& row, const std::function<void(train::TrainerOptions&)>& change = {}) {
  Found found;
  const HeldOutput nowhere;
  train::start(options(row), "", [&](train::TrainJob& job) {
    manual_seed(5);
    M net;
    train::TrainerOptions t{.loss = loss,
                            .data = data::share(samples(64, 7)),
                            .evaluate = data::share(samples(30, 8)),
                            .metrics = {{"accuracy", accuracy}},
                            .evaluate_batch = 8,
                            .optimizer = optimizer_of<optim::AdamW>(optim::AdamWOptions{.lr = 0.02})};
    if (change) change(t);
    train::Trainer trainer(job, net, t);
    trainer.fit();
    const auto values = trainer.evaluate();
    const auto model = trainer.full_model();
    if (job.team().leads()) found = {values_of(model), values};
  });
  return found;
}

}  // namespace

TEST_CASE("several inputs and targets: a Trainer gives the same bits under any plan") {
  const Found one = run({});
  REQUIRE(one.values.size() == 2);
  CHECK(one.values[0].second < 3);
  for (const Row& row : std::vector<Row>{
           {"dp2", 2, 2}, {"dp4+zero3", 4, 1}, {"dp2+zero2", 2, 2}, {"pp2", 2, 4}, {"dp2+pp2+zero1", 4, 2}}) {
    const Found other = run(row);
    CHECK_MESSAGE(other.model == one.model, row.plan);
    CHECK_MESSAGE(other.values == one.values, row.plan);
  }
  CHECK(run({}, [](train::TrainerOptions& t) { t.loss = {}; }).model == one.model);  // that of layers()
  const auto by_batches = [](train::TrainerOptions& t) {
    t.data = nullptr;
    t.batches = [](int64_t step, int64_t micro, int64_t of) {
      const data::TensorDataset all = samples(64, 7);
      std::vector<int64_t> rows;
      for (int64_t i = 0; i < of; ++i) rows.push_back((16 * step + of * micro + i) % 64);
      return data::batch_of(all, rows);
    };
  };
  CHECK(run({"", 0, 4, 6}, by_batches).model == run({"dp2", 2, 2, 6}, by_batches).model);
  const auto near = [](const Values& a, const Values& b) {
    for (const auto& [name, values] : a) {
      REQUIRE(b.at(name).size() == values.size());
      for (size_t i = 0; i < values.size(); ++i) CHECK(std::abs(b.at(name)[i] - values[i]) < 1e-5);
    }
  };
  near(one.model, run({"tp2", 2}).model);
  // Without layers() a model is a single layer, which tensor-parallel ranks share all the same.
  near(run<OneLayer>({}).model, run<OneLayer>({"tp2", 2}).model);
  CHECK_ERROR(run<OneLayer>({"pp2", 2}), "pp2");
  // Without forward(), the first of layers() takes the inputs.
  const Found listed = run<OnlyLayers>({}), cut = run<OnlyLayers>({"pp2", 2});
  CHECK(listed.model == cut.model);
  CHECK(listed.values == one.values);
}

TEST_CASE("several inputs and targets: predictions have all targets") {
  for (const Row& row : std::vector<Row>{{}, {"dp2", 2, 2}, {"pp2", 2}}) {
    INFO(row.plan);
    const Found found = run(row, [](train::TrainerOptions& t) {
      t.preprocess_logits_for_metrics = [](const Variable& scores, const std::vector<Tensor>& targets) {
        CHECK(targets.size() == 2);
        return scores;
      };
      t.compute_metrics = [](const train::Predictions& p) {
        CHECK(p.label_ids.shape() == Shape{30});
        REQUIRE(p.more_label_ids.size() == 1);
        CHECK(p.more_label_ids[0].shape() == Shape{30, 3});
        const double both = loss(p.predictions, {p.label_ids, p.more_label_ids[0]}).item();
        return std::vector<std::pair<std::string, double>>{{"both", both}};
      };
    });
    REQUIRE(found.values.size() == 3);
    CHECK(found.values[2].second == doctest::Approx(found.values[0].second).epsilon(1e-5));
  }
}

TEST_CASE("several inputs and targets: who takes them") {
  const Tensor a = randn({2, 6}), b = randn({2, 4});
  Appended appended;
  CHECK(equal(appended.call_many({a, b}).tensor(), appended.last(appended.first(a, b)).tensor()));
  // The second argument of a Linear is a residual, and that of a GPT are targets.
  CHECK_ERROR(linear(6, 6).call_many({a, a}), "[Linear] expected a module whose forward() takes 2 variables");
  nn::GPT gpt({.vocab = 8, .context = 4, .layers = 1, .width = 8, .heads = 2});
  const Tensor tokens = zeros({1, 4}, {.dtype = i64});
  CHECK_ERROR(gpt.call_many({tokens, tokens}), "[GPT] expected a module whose forward() takes 2 variables");
  const train::Measure generic = [](const auto& out, const auto& target) { return mse_loss(out, target); };
  CHECK(generic(ones({2}), {zeros({2})}).item() == 1);
  CHECK(!train::Measure(nullptr));
}

TEST_CASE("several inputs and targets: what does not fit is said") {
  CHECK_ERROR(run({},
                  [](train::TrainerOptions& t) {
                    t.loss = [](const Variable& scores, const Tensor& target) { return cross_entropy(scores, target); };
                  }),
              "[Trainer] expected one target, as a function of it takes a Tensor, got 2; let it take a std::vector");
  CHECK_ERROR(run({}, [](train::TrainerOptions& t) { t.tokens = [](const Tensor& target) { return target.numel(); }; }),
              "expected one target");
  CHECK_ERROR(run({}, [](train::TrainerOptions& t) { t.forward = [](const Tensor& x) { return Variable(x); }; }),
              "[train_batch] expected one input for `forward`, got 2");
  CHECK_ERROR(run<Classifier>({}), "expected a module whose forward() takes 2 variables");
  CHECK_ERROR(run<Classifier>({"pp2", 2}), "expected 1 tensors, got 2; Item::takes of the first of layers()");
  const auto one_input = [](train::TrainerOptions& t) {
    const data::TensorDataset all = samples(64, 7);
    t.data = data::share(data::TensorDataset(all.inputs(), all.targets()));
    t.evaluate = nullptr;
  };
  CHECK_ERROR(run({}, one_input), "TwoInputs] expected a module whose forward() takes 1 variable");
  CHECK_ERROR(run({"pp2", 2}, one_input), "expected 2 tensors, got 1; Item::takes of the first of layers()");
  // cp cuts dim 1 of every tensor, which labels do not have.
  train::TrainOptions o = options({"cp2", 2, 4, 1});
  const HeldOutput nowhere;
  const auto train_cut = [](train::TrainJob& job) {
    Blocks net;
    train::TrainerOptions t{.loss = loss};
    t.batches = [](int64_t, int64_t, int64_t of) {
      return data::Example{zeros({of, 8, 3}), zeros({of}, {.dtype = i64}), {}, {zeros({of, 8, 2})}};
    };
    train::Trainer(job, net, t).fit();
  };
  CHECK_ERROR(
      train::start(o, "", train_cut),
      "[Trainer] expected inputs and targets with the same dim 1, which cp2 cuts, got (4, 8, 3) and, as target, (4)");
}

TEST_CASE("several inputs and targets: train_batch() and a loop give the same bits, and DDP the same values") {
  enum class By { train_batch, loop };
  const auto trained = [](const Row& row, By by) {
    Values found;
    train::TrainOptions o = options(row);
    o.epochs = 1;
    const HeldOutput nowhere;
    train::start(o, "", [&](train::TrainJob& job) {
      manual_seed(5);
      TwoInputs net;
      optim::SGD sgd(net.parameters(), {.lr = 0.1});
      auto [model, optimizer, loader, schedule] = train::prepare(job, net, sgd, data::share(samples(64, 7)));
      if (by == By::train_batch)
        for (int step = 0; step < 4; ++step) model.train_batch();
      else
        for (data::Example& batch : *loader) {
          const std::vector<Tensor> in = batch.inputs();
          REQUIRE(in.size() == 2);
          model.backward(loss(model(in[0], in[1]), batch.targets()));
          model.step();
        }
      CHECK(model.global_steps() == 4);
      const auto state = model.full_state().model;
      if (job.team().leads()) found = values_of(state);
    });
    return found;
  };
  const Values one = trained({}, By::loop);
  for (const Row& row :
       std::vector<Row>{{}, {"dp2", 2, 2}, {"dp2+zero1", 2, 2}, {"dp2+zero2", 2, 2}, {"dp4+zero3", 4, 1}})
    for (const By by : {By::train_batch, By::loop}) CHECK_MESSAGE(trained(row, by) == one, row.plan);
  const auto by_ddp = [](int ranks) {
    return on_ranks<Values>(ranks, [&](int rank) {
      manual_seed(5);
      TwoInputs net;
      optim::SGD sgd(net.parameters(), {.lr = 0.1});
      parallel::DistributedDataParallel ddp(net);
      const data::TensorDataset all = samples(64, 7);
      data::DataLoader loader(
          all, {.batch_size = 16 / ranks, .sampler = data::DistributedSampler(64, ranks, rank, {.shuffle = false})});
      for (auto& batch : loader) {
        const Variable out = ddp.call([&] { return net(batch.input, batch.more_inputs[0]); });
        loss(out, batch.targets()).backward();
        sgd.step();
        sgd.zero_grad();
      }
      return values_of(net.state());
    })[0];
  };
  const Values single = by_ddp(1), two = by_ddp(2);
  for (const auto& [name, values] : single)
    for (size_t i = 0; i < values.size(); ++i) CHECK(std::abs(two.at(name)[i] - values[i]) < 1e-5);
}

}  // namespace several
