// ctc_loss(): comparison with the sum over all alignments; gradients; rejected arguments.
#include "extensions/recurrent/ctc.h"

#include <doctest/doctest.h>

#include <cmath>

#include "autograd/gradcheck.h"
#include "tests/autograd/loss_inputs.h"
#include "tests/messages.h"

using namespace lockstep;

TEST_CASE("losses: CTC is the sum over all ways to say a target") {
  manual_seed(5);
  const int64_t steps = 5, classes = 3;
  const Variable x = sampled({steps, 4, classes});
  const std::vector<int64_t> lengths = {5, 4, 5, 2}, words = {2, 3, 0, 2};
  const Tensor target = integers({1, 2, 0, 1, 1, 2, 0, 0, 0, 2, 2, 0}, {4, 3});
  const auto logs = [&](const Variable& v) { return log_softmax(v, 2); };
  const std::vector<double> p = exp(logs(x).tensor()).to_vector<double>();
  std::vector<double> expected;
  for (int64_t i = 0; i < 4; ++i) {
    const auto all = target[i].to_vector<int64_t>();
    const std::vector<int64_t> wanted(all.begin(), all.begin() + words[size_t(i)]);
    double sum = 0;
    for (int64_t path = 0; path < int64_t(std::pow(classes, lengths[size_t(i)])); ++path) {
      double chance = 1;
      std::vector<int64_t> said;
      int64_t before = 0;
      for (int64_t t = 0, rest = path; t < lengths[size_t(i)]; ++t, rest /= classes) {
        const int64_t c = rest % classes;
        chance *= p[size_t((t * 4 + i) * classes + c)];
        if (c != 0 && c != before) said.push_back(c);
        before = c;
      }
      if (said == wanted) sum += chance;
    }
    expected.push_back(-std::log(sum));
  }
  const auto losses = ctc_loss(logs(x), target, lengths, words, {}, Reduction::none).tensor().to_vector<double>();
  for (size_t i = 0; i < 3; ++i) CHECK(losses[i] == doctest::Approx(expected[i]).epsilon(1e-12));
  CHECK(losses[3] == INFINITY);  // the pair 2, 2 needs three frames (a blank in between)
  const CtcOptions zero{.zero_infinity = true};
  CHECK(ctc_loss(logs(x), target, lengths, words, zero).item() ==
        doctest::Approx((losses[0] / 2 + losses[1] / 3 + losses[2]) / 4).epsilon(1e-12));
  const Tensor joined = integers({1, 2, 1, 1, 2, 2, 2}, {7});
  const auto of = [&](const Inputs& v) { return ctc_loss(logs(v[0]), joined, lengths, words, zero, Reduction::none); };
  CHECK(gradcheck(of, {x}) == "");
  CHECK(gradcheck([&](const Inputs& v) { return ctc_loss(v[0], joined, lengths, words, zero); }, {x}) == "");
  const Variable one = ctc_loss(logs(x).select(1, 1), target[1], {4}, {3}, {}, Reduction::none);
  CHECK(one.shape() == Shape{});
  CHECK(one.item() == losses[1]);
}

TEST_CASE("losses: CTC has no second derivative") {
  const Variable x = sampled({4, 1, 3}, -1, 1);
  const Variable loss = ctc_loss(log_softmax(x, 2), integers({1}, {1, 1}), {4}, {1});
  CHECK_ERROR_IS(grad(loss, {x}, {.create_graph = true}),
                 "[backward] the derivative of 'ctc_loss' cannot be differentiated again (create_graph); compose this "
                 "step from other operations");
}

TEST_CASE("losses: CTC rejects invalid arguments") {
  const Variable x(rand({2, 3}));
  const Tensor signs = integers({1, -1, 0, 1, 1, 1}, {2, 3});
  CHECK_REJECTED(ctc_loss, (x, signs, {2}, {2}, {.blank = 3}), "a blank in [0, 3), got 3");
  CHECK_REJECTED(ctc_loss, (x, signs, {2, 2}, {2}), "1 input lengths and target lengths, got 2 and 1");
  CHECK_REJECTED(ctc_loss, (x, integers({1, 2}, {2}), {2}, {3}), "targets i64 (1, S), or concatenated");
  CHECK_REJECTED(ctc_loss, (x, integers({1, 2}, {2}), {3}, {2}), "input lengths in [0, 2] and target");
  CHECK_REJECTED(ctc_loss, (x, integers({1, 0}, {2}), {2}, {2}),
                 "targets in [0, 3) without the blank 0, got 0 in sequence 0");
}
