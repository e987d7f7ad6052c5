// Common mistakes at run time, and the error message for each.
#include <doctest/doctest.h>

#include "nn/nn.h"
#include "optim/optim.h"
#include "tests/devices.h"
#include "tests/messages.h"

using namespace lockstep;

TEST_CASE("mistakes: each message names the expected value, the actual one, and a remedy") {
  const OnCpu on_cpu;  // on a device, kernels find wrong values and name themselves
  const Variable w(ones({3, 4}), true), vector(ones({4}), true);
  const Tensor x = ones({2, 3}), labels = Tensor::from<int64_t>({0, 1});
  nn::Linear layer({.in = 4, .out = 3});
  CHECK_ERROR_IS(add(ones({2, 3}), ones({2, 4})),
                 "[add] expected shapes that broadcast, got (2, 3) and (2, 4); reshape or expand one of them");
  CHECK_ERROR_IS(matmul(x, w.t()),
                 "[matmul] expected the inner sizes to agree, got (2, 3) and (4, 3); transpose or reshape one of them");
  CHECK_ERROR_IS(add(x, x.to(f64)), "[add] expected operands of one dtype, got f32 and f64; convert with .to(dtype)");
  CHECK_ERROR_IS(mean(labels), "[mean] expected a floating dtype, got i64; convert it with .to(f32)");
  CHECK_ERROR_IS(x.t().view({6}),
                 "[view] cannot view shape (3, 2) with strides (1, 3) as (6) without a copy; use reshape");
  CHECK_ERROR_IS(x.reshape({4, 2}),
                 "[reshape] expected a shape of 6 elements (one size may be -1) for (2, 3), got (4, 2)");
  CHECK_ERROR_IS(softmax(x, 2), "[softmax] expected a dim from -2 to 1, got 2");
  CHECK_ERROR_IS(x.select(0, 2), "[select] expected an index from -2 to 1, got 2");
  CHECK_ERROR_IS(cat({x, ones({2, 2})}, 0),
                 "[cat] expected shapes that agree outside dim 0, got (2, 3) and (2, 2); reshape or slice them");
  CHECK_ERROR_IS(x.item(), "[item] expected a tensor of one element, got shape (2, 3); use to_vector()");
  CHECK_ERROR_IS((w * w).backward(),
                 "[backward] expected a gradient for a result of shape (3, 4) (only a result of one element may omit "
                 "it); pass one");
  CHECK_ERROR_IS(
      sum(Variable(x)).backward(),
      "[backward] this value does not require grad; was it computed in a NoGrad scope, or from data only? Compute it "
      "outside such a scope, from a variable that requires grad");
  CHECK(message([&] {
          const Variable loss = sum(w * w);
          loss.backward();
          loss.backward();
        }) ==
        "[backward] the graph of 'sum' was freed by an earlier backward; pass retain_graph = true to the first one");
  CHECK(message([&] {
          Variable p = w;
          add_scalar_(p, 1);
        }) == "[add_scalar_] a leaf that requires grad cannot be changed in place; use a NoGrad scope or detach()");
  CHECK(message([&] {
          Variable h = w * 2.0;
          const Variable loss = sum(exp(h) * h);
          add_scalar_(h, 1);
          loss.backward();
        }) ==
        "[mul] a tensor of shape (3, 4) saved for its gradient was changed in place by 'add_scalar_' (version 0 was "
        "saved, it is now 1); use the out-of-place operation, or clone() before");
  CHECK(message([&] {
          const Variable h = w * 2.0;
          sum(h).backward();
          h.grad();
        }) == "[grad] expected a leaf, got the output of 'mul_scalar'; call retain_grad() on it before backward");
  CHECK_ERROR_IS(
      grad(sum(w * 2.0), {vector}),
      "[grad] no output depends on input 0; leave it out, or pass allow_unused = true for an undefined gradient");
  CHECK_ERROR_IS(
      layer(Variable(ones({2, 5}))),
      "[linear] expected an input (..., 4) for weight (3, 4), got (2, 5); reshape the input, or change the weight");
  CHECK_ERROR_IS(
      nn::MultiHeadAttention({.embed = 10, .heads = 3}),
      "[MultiHeadAttention] expected heads to divide embed 10, or a head_size > 0, got heads 3 and head_size 0");
  CHECK_ERROR_IS(nn::Conv2d({.in = 3, .out = 8, .kernel = 3})(Variable(ones({1, 1, 8, 8}))),
                 "[conv2d] expected an input with 3 channels (weight (8, 3, 3, 3), groups 1), got (1, 1, 8, 8); change "
                 "the weight, or groups");
  CHECK_ERROR_IS(
      nn::Conv2d({.in = 1, .out = 1, .kernel = 5})(Variable(ones({1, 1, 3, 3}))),
      "[conv2d] expected a kernel that fits the padded input, got weight (1, 1, 5, 5), dilation (1, 1), padding (0, "
      "0) for input (1, 1, 3, 3); use more padding, or a smaller kernel");
  CHECK_ERROR_IS(nn::Embedding({.num = 4, .dim = 2})(Tensor::from<int64_t>({4})),
                 "[embedding] expected indices in [0, 4), got 4 at position 0; correct the indices");
  CHECK_ERROR_IS(
      nn::BatchNorm1d({.channels = 3})(Variable(ones({1, 3}))),
      "[batch_norm] expected more than 1 value per channel when training, got 1 in shape (1, 3); give a larger batch");
  CHECK_ERROR_IS(
      cross_entropy(x, Variable(ones({2}))),
      "[cross_entropy] expected probabilities of the logits' shape (2, 3) (or i64 class indices of shape (2)), got "
      "f32 (2); convert or reshape the target");
  CHECK_ERROR_IS(cross_entropy(x, Tensor::from<int64_t>({0, 3})),
                 "[cross_entropy] expected targets in [0, 3), got 3 in row 1; correct the targets");
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
