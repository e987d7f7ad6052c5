// Common mistakes at run time, and the error message for each.
#include <doctest/doctest.h>

#include <functional>
#include <string>

#include "nn/nn.h"
#include "optim/optim.h"
#include "tests/devices.h"
#include "tests/messages.h"

using namespace lockstep;

namespace {

struct Mistake {
  const char* name;
  std::function<void()> made;
  std::string told;
};

Variable weights(const Shape& shape) { return Variable(ones(shape), true); }

}  // namespace

TEST_CASE("mistakes: each message names the expected value, the actual one, and a remedy") {
  const OnCpu on_cpu;  // on a device, kernels find wrong values and name themselves
  const Variable w = weights({3, 4}), vector = weights({4});
  const Tensor x = ones({2, 3}), labels = Tensor::from<int64_t>({0, 1});
  nn::Linear layer({.in = 4, .out = 3});
  const Mistake mistakes[] = {
      {"shapes that do not broadcast",
       [&] {
         add(ones({2, 3}), ones({2, 4}));
       },
       "[add] expected shapes that broadcast, got (2, 3) and (2, 4)"},
      {"inner sizes of a product", [&] { matmul(x, w.t()); },
       "[matmul] expected the inner sizes to agree, got (2, 3) and (4, 3)"},
      {"two dtypes", [&] { add(x, x.to(f64)); },
       "[add] expected operands of one dtype, got f32 and f64; convert with .to(dtype)"},
      {"integers where floats are meant", [&] { mean(labels); }, "[mean] expected a floating dtype, got i64"},
      {"a view of what is not contiguous", [&] { x.t().view({6}); },
       "[view] cannot show shape (3, 2) with strides (1, 3) as (6) without a copy (use reshape)"},
      {"another number of elements",
       [&] {
         x.reshape({4, 2});
       },
       "[reshape] expected a shape of 6 elements (one size may be -1) for (2, 3), got (4, 2)"},
      {"a dim that is not there", [&] { softmax(x, 2); }, "[softmax] expected a dim from -2 to 1, got 2"},
      {"an index out of range", [&] { x.select(0, 2); }, "[select] expected an index from -2 to 1, got 2"},
      {"parts of other sizes",
       [&] {
         cat({x, ones({2, 2})}, 0);
       },
       "[cat] expected shapes that agree outside dim 0, got (2, 3) and (2, 2)"},
      {"one number of many", [&] { x.item(); }, "[item] expected a tensor of one element, got shape (2, 3)"},
      {"backward from many elements", [&] { (w * w).backward(); },
       "[backward] expected a gradient for a result of shape (3, 4) (only a result of one element may omit it)"},
      {"backward without a parameter", [&] { sum(Variable(x)).backward(); },
       "[backward] this value does not require grad; was it computed in a NoGrad scope, or from data only? Compute it "
       "outside such a scope, from a variable that requires grad"},
      {"backward twice",
       [&] {
         const Variable loss = sum(w * w);
         loss.backward();
         loss.backward();
       },
       "[backward] the graph of 'sum' was freed by an earlier backward; pass retain_graph = true to the first one"},
      {"a parameter changed in place",
       [&] {
         Variable p = w;
         add_scalar_(p, 1);
       },
       "[add_scalar_] a leaf that requires grad cannot be changed in place; use a NoGrad scope or detach()"},
      {"changed between forward and backward",
       [&] {
         Variable h = w * 2.0;
         const Variable loss = sum(exp(h) * h);
         add_scalar_(h, 1);
         loss.backward();
       },
       "[mul] a tensor of shape (3, 4) saved for its gradient was changed in place by 'add_scalar_' (version 0 was "
       "saved, it is now 1); use the out-of-place operation, or clone() before"},
      {"the gradient of a result",
       [&] {
         const Variable h = w * 2.0;
         sum(h).backward();
         h.grad();
       },
       "[grad] expected a leaf, got the output of 'mul_scalar'; call retain_grad() on it before backward"},
      {"an input that is not used", [&] { grad(sum(w * 2.0), {vector}); },
       "[grad] no output depends on input 0; leave it out, or pass allow_unused = true for an undefined gradient"},
      {"a layer's input",
       [&] {
         layer(Variable(ones({2, 5})));
       },
       "[linear] expected an input (..., 4) for weight (3, 4), got (2, 5)"},
      {"heads that do not divide", [&] { nn::MultiHeadAttention({.embed = 10, .heads = 3}); },
       "[MultiHeadAttention] expected heads to divide embed 10, or a head_size > 0, got heads 3 and head_size 0"},
      {"channels of a convolution",
       [&] {
         nn::Conv2d({.in = 3, .out = 8, .kernel = 3})(Variable(ones({1, 1, 8, 8})));
       },
       "[conv2d] expected an input with 3 channels (weight (8, 3, 3, 3), groups 1), got (1, 1, 8, 8)"},
      {"an image smaller than the kernel",
       [&] {
         nn::Conv2d({.in = 1, .out = 1, .kernel = 5})(Variable(ones({1, 1, 3, 3})));
       },
       "[conv2d] expected a kernel that fits the padded input, got weight (1, 1, 5, 5), dilation (1, 1), padding (0, "
       "0) for input (1, 1, 3, 3)"},
      {"a word that is not in the table", [&] { nn::Embedding({.num = 4, .dim = 2})(Tensor::from<int64_t>({4})); },
       "[embedding] expected indices in [0, 4), got 4 at position 0"},
      {"a batch of one",
       [&] {
         nn::BatchNorm1d({.channels = 3})(Variable(ones({1, 3})));
       },
       "[batch_norm] expected more than 1 value per channel when training, got 1 in shape (1, 3)"},
      {"labels as floats", [&] { cross_entropy(x, Variable(ones({2}))); },
       "[cross_entropy] expected probabilities of the logits' shape (2, 3) (or i64 class indices of shape (2)), got "
       "f32 (2)"},
      {"a class too many",
       [&] {
         cross_entropy(x, Tensor::from<int64_t>({0, 3}));
       },
       "[cross_entropy] expected targets in [0, 3), got 3 in row 1"},
      {"a negative learning rate", [&] { optim::SGD({w}, {.lr = -1}); }, "[SGD] expected lr in [0, inf), got -1"},
      {"no parameters", [&] { optim::AdamW(std::vector<Variable>{}, {}); },
       "[AdamW] expected at least one parameter, got an empty list; name the model's layers in its fields()"},
      {"the same parameter twice",
       [&] {
         optim::SGD({w, w}, {.lr = 1});
       },
       "[SGD] a parameter of shape (3, 4) was given twice; leave one of them out"},
      {"a state of another model", [&] { layer.load_state(nn::Linear({.in = 4, .out = 2}).state()); },
       "[load_state] the state does not fit this Linear; nothing was changed\n wrong:\n  weight: expected shape (3, "
       "4), got (2, 4)\n  bias: expected shape (3), got (2)"},
      {"a dropout above 1", [&] { nn::Dropout({.p = 1.5}); }, "[Dropout] expected p in [0, 1], got 1.5"},
  };
  for (const Mistake& m : mistakes) {
    CAPTURE(m.name);
    CHECK(message(m.made) == m.told);
  }
}
