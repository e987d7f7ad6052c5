// Named tensors: their columns under a Trainer, an Accelerator's loop over them, and padding with attention masks.
#include "extensions/hugging_face/columns.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "extensions/hugging_face/accelerator.h"
#include "extensions/hugging_face/arguments.h"
#include "extensions/hugging_face/padding.h"
#include "optim/optim.h"
#include "tests/messages.h"
#include "tests/models.h"
#include "tests/output.h"
#include "train/trainer.h"

using namespace lockstep;
using namespace testing;

namespace {

/// 64 samples of two inputs and two targets, and a tensor that no model takes.
struct Rows : data::Dataset<data::NamedTensors> {
  Tensor a, b;
  Rows() {
    manual_seed(7);
    a = randn({64, 6}), b = randn({64, 4});
  }
  int64_t size() const override { return 64; }
  data::NamedTensors get(int64_t i) const override {
    return {{"b", b[i]},
            {"id", Tensor::from<int64_t>({i}, {})},
            {"a", a[i]},
            {"label", argmax(a[i].narrow(0, 0, 3), 0)},
            {"value", b[i].narrow(0, 0, 3)}};
  }
};
struct TwoInputs : nn::Layer<TwoInputs> {
  nn::Linear left = linear(6, 3), right = linear(4, 3);
  Variable forward(const Variable& a, const Variable& b) { return left(a) + right(b); }
  void fields(nn::Fields& f) override { f("left", left)("right", right); }
};
Variable loss(const Variable& scores, const std::vector<Tensor>& targets) {
  return cross_entropy(scores, targets.at(0)) + mse_loss(scores, targets.at(1));
}

using Values = std::map<std::string, std::vector<float>>;
Values values_of(const nn::State& state) {
  Values all;
  for (const auto& [name, tensor] : state) all[name] = tensor.to_vector<float>();
  return all;
}

}  // namespace

TEST_CASE("columns: examples of named tensors, and names that are missing") {
  const data::ColumnDataset columns(Rows(), {"a", "b"}, {"label", "value"});
  CHECK(columns.size() == 64);
  const data::Example one = columns.get(5);
  CHECK(one.inputs().size() == 2);
  CHECK(one.more_inputs[0].shape() == Shape{4});
  CHECK(one.targets()[1].shape() == Shape{3});
  CHECK_ERROR(data::ColumnDataset(Rows(), {"a", "lable"}, {"value"}).get(0),
              "[NamedTensors] expected a tensor lable, got a, b, id, label, value");
  CHECK_ERROR(data::ColumnDataset(Rows(), {"a"}, {}), "expected names of inputs and of targets, got 1 and 0");
  const Tensor x = ones({2});
  CHECK_ERROR(data::collate(std::vector<data::NamedTensors>{{{"a", x}, {"b", x}}, {{"a", x}, {"c", x}}}),
              "[collate] expected the tensors a, b of the first sample, got a, c in sample 1");
  CHECK_ERROR(data::collate(std::vector<data::NamedTensors>{{{"a", x}, {"b", x}}, {{"a", x}}}), "got a in sample 1");
  CHECK_ERROR(data::collate(std::vector<data::NamedTensors>{{{"a", x}}, {{"a", ones({3})}}}),
              "[collate] a: expected samples like the first, f32(2), got f32(3) as sample 1");
}

TEST_CASE("columns: a loop over named tensors has the same bits on any number of ranks and ZeRO stage") {
  const auto trained = [](int ranks, int stage, const char* precision) {
    Values found;
    train::TrainOptions o;
    o.parallel.ranks = ranks;
    train::start(o, "", [&](train::TrainJob&) {
      manual_seed(5);
      TwoInputs net;
      optim::SGD sgd(net.parameters(), {.lr = 0.1});
      data::DataLoader batches(Rows(), {.batch_size = 4, .shuffle = true, .seed = 1});
      train::Accelerator acc({.mixed_precision = precision,
                              .gradient_accumulation_steps = 4 / ranks,
                              .deepspeed_config = str(R"({"zero_optimization": {"stage": )", stage, "}}")});
      auto [model, optimizer, loader] = acc.prepare(net, sgd, batches);
      for (auto& batch : loader) {
        auto hold = acc.accumulate(model);
        const Variable scores = model(batch.at("a"), batch.at("b"));
        acc.backward(loss(scores.to(f32), {batch.at("label"), batch.at("value")}));
        optimizer.step();
        optimizer.zero_grad();
      }
      const auto state = acc.engine().full_state().model;
      if (acc.is_main_process()) found = values_of(state);
    });
    return found;
  };
  const Values one = trained(1, 0, "no");
  for (const auto& [ranks, stage] : std::vector<std::pair<int, int>>{{1, 1}, {2, 0}, {2, 1}, {2, 2}, {2, 3}, {4, 3}})
    CHECK_MESSAGE(trained(ranks, stage, "no") == one, ranks, " ranks, stage ", stage);
  CHECK(trained(1, 2, "bf16") == trained(2, 2, "bf16"));  // both inputs become bf16
}

TEST_CASE("columns: TrainingArguments train on them") {
  std::vector<Values> found;
  for (const int ranks : {0, 2}) {
    const train::TrainingArguments args{.per_device_train_batch_size = 8 / std::max(1, ranks), .max_steps = 6};
    train::TrainOptions o = args.options();
    o.parallel.ranks = ranks, o.json = true;
    const HeldOutput nowhere;
    train::start(o, "", [&](train::TrainJob& job) {
      manual_seed(5);
      TwoInputs net;
      train::TrainerOptions t = args.trainer_options();
      t.loss = loss;
      t.data = t.evaluate = data::share(data::ColumnDataset(Rows(), {"a", "b"}, {"label", "value"}));
      train::Trainer trainer(job, net, t);
      trainer.fit();
      const auto model = trainer.full_model();
      const train::Predictions p = trainer.predict(data::ColumnDataset(Rows(), {"a", "b"}, {"label", "value"}));
      CHECK(p.predictions.shape() == Shape{64, 3});
      REQUIRE(p.more_label_ids.size() == 1);
      CHECK(equal(p.more_label_ids[0], Rows().b.narrow(1, 0, 3).contiguous()));
      if (job.team().leads()) found.push_back(values_of(model));
    });
  }
  REQUIRE(found.size() == 2);
  for (const auto& [name, values] : found[0])
    for (size_t i = 0; i < values.size(); ++i) CHECK(std::abs(found[1].at(name)[i] - values[i]) < 1e-5);
}

TEST_CASE("padding: further inputs become masks, and all targets are padded alike") {
  struct Texts : data::Dataset<data::Example> {
    int64_t size() const override { return 3; }
    data::Example get(int64_t i) const override {
      const Tensor ids = full({i + 1}, 7, {.dtype = i64}), mask = ones({i + 1});
      if (i == 2) return {ids, ids, {}, {ids}};
      return {ids, ids, {mask}, {ids}};
    }
  };
  const data::PaddedDataset padded(data::share(Texts()), {.input_pad = 9});
  const data::Example batch = *padded.get_batch(std::vector<int64_t>{0, 1});
  CHECK(batch.input.to_vector<int64_t>() == std::vector<int64_t>{7, 9, 7, 7});
  CHECK(batch.more_inputs.at(0).to_vector<float>() == std::vector<float>{1, 0, 1, 1});
  CHECK(batch.more_targets.at(0).to_vector<int64_t>() == std::vector<int64_t>{7, -100, 7, 7});
  CHECK_ERROR(
      padded.get_batch(std::vector<int64_t>{1, 2}),
      "[PaddedDataset] expected the same tensors in all samples, got no input 2 in some of sample 1 to sample 2");
}
