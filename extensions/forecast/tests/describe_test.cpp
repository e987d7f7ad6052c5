// A program that is asked to describe what it trains.
#include <doctest/doctest.h>

#include <filesystem>

#include "extensions/forecast/model_costs.h"
#include "tests/engine/util.h"
#include "tests/environment.h"
#include "train/trainer.h"

using namespace lockstep;
using namespace testing;

namespace {

Variable loss(const Variable& scores, const Tensor& target) { return cross_entropy(scores, target); }

train::TrainOptions options(int ranks, int64_t accumulate) {
  train::TrainOptions o;
  o.parallel.ranks = ranks, o.parallel.accumulate = accumulate;
  o.batch = 4, o.epochs = 2;
  return o;
}

}  // namespace

TEST_CASE("a program with LOCKSTEP_DESCRIBE writes a description of its training and trains nothing") {
  const TempDir folder;
  const std::string file = folder / "model.json";
  const EnvironmentVariable asked("LOCKSTEP_DESCRIBE", file);
  for (const bool by_trainer : {true, false}) {
    for (const int ranks : {1, 2}) {
      std::filesystem::remove(file);
      train::TrainOptions o = options(ranks, 2);
      o.plan = "pp2+zero1", o.out = folder / "run";  // options of a training that must not start
      bool went_on = false;
      train::start(o, "", [&](train::TrainJob& job) {
        Classifier net;
        optim::SGD sgd(net.parameters(), {.lr = 0.1, .momentum = 0.5});
        if (by_trainer) train::Trainer(job, net, {.loss = loss, .data = data::share(samples())}).fit();
        else train::prepare(job, net, sgd, data::share(samples()));
        went_on = true;
      });
      CHECK(!went_on);
      CHECK(!std::filesystem::exists(o.out));
      const data::Json said = data::read_json(file);
      CHECK(said.at("plan") == data::Json("pp2+zero1"));
      const data::Json& config = said.at("config");
      CHECK(config.at("optimizer").at("type") == data::Json(by_trainer ? "AdamW" : "SGD"));
      CHECK(config.at("zero_optimization").at("stage") == data::Json(1));
      CHECK(config.at("gradient_accumulation_steps") == data::Json(2));
      const engine::ModelShape shape = engine::model_shape_from(said.at("model"), "model");
      REQUIRE(shape.list.size() == 2);
      CHECK(shape.numel() == 6 * 16 + 16 + 16 * 3 + 3);
      CHECK(shape.list[0].measured == 2 * 6 * 16);
      CHECK(shape.list[0].out == 16);
      CHECK(shape.list[1].forward > 0);
      CHECK(shape.parameters[0].sharded(2).shape == Shape{8, 6});
    }
  }
  CHECK_ERROR(train::start(options(1, 1), "", [](train::TrainJob&) {}),
              "ended without creating a train::Trainer or calling train::prepare");
  std::filesystem::remove(file);
  Classifier net;
  optim::SGD sgd(net.parameters(), {.lr = 0.1});
  const train::Team team(nullptr);
  train::TrainJob single({}, team);  // this program does not call start()
  CHECK_ERROR(train::prepare(single, net, sgd), "asked to describe what it trains, and did");
  CHECK(data::read_json(file).at("config").at("optimizer").at("type") == data::Json("SGD"));
}
