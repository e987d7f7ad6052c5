// Common mistakes at run time, and the error message for each.
#include <doctest/doctest.h>

#include "nn/nn.h"
#include "optim/optim.h"
#include "tests/devices.h"
#include "tests/messages.h"

using namespace lockstep;

TEST_CASE("mistakes: each message names the expected value, the actual one, and a remedy") {
  const OnCpu on_cpu;  // on a device, kernels find wrong values and name themselves
  const Variable w(ones({3, 4}), true);
  const Tensor x = ones({2, 3});
  nn::Linear layer({.in = 4, .out = 3});
  CHECK_ERROR_IS(add(ones({2, 3}), ones({2, 4})),
                 "[add] expected shapes that broadcast, got (2, 3) and (2, 4); reshape or expand one of them");
  CHECK_ERROR_IS(x.t().view({6}),
                 "[view] cannot view shape (3, 2) with strides (1, 3) as (6) without a copy; use reshape");
  CHECK_ERROR_IS(x.reshape({4, 2}),
                 "[reshape] expected a shape of 6 elements (one size may be -1) for (2, 3), got (4, 2)");
  CHECK_ERROR_IS(softmax(x, 2), "[softmax] expected a dim from -2 to 1, got 2");
  CHECK_ERROR_IS(
      (w * w).backward(),
      "[backward] expected a gradient for a result of shape (3, 4) (only a result of one element may omit it), got "
      "none; pass one");
  CHECK_ERROR_IS(
      sum(Variable(x)).backward(),
      "[backward] this value does not require grad; was it computed in a NoGrad scope, or from data only? Compute it "
      "outside such a scope, from a variable that requires grad");
  const Variable squares = sum(w * w);
  squares.backward();
  CHECK_ERROR_IS(
      squares.backward(),
      "[backward] the graph of 'sum' was freed by an earlier backward; pass retain_graph = true to the first one");
  Variable p = w;
  CHECK_ERROR_IS(add_scalar_(p, 1),
                 "[add_scalar_] a leaf that requires grad cannot be changed in place; use a NoGrad scope or detach()");
  Variable h = w * 2.0;
  const Variable loss = sum(exp(h) * h);
  add_scalar_(h, 1);
  CHECK_ERROR_IS(
      loss.backward(),
      "[mul] a tensor of shape (3, 4) saved for its gradient was changed in place by 'add_scalar_' (version 0 was "
      "saved, it is now 1); use the out-of-place operation, or clone() before");
  const Variable twice = w * 2.0;
  sum(twice).backward();
  CHECK_ERROR_IS(twice.grad(),
                 "[grad] expected a leaf, got the output of 'mul_scalar'; call retain_grad() on it before backward");
  CHECK_ERROR_IS(
      nn::MultiHeadAttention({.embed = 10, .heads = 3}),
      "[MultiHeadAttention] expected heads to divide embed 10, or a head_size > 0, got heads 3 and head_size 0");
  CHECK_ERROR_IS(
      nn::Conv2d({.in = 1, .out = 1, .kernel = 5})(Variable(ones({1, 1, 3, 3}))),
      "[conv2d] expected a kernel that fits the padded input, got weight (1, 1, 5, 5), dilation (1, 1), padding (0, "
      "0) for input (1, 1, 3, 3); use more padding, or a smaller kernel");
  CHECK_ERROR_IS(optim::SGD({w}, {.lr = -1}), "[SGD] expected lr in [0, inf), got -1");
  CHECK_ERROR_IS(optim::AdamW(std::vector<Variable>{}, {}),
                 "[AdamW] expected at least one parameter, got an empty list; name the model's layers in its fields()");
  CHECK_ERROR_IS(optim::SGD({w, w}, {.lr = 1}),
                 "[SGD] a parameter of shape (3, 4) was given twice; leave one of them out");
  CHECK_ERROR_IS(
      layer.load_state(nn::Linear({.in = 4, .out = 2}).state()),
      "[load_state] the state does not fit this Linear; nothing was changed\n wrong:\n  weight: expected shape (3, "
      "4), got (2, 4)\n  bias: expected shape (3), got (2)\nload a state of the same module");
  CHECK_ERROR_IS(nn::Dropout({.p = 1.5}), "[Dropout] expected p in [0, 1], got 1.5");
}
