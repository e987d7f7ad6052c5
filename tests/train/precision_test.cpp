// --precision: what bf16 does to losses, the default on a card, checkpoints across precisions.
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include "tests/messages.h"
#include "tests/temp_dir.h"
#include "tests/train/precision.h"

using namespace lockstep;
using namespace testing;

namespace {

double mean_of_last(const std::vector<double>& losses, int64_t count) {
  return std::accumulate(losses.end() - count, losses.end(), 0.) / double(count);
}

/// The table of tokens in a model's state.
Tensor table_of(const nn::State& state) {
  const auto found =
      std::find_if(state.begin(), state.end(), [](const auto& one) { return one.first == "tokens.weight"; });
  REQUIRE(found != state.end());
  return found->second;
}

}  // namespace

TEST_CASE("precision: after 125 steps of bf16 the losses are within 0.2 % of f32's") {
  struct Row {
    std::string name;
    nn::GPT::Options sizes;
    int64_t accumulate;
  };
  for (const Row& row :
       {Row{"GPT", sizes_of_gpt(), 1}, Row{"GPT", sizes_of_gpt(), 4}, Row{"Llama", sizes_of_llama(), 1}}) {
    train::TrainOptions o = precise("f32", 125);
    o.batch = 8 / row.accumulate, o.parallel.accumulate = row.accumulate;
    const std::vector<double> wide = train_precisely(row.sizes, o).losses;
    o.precision = "bf16";
    const std::vector<double> low = train_precisely(row.sizes, o).losses;
    const double expected = mean_of_last(wide, 25), found = mean_of_last(low, 25);
    CHECK(expected < 0.75 * wide[0]);
    CHECK(low != wide);
    CHECK_MESSAGE(std::abs(found / expected - 1) < 0.002, row.name, ", ", row.accumulate, " micro-batches: ", found,
                  " instead of ", expected);
    MESSAGE(row.name, ", ", row.accumulate, " micro-batches: ", 100 * (found / expected - 1), " %");
  }
}

TEST_CASE("precision: options and configuration may say the same, and nothing else") {
  const auto config = [](const std::string& precision, const std::vector<std::string>& set) {
    train::TrainOptions o = precise(precision, 1);
    o.given = {"precision"}, o.set = set;
    return message([&] { train::start(o, "", [](train::TrainJob& job) { job.config(); }); });
  };
  CHECK(config("bf16", {"bf16.enabled=true"}) == "(no error)");
  CHECK(contains(config("bf16", {"bf16.enabled=false"}), "ds bf16.enabled=false vs args --precision bf16=true"));
  CHECK(contains(config("f32", {"bf16.enabled=true"}),
                 "--precision f32 contradicts the configuration, where bf16.enabled is true"));
  CHECK(contains(config("bf16", {"fp16.enabled=true"}),
                 "--precision bf16 contradicts the configuration, where fp16.enabled is true"));
}

TEST_CASE("precision: a run goes on in another precision, and its whole model is f32") {
  struct Row {
    const char *first, *then;
  };
  for (const Row& row : {Row{"f32", "bf16"}, Row{"bf16", "f32"}, Row{"bf16", "bf16"}}) {
    const TempDir out;
    train::TrainOptions o = precise(row.first, 6);
    o.out = out.str();
    const PrecisionRun first = train_precisely(sizes_of_gpt(), o);
    // Master weights and parameters of f32 have digits that bf16 lacks.
    for (const auto& [name, tensor] : first.model) CHECK(tensor.dtype() == f32);
    const Tensor table = table_of(first.model);
    CHECK(table.to(bf16).to(f32).to_vector<float>() != table.to_vector<float>());
    nn::GPT again(sizes_of_gpt());
    train::load_model(again, out.str(), false);
    CHECK(table_of(again.state()).to_vector<float>() == table.to_vector<float>());
    o.precision = row.then, o.steps = 6, o.resume = true;
    const PrecisionRun same = train_precisely(sizes_of_gpt(), o);  // is done already: the model that the checkpoint has
    CHECK(same.losses.empty());
    CHECK(table_of(same.model).to_vector<float>() == table.to_vector<float>());
    o.steps = 12;
    const PrecisionRun more = train_precisely(sizes_of_gpt(), o);
    CHECK(more.losses.size() == 6);
    CHECK(more.losses.back() < first.losses.front());
  }
}

TEST_CASE("precision: convolutions and batch norm train in bf16, with statistics and losses in f32") {
  struct Net : nn::Sequential {
    Net()
        : Sequential(nn::Conv2d({.in = 1, .out = 4, .kernel = 3}), nn::BatchNorm({.channels = 4}), nn::Flatten(),
                     nn::Linear({.in = 4 * 36, .out = 3})) {}
  };
  manual_seed(4);
  const Tensor x = randn({32, 1, 8, 8});
  const auto samples = data::share(data::TensorDataset(x, argmax(x.view({32, 64}).narrow(1, 0, 3), 1)));
  std::map<std::string, std::vector<double>> found;
  for (const char* precision : {"f32", "bf16"}) {
    train::TrainOptions o = precise(precision, 0);
    o.epochs = 2;
    const HeldOutput nowhere;
    train::start(o, "", [&](train::TrainJob& job) {
      manual_seed(6);
      Net net;
      const auto loss = [](const Variable& scores, const Tensor& target) {
        const Variable one = cross_entropy(scores, target), hot = mse_loss(scores, zeros(scores.shape()));
        return add(one, mul_scalar(hot, 0.01));
      };
      train::Trainer trainer(job, net, {.loss = loss, .data = samples, .evaluate = samples});
      trainer.fit();
      for (const nn::NamedBuffer& b : net.named_buffers())
        if (is_floating(b.tensor.dtype())) CHECK_MESSAGE(b.tensor.dtype() == f32, b.name);
      CHECK(net.parameters()[0].dtype() == (std::string(precision) == "f32" ? f32 : bf16));
      for (const auto& [name, value] : trainer.evaluate()) found[precision].push_back(value);
    });
  }
  CHECK(found["bf16"] != found["f32"]);
  CHECK(found["bf16"][0] == doctest::Approx(found["f32"][0]).epsilon(0.05));
}
