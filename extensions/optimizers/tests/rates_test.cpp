// Learning rates: the base from which schedules count, several schedules at once, groups that are added later, and
// invalid rates.
#include <doctest/doctest.h>

#include "autograd/ops.h"
#include "extensions/optimizers/schedules.h"
#include "optim/optim.h"
#include "tests/messages.h"

using namespace lockstep;
using namespace lockstep::optim;

namespace {

void check_rates(const std::vector<double>& got, const std::vector<double>& expected) {
  REQUIRE(got.size() == expected.size());
  for (size_t i = 0; i < got.size(); ++i) CHECK(got[i] == doctest::Approx(expected[i]).epsilon(1e-12));
}

}  // namespace

// The expected values are those of PyTorch 2.15, to twelve digits.
TEST_CASE("schedules that are stepped together multiply, also with set_lr() in between") {
  Variable w(ones({1}), true);
  SGD o({w}, {.lr = 1});
  // the rates before each call of step(i)
  const auto check = [&](const std::vector<double>& expected, const std::function<void(int i)>& step) {
    std::vector<double> rates;
    for (int i = 0; i < int(expected.size()); ++i) rates.push_back(o.lr()), step(i);
    check_rates(rates, expected);
  };
  SUBCASE("two") {
    LinearLR warm(o, {.start_factor = 0.1, .total_iters = 3});
    ExponentialLR decay(o, {.gamma = 0.9});
    check({0.1, 0.36, 0.567, 0.729, 0.6561, 0.59049}, [&](int) { warm.step(), decay.step(); });
    CHECK(o.initial_lr(0) == 1);
  }
  SUBCASE("one after the other") {
    LinearLR warm(o, {.start_factor = 0.1, .total_iters = 3});
    CosineAnnealingLR cosine(o, {.T_max = 10});
    const double pi = std::acos(-1.);
    check({0.1, 0.4, 0.7, 1, (1 + std::cos(pi / 10)) / 2, (1 + std::cos(pi / 5)) / 2},
          [&](int i) { i < 3 ? warm.step() : cosine.step(); });
  }
  SUBCASE("set_lr() in between") {
    StepLR steps(o, {.step_size = 4, .gamma = 0.1});
    check({1, 1, 0.5, 0.5, 0.05, 0.05}, [&](int i) {
      if (i == 1) o.set_lr(0.5);
      steps.step();
    });
  }
  SUBCASE("a plateau") {
    ReduceLROnPlateau plateau(o, {.factor = 0.5, .patience = 0});
    ExponentialLR decay(o, {.gamma = 0.9});
    check({1, 0.9, 0.405, 0.18225}, [&](int) { decay.step(), plateau.step(1.0); });
  }
  SUBCASE("annealing from the rate that the other schedule reached, down to its own floor") {
    ExponentialLR decay(o, {.gamma = 0.5});
    SWALR average(o, {.swa_lr = 0.05, .anneal_epochs = 2, .anneal_strategy = "linear"});
    check({1, 0.5, 0.25, 0.15, 0.05}, [&](int i) { i < 2 ? decay.step() : average.step(); });
  }
  SUBCASE("lists and chains of schedules, too") {
    SequentialLR list(
        o, {scheduled<ConstantLR>({.factor = 0.5, .total_iters = 9}), scheduled<ExponentialLR>({.gamma = 0.5})}, {3});
    check({0.5, 0.5, 0.25, 1, 0.5, 0.25}, [&](int i) {
      if (i == 1) o.set_lr(0.25);
      list.step();
    });
    ChainedScheduler chain(o, {scheduled<ExponentialLR>({.gamma = 0.5}), scheduled<ExponentialLR>({.gamma = 0.2})});
    CHECK(o.lr() == 0.125);
    chain.step();
    CHECK(o.lr() == doctest::Approx(0.0125).epsilon(1e-12));
  }
}

TEST_CASE("LambdaLR takes a function per group") {
  Variable v(ones({1}), true), w(ones({1}), true), late(ones({1}), true);
  SGD o(std::vector<SGD::Group>{{{v}, {.lr = 1}}, {{w}, {.lr = 0.5}}});
  const std::function<double(int64_t)> halving = [](int64_t t) { return std::pow(0.5, double(t)); },
                                       rising = [](int64_t t) { return 1 + double(t); };
  LambdaLR schedule(o, {halving, rising});
  std::vector<double> rates;
  for (int t = 0; t < 3; ++t) rates.push_back(o.lr(0)), rates.push_back(o.lr(1)), schedule.step();
  check_rates(rates, {1, 0.5, 0.5, 1, 0.25, 1.5});
  SGD other(std::vector<SGD::Group>{{{v}, {.lr = 1}}, {{w}, {.lr = 0.5}}});
  LambdaLR resumed(other, {halving, rising});
  resumed.load_state(schedule.state());
  check_rates({other.lr(0), other.lr(1)}, {0.125, 2});
  CHECK_ERROR(LambdaLR(o, {halving, rising, rising}), "[LambdaLR] expected one function or 2, one per group, got 3");
  CHECK_ERROR(LambdaLR(o, std::vector<std::function<double(int64_t)>>{}), "got 0");
  o.add_group({late}, {.lr = 1});
  CHECK_ERROR(schedule.step(), "[LambdaLR] expected a function for each group, got 2, and none for group 2");
}

TEST_CASE("enter(k + 1) starts a schedule where PyTorch's last_epoch = k does") {
  Variable w(ones({1}), true);
  const std::pair<const char*, MakeSchedule> rows[] = {
      {"StepLR", scheduled<StepLR>({.step_size = 2})},
      {"MultiStepLR", scheduled<MultiStepLR>({.milestones = {2, 4}})},
      {"ExponentialLR", scheduled<ExponentialLR>({.gamma = 0.5})},
      {"CosineAnnealingLR", scheduled<CosineAnnealingLR>({.T_max = 10})},
      {"CosineAnnealingWarmRestarts", scheduled<CosineAnnealingWarmRestarts>({.T_0 = 3, .T_mult = 2})},
      {"LinearLR", scheduled<LinearLR>({})},
      {"ConstantLR", scheduled<ConstantLR>({})},
      {"PolynomialLR", scheduled<PolynomialLR>({.total_iters = 10})},
      {"OneCycleLR", scheduled<OneCycleLR>({.max_lr = 2, .total_steps = 20})},
      {"CyclicLR", scheduled<CyclicLR>({.base_lr = 0.1, .max_lr = 0.5, .step_size_up = 4})},
      {"WarmupLR", scheduled<WarmupLR>({.warmup_num_steps = 5})},
      {"SequentialLR",
       [](Optimizer& o) {
         return std::make_unique<SequentialLR>(
             o, std::vector{scheduled<LinearLR>({}), scheduled<ExponentialLR>({.gamma = 0.5})},
             std::vector<int64_t>{3});
       }},
  };
  for (const auto& [name, make] : rows) {
    CAPTURE(std::string(name));
    SGD a({w}, {.lr = 1, .momentum = 0.9}), b({w}, {.lr = 1, .momentum = 0.9});
    const auto stepped = make(a), entered = make(b);
    for (int t = 0; t < 5; ++t) stepped->step();
    entered->enter(5);  // last_epoch = 4
    for (int t = 5; t < 9; ++t) {
      CHECK(b.lr() == doctest::Approx(a.lr()).epsilon(1e-12));
      CHECK(b.get(0, "momentum") == a.get(0, "momentum"));
      CHECK((stepped->last_step() == t && entered->last_step() == t));
      stepped->step(), entered->step();
    }
  }
}

TEST_CASE("a schedule counts from the base, whatever the rate is by then, and goes on from a state") {
  Variable w(ones({1}), true);
  SGD first({w}, {.lr = 1});
  StepLR before(first, {.step_size = 2});
  ExponentialLR other(first, {.gamma = 0.5});
  for (int i = 0; i < 5; ++i) before.step(), other.step();
  const OptimizerState saved = first.state();
  CHECK(saved.numbers.at("group.0.initial_lr") == 1);

  SGD single({w}, {.lr = 3});
  single.load_state(saved);
  StepLR made_after(single, {.step_size = 2});
  CHECK(single.lr() == first.lr());
  made_after.enter(5);
  CHECK(single.lr() == doctest::Approx(0.01).epsilon(1e-12));

  SGD second({w}, {.lr = 3});
  StepLR again(second, {.step_size = 2});
  ExponentialLR decay(second, {.gamma = 0.5});
  second.load_state(saved), again.load_state(before.state()), decay.load_state(other.state());
  for (int i = 0; i < 4; ++i) {
    CHECK(second.lr() == doctest::Approx(first.lr()).epsilon(1e-12));
    before.step(), other.step(), again.step(), decay.step();
  }
  // Resuming with more steps than the saved run: the new formula applies at once.
  const auto falling = [](Optimizer& o, double steps) {
    return LambdaLR(o, [steps](int64_t t) { return 1 - double(t) / steps; });
  };
  SGD few({w}, {.lr = 1}), many({w}, {.lr = 1});
  LambdaLR of_few = falling(few, 4), of_many = falling(many, 8);
  of_few.step(), of_few.step();
  many.load_state(few.state()), of_many.load_state(of_few.state());
  CHECK(many.lr() == 0.75);

  // A rate set by hand affects its group only.
  Variable v(ones({1}), true);
  SGD two({w}, {.lr = 1}), loaded({w}, {.lr = 1});
  for (SGD* o : {&two, &loaded}) o->add_group({v}, {.lr = 2});
  StepLR of_two(two, {.step_size = 2}), of_loaded(loaded, {.step_size = 2});
  two.set(1, "lr", 0.25);
  of_loaded.load_state(of_two.state());
  CHECK(loaded.lr(0) == 1);
  CHECK(loaded.lr(1) == 0.25);

  auto old = before.state();  // the state of an older version, which did not save rates
  old.erase("lr.0");
  again.load_state(old);
  CHECK(second.lr() == doctest::Approx(1e-4).epsilon(1e-12));
}

TEST_CASE("groups that are added after the schedule take part") {
  const auto run = [](const auto& make) {
    Variable a(ones({1}), true), b(ones({1}), true), c(ones({1}), true);
    SGD o({a}, {.lr = 1});
    auto schedule = make(o);
    o.add_group({b}, {.lr = 0.5});
    std::vector<double> rates;
    for (int i = 0; i < 3; ++i) {
      if (i == 2) o.add_group({c}, {.lr = 0.25});
      schedule.step();
      for (int g = 0; g < o.group_count(); ++g) rates.push_back(o.lr(g));
    }
    CHECK(schedule.state().count("base.2"));
    return rates;
  };
  check_rates(run([](Optimizer& o) { return StepLR(o, {.step_size = 1}); }),
              {0.1, 0.05, 0.01, 0.005, 0.001, 0.0005, 0.025});
  check_rates(run([](Optimizer& o) { return LambdaLR(o, [](int64_t t) { return 1 / double(t + 1); }); }),
              {0.5, 0.25, 1. / 3, 0.5 / 3, 0.25, 0.125, 0.0625});
  Variable a(ones({1}), true), b(ones({1}), true);
  SGD o({a}, {.lr = 1, .momentum = 0.9});
  CyclicLR cycle(o, {.base_lr = std::vector<double>{0.1}, .max_lr = 1, .step_size_up = 4});
  LRRangeTest range(o, {.lr_range_test_min_lr = std::vector<double>{0.1}});
  o.add_group({b}, {.lr = 0.5});
  cycle.step(), range.step();
  CHECK(o.lr(1) == o.lr(0));
  SGD two(std::vector<SGD::Group>{{{a}, {.lr = 1}}, {{b}, {.lr = 1}}});
  WarmupLR warm(two, {.warmup_min_lr = std::vector<double>{0, 0.5}, .warmup_num_steps = 4});
  two.add_group({Variable(ones({1}), true)}, {.lr = 1});
  CHECK_ERROR(warm.step(), "got 2 values, and none for group 2; add groups before");
  CHECK_ERROR(two.lr(3), "expected a group in [0, 3), got 3");
  CHECK_ERROR(SGD(std::vector<SGD::Group>{}), "at least one group of parameters, got none");
}

TEST_CASE("an invalid rate is rejected when it is set") {
  Variable w(ones({1}), true);
  SGD o({w}, {.lr = 0.1});
  for (const double bad : {double(NAN), -0.1, double(INFINITY)}) {
    const auto refuses = [&](const std::function<void()>& fn) {
      CHECK(contains(message(fn), "expected a rate lr >= 0 that is finite, got "));
      CHECK(o.lr() == 0.1);
    };
    refuses([&] { o.set_lr(bad); });
    refuses([&] { LambdaLR(o, [bad](int64_t) { return bad; }); });
    refuses([&] {
      OptimizerState state = o.state();
      state.numbers["group.0.lr"] = bad;
      o.load_state(state);
    });
  }
  for (const auto& [steps, part, three] :
       {std::tuple<int64_t, double, bool>{10, 0.1, false}, {2, 0.5, false}, {4, 0.25, true}, {10, 0.1, true}}) {
    const OneCycleLR::Options options{
        .max_lr = 0.1, .total_steps = steps, .pct_start = part, .cycle_momentum = false, .three_phase = three};
    CHECK_ERROR(OneCycleLR(o, options), "expected at least one step in each phase, got none in phase 1 of");
  }
  CHECK(o.lr() == 0.1);
}

TEST_CASE("OneCycleLR takes total_steps calls of step(), and no more") {
  for (const char* strategy : {"cos", "linear"}) {
    for (const bool three : {false, true}) {
      for (const int64_t steps : {1, 4, 10}) {
        Variable w(ones({1}), true);
        SGD o({w}, {.lr = 0.1});
        OneCycleLR s(o, {.max_lr = 1,
                         .total_steps = steps,
                         .anneal_strategy = strategy,
                         .cycle_momentum = false,
                         .three_phase = three});
        for (int64_t i = 0; i + 1 < steps; ++i) s.step();
        const double last = o.lr();
        s.step();
        CHECK(o.lr() == last);
        CHECK_ERROR(s.step(), str("at most ", steps, " calls of step()"));
      }
    }
  }
}
