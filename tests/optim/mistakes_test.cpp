// The mistakes that people make while a program runs, and what each is told: what was expected, what came, what to do.
#include <doctest/doctest.h>

#include <functional>
#include <string>

#include "autograd/functional.h"
#include "autograd/losses.h"
#include "nn/nn.h"
#include "optim/optim.h"
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

TEST_CASE("mistakes: thirty of them, each told in a line") {
  const Variable w = weights({3, 4}), vector = weights({4});
  const Tensor x = ones({2, 3}), labels = Tensor::from<int64_t>({0, 1});
  nn::Linear layer({.in = 4, .out = 3});
  const Mistake mistakes[] = {
      {"shapes that do not broadcast",
       [&] {
         add(ones({2, 3}), ones({2, 4}));
       },
       ""},
      {"inner sizes of a product", [&] { matmul(x, w.t()); }, ""},
      {"two dtypes", [&] { add(x, x.to(f64)); }, ""},
      {"integers where floats are meant", [&] { mean(labels); }, ""},
      {"a view of what is not contiguous", [&] { x.t().view({6}); }, ""},
      {"another number of elements",
       [&] {
         x.reshape({4, 2});
       },
       ""},
      {"a dim that is not there", [&] { softmax(x, 2); }, ""},
      {"an index out of range", [&] { x.select(0, 2); }, ""},
      {"parts of other sizes",
       [&] {
         cat({x, ones({2, 2})}, 0);
       },
       ""},
      {"one number of many", [&] { x.item(); }, ""},
      {"backward from many elements", [&] { (w * w).backward(); }, ""},
      {"backward without a parameter", [&] { sum(Variable(x)).backward(); }, ""},
      {"backward twice",
       [&] {
         const Variable loss = sum(w * w);
         loss.backward();
         loss.backward();
       },
       ""},
      {"a parameter changed in place",
       [&] {
         Variable p = w;
         add_scalar_(p, 1);
       },
       ""},
      {"changed between forward and backward",
       [&] {
         Variable h = w * 2.0;
         const Variable loss = sum(exp(h) * h);
         add_scalar_(h, 1);
         loss.backward();
       },
       ""},
      {"the gradient of a result",
       [&] {
         const Variable h = w * 2.0;
         sum(h).backward();
         h.grad();
       },
       ""},
      {"an input that is not used", [&] { grad(sum(w * 2.0), {vector}); }, ""},
      {"the Hessian of many", [&] { hessian([](const Inputs& in) { return in[0] * 2.0; }, {w}); }, ""},
      {"a layer's input",
       [&] {
         layer(Variable(ones({2, 5})));
       },
       ""},
      {"heads that do not divide", [&] { nn::MultiHeadAttention({.embed = 10, .heads = 3}); }, ""},
      {"channels of a convolution",
       [&] {
         nn::Conv2d({.in = 3, .out = 8, .kernel = 3})(Variable(ones({1, 1, 8, 8})));
       },
       ""},
      {"an image smaller than the kernel",
       [&] {
         nn::Conv2d({.in = 1, .out = 1, .kernel = 5})(Variable(ones({1, 1, 3, 3})));
       },
       ""},
      {"a word that is not in the table", [&] { nn::Embedding({.num = 4, .dim = 2})(Tensor::from<int64_t>({4})); }, ""},
      {"a batch of one",
       [&] {
         nn::BatchNorm1d({.channels = 3})(Variable(ones({1, 3})));
       },
       ""},
      {"labels as floats", [&] { cross_entropy(x, Variable(ones({2}))); }, ""},
      {"a class too many",
       [&] {
         cross_entropy(x, Tensor::from<int64_t>({0, 3}));
       },
       ""},
      {"probabilities that are scores", [&] { bce_loss(Variable(full({2}, 1.5)), Variable(ones({2}))); }, ""},
      {"a negative learning rate", [&] { optim::SGD({w}, {.lr = -1}); }, ""},
      {"no parameters", [&] { optim::AdamW(std::vector<Variable>{}, {}); }, ""},
      {"the same parameter twice",
       [&] {
         optim::SGD({w, w}, {.lr = 1});
       },
       ""},
      {"a state of another model", [&] { layer.load_state(nn::Linear({.in = 4, .out = 2}).state()); }, ""},
      {"a dropout above 1", [&] { nn::Dropout({.p = 1.5}); }, ""},
  };
  for (const Mistake& m : mistakes) {
    CAPTURE(m.name);
    MESSAGE(m.name << " => " << message(m.made));
  }
}
