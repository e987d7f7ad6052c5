// Traces of an engine's steps: the record of a forward ends before its backward begins, whether the engine or the user
// runs the loop. A rank's waits in collectives have records of their own.
#include <algorithm>

#include "data/json.h"
#include "tests/engine/util.h"
#include "trace/trace.h"

using namespace lockstep;
using namespace testing;

namespace {

struct Span {
  std::string name, category;
  double begin, end;  // microseconds
};

/// Runs `run` on one rank; returns the records of its trace, sorted by their beginning.
std::vector<Span> traced(const std::function<void()>& run) {
  const TempDir folder;
  dist::spawn(1, [&](int) {
    trace::start(folder.str());
    run();
    trace::stop();
  });
  std::vector<Span> all;
  const data::Json records = data::read_json(folder / "rank-0.json");
  for (const data::Json& one : records.as_array()) {
    if (one.at("ph").as_string() != "X") continue;
    const double begin = one.at("ts").as_number();
    all.push_back({one.at("name").as_string(), one.at("cat").as_string(), begin, begin + one.at("dur").as_number()});
  }
  std::ranges::sort(all, {}, &Span::begin);
  return all;
}

/// Each forward ends before the next backward or optimizer step begins.
void check_forwards(const std::vector<Span>& spans, const std::vector<std::string>& names) {
  std::vector<std::string> found;
  for (const Span& forward : spans) {
    if (forward.category != "forward") continue;
    found.push_back(forward.name);
    CHECK(forward.end > forward.begin);
    for (const Span& other : spans)
      if (other.begin > forward.begin && (other.category == "backward" || other.category == "optimizer"))
        CHECK(other.begin >= forward.end);
    CHECK(std::ranges::any_of(spans, [&](const Span& one) {
      return one.category == "operation" && one.begin >= forward.begin && one.end <= forward.end;
    }));
  }
  CHECK(found == names);
}

const std::vector<std::string> two_steps{"forward 0", "forward 1", "forward 0", "forward 1"};

}  // namespace

TEST_CASE(
    "trace of an engine: in train_batch(), a forward's record ends before the backward and the optimizer step begin") {
  const auto steps = [] {
    engine::EngineBase engine(
        {.model = make_net(), .loss_fn = loss_of_scores},
        {.optimizer = make_adamw, .training_data = data::share(samples()), .config = config_of(0, 2), .log = quiet});
    for (int step = 0; step < 2; ++step) engine.train_batch();
  };
  check_forwards(traced(steps), two_steps);
}

TEST_CASE("trace of an engine: the same in a user's loop, and none in evaluation") {
  const auto loop = [](bool in_evaluation) {
    NetEngine n({.optimizer = make_adamw, .config = config_of(0, 2), .log = quiet});
    for (int64_t micro = 0; micro < 4; ++micro) {
      if (!in_evaluation) {
        n.train_once();
        continue;
      }
      const NoGrad no_grad;
      n.loss();
    }
  };
  check_forwards(traced([&] { loop(false); }), two_steps);
  check_forwards(traced([&] { loop(true); }), {});  // evaluation is not recorded as a forward
}

TEST_CASE("trace of an engine: a rank's wait in a collective has a record of its own, also inside of a forward") {
  const TempDir folder;
  dist::spawn(2, [&](int rank) {
    trace::start(folder.str(), {.rank = rank, .ranks = 2});
    {
      const trace::Scope forward("forward", trace::Category::forward);
      dist::world().all_reduce(ones({8}));
    }
    dist::world().barrier();
    trace::stop();
  });
  for (const char* file : {"rank-0.json", "rank-1.json"}) {
    int waits = 0;
    const data::Json records = data::read_json(folder / file);
    for (const data::Json& one : records.as_array()) {
      const data::Json* category = one.find("cat");
      waits += category && category->as_string() == "wait";
    }
    CHECK(waits == 2);  // the all-reduce and the barrier
  }
}
