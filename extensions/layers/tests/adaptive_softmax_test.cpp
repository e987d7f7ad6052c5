// AdaptiveLogSoftmaxWithLoss: its parameters, its probabilities, rejected calls. Values are golden cases
// (golden/called.safetensors).
#include "extensions/layers/adaptive_softmax.h"

#include <doctest/doctest.h>

#include "extensions/layers/tests/names_of.h"
#include "tests/messages.h"

using namespace lockstep;
using namespace lockstep::nn;

TEST_CASE("adaptive softmax: probabilities of all classes, and of the targets") {
  manual_seed(44);
  AdaptiveLogSoftmaxWithLoss scores({.in = 16, .classes = 20, .cutoffs = {4, 10}});
  CHECK(names_of(scores) == std::vector<std::string>{"head.weight", "tail.0.0.weight", "tail.0.1.weight",
                                                     "tail.1.0.weight", "tail.1.1.weight"});
  const Tensor rows = randn({50, 16}), classes = randint(0, 20, {50});
  const Variable all = scores.log_prob(rows);
  CHECK(allclose(sum(exp(all.tensor()), {1}), ones({50}), 1e-4, 1e-5));
  CHECK(allclose(gather(all.tensor(), 1, classes.unsqueeze(1)).squeeze(1), scores(rows, classes).output.tensor(), 1e-4,
                 1e-5));
  CHECK(equal(scores.predict(rows), argmax(all, 1)));
}

TEST_CASE("adaptive softmax: invalid arguments are rejected") {
  AdaptiveLogSoftmaxWithLoss scores({.in = 16, .classes = 20, .cutoffs = {4, 10}});
  CHECK_ERROR(AdaptiveLogSoftmaxWithLoss({.in = 8, .classes = 5, .cutoffs = {}}), "expected at least one cutoff");
  CHECK_ERROR(AdaptiveLogSoftmaxWithLoss({.in = 8, .classes = 5, .cutoffs = {3, 2}}),
              "expected increasing cutoffs from 1 to 4, got 2 after 3");
  CHECK_ERROR(AdaptiveLogSoftmaxWithLoss({.in = 2, .classes = 5, .cutoffs = {3}}), "expected a div_value that leaves");
  CHECK_ERROR(scores(zeros({2, 16}), Tensor::from<int64_t>({1, 20})), "expected targets in [0, 20), got 20");
  CHECK_ERROR(scores(zeros({2, 15}), Tensor::from<int64_t>({1, 2})), "expected input (N, 16) and target i64 (N)");
  CHECK_ERROR(scores.log_prob(zeros({16})), "expected input (N, 16), got (16)");
}
