// What a Trainer writes through the section "summary": curves for TensorBoard, and the states of its ranks.
#include "extensions/summary/section.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include "extensions/summary/status.h"
#include "extensions/summary/tests/events.h"
#include "extensions/summary/top.h"
#include "optim/optim.h"
#include "tests/messages.h"
#include "tests/models.h"
#include "tests/output.h"
#include "train/job.h"
#include "train/trainer.h"

using namespace lockstep;
using namespace testing;

namespace {

/// Trains on threads for so many steps of 4 samples, with an evaluation after every second one.
void train_for(train::TrainOptions o, int64_t steps) {
  o.batch = 4, o.steps = steps, o.eval_every = 2, o.json = true;
  const HeldOutput nowhere;
  train::start(o, "", [&](train::TrainJob& job) {
    manual_seed(5);
    Classifier net;
    manual_seed(7);
    const Tensor x = randn({64, 6});
    const auto samples = data::share(data::TensorDataset(x, argmax(x.narrow(1, 0, 3), 1)));
    train::Trainer(job, net,
                   {.loss = [](const Variable& y, const Tensor& target) { return cross_entropy(y, target); },
                    .data = samples,
                    .evaluate = samples})
        .fit();
  });
}

std::map<std::string, std::vector<std::pair<int64_t, float>>> curves_in(const TempDir& dir, const std::string& folder) {
  std::map<std::string, std::vector<std::pair<int64_t, float>>> all;
  for (const EventValue& value : values_in(dir, folder)) all[value.tag].emplace_back(value.step, value.value.single(2));
  return all;
}

std::vector<data::Json> lines_of(const std::string& path) {
  std::vector<data::Json> all;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) all.push_back(data::parse_json(line, path));
  return all;
}

}  // namespace

TEST_CASE("summary: tags of a step's values") {
  for (const auto& [name, tag] :
       std::vector<std::pair<std::string, std::string>>{{"loss", "train/loss"},
                                                        {"lr", "train/lr"},
                                                        {"val_loss", "val/loss"},
                                                        {"ema_val_accuracy", "ema_val/accuracy"},
                                                        {"value", "train/value"}})
    CHECK(engine::summary_tag(name, "val") == tag);
}

TEST_CASE("summary: a Trainer's curves are the lines of metrics.jsonl, on any number of ranks") {
  for (const int ranks : {0, 1, 2, 4}) {
    const TempDir dir;
    train::TrainOptions o;
    o.out = dir / "run", o.set = {"summary.folder=" + (dir / "tb")}, o.parallel.ranks = ranks;
    train_for(o, 5);
    const auto curves = curves_in(dir, "tb");
    const auto lines = lines_of(dir / "run/metrics.jsonl");
    REQUIRE(lines.size() == 5);
    for (const char* name : {"loss", "lr", "grad_norm"}) {
      const auto& curve = curves.at(std::string("train/") + name);
      REQUIRE(curve.size() == 5);
      for (size_t i = 0; i < 5; ++i)
        CHECK((curve[i].first == int64_t(i) + 1 && curve[i].second == float(lines[i].at(name).as_number())));
    }
    // Evaluations after steps 2 and 4, and the one at the end of the run, which metrics.jsonl lacks.
    const auto& evaluated = curves.at("val/loss");
    REQUIRE(evaluated.size() == 3);
    CHECK((evaluated[0].first == 2 && evaluated[0].second == float(lines[1].at("val_loss").as_number())));
    CHECK(evaluated[1].first == 4);
    CHECK(evaluated[2].first == 5);
    CHECK(curves.count("config/text_summary") == 1);
    CHECK(curves.count("train/step") == 0);
    CHECK(std::distance(std::filesystem::directory_iterator(dir / "tb"), {}) == 1);  // one rank writes

    for (int rank = 0; rank < std::max(ranks, 1); ++rank) {
      const auto status = read_status(dir / "run", rank);
      REQUIRE(status);
      CHECK((status->rank == rank && status->ranks == std::max(ranks, 1)));
      CHECK((status->step == 5 && status->steps == 5 && status->ended));
      CHECK((status->units == 4 * std::max(ranks, 1) && status->unit == "samples"));
      CHECK((status->memory > 0 && status->peak >= status->memory));
      CHECK((status->in_collectives >= 0 && status->in_collectives <= 1));
    }
    const RunView view(dir / "run");
    CHECK_FALSE(view.is_running());
    CHECK(view.step() == 5);
    CHECK(contains(view.table(), "  ended\nstep 5/5"));
    CHECK(contains(view.table(), "val_loss"));
  }
}

TEST_CASE("summary: a resumed run tells TensorBoard from which step on it repeats") {
  const TempDir dir;
  train::TrainOptions o;
  o.out = dir / "run", o.set = {"summary.folder=" + (dir / "tb")};
  train_for(o, 3);
  o.resume = true;
  train_for(o, 6);
  std::vector<int64_t> purged;
  for (const ProtoMessage& event : events_in(dir, "tb"))
    if (event.has(7)) purged.push_back(event.integer(2));
  CHECK(purged == std::vector<int64_t>{4});
  CHECK(curves_in(dir, "tb").at("train/loss").size() == 6);
}

TEST_CASE("summary: without a folder nothing is written") {
  const TempDir dir;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(dir.path);
  train_for({}, 2);
  CHECK(dir.list() == "");
  std::filesystem::current_path(before);
  train::TrainOptions o;
  o.set = {"summary.folder=" + dir.write("file", "") + "/tb"};
  CHECK_ERROR(train_for(o, 2), "cannot make this folder");
}
