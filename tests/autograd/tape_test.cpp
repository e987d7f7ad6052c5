// The tape: accumulation, what is freed and what is kept, rejected uses, and the order of backward.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <sstream>
#include <string>
#include <thread>

#include "autograd/activation_checkpoint.h"
#include "autograd/ops.h"
#include "autograd/tape.h"
#include "tests/devices.h"
#include "tests/messages.h"

using namespace lockstep;

namespace {

Variable leaf(std::initializer_list<float> values) { return Variable(Tensor::from(values), true); }
std::vector<float> values(const Tensor& t) { return t.to_vector<float>(); }

}  // namespace

TEST_CASE("gradients add up over uses, passes and broadcasting") {
  Variable x = leaf({1, 2, 3});
  sum(x * x + x).backward();
  CHECK(values(x.grad()) == std::vector<float>{3, 5, 7});
  sum(x * 2.0).backward();
  CHECK(values(x.grad()) == std::vector<float>{5, 7, 9});
  x.clear_grad();
  CHECK(!x.grad().defined());

  Variable row(ones({1, 3}), true), column(ones({4, 1}), true);
  sum(row * column).backward();
  CHECK(row.grad().shape() == Shape{1, 3});
  CHECK(values(row.grad()) == std::vector<float>{4, 4, 4});
  CHECK(column.grad().shape() == Shape{4, 1});
}

TEST_CASE("two leaves that get the same gradient do not share its memory afterwards") {
  Variable a = leaf({1}), b = leaf({2});
  (a + b).backward();
  (a * 3.0).backward();
  CHECK(a.grad().item() == 4);
  CHECK(b.grad().item() == 1);
}

TEST_CASE("a result of several elements needs a gradient, of its shape") {
  Variable x = leaf({1, 2});
  const Variable y = x * 3.0;
  CHECK_ERROR(y.backward(), "expected a gradient for a result of shape (2");
  CHECK_ERROR(y.backward(ones({3})), "expected a gradient of shape (2");
  y.backward(Tensor::from({1.f, 10.f}));
  CHECK(values(x.grad()) == std::vector<float>{3, 30});
  CHECK_ERROR(Variable(ones({1})).backward(), "this value does not require grad");
}

TEST_CASE("a second backward needs retain_graph, and names the operation") {
  Variable x = leaf({2});
  const Variable y = exp(x) * x;
  y.backward({}, true);
  const float once = x.grad().item<float>();
  y.backward();
  CHECK(x.grad().item<float>() == doctest::Approx(2 * once));
  const std::string text = message([&] { y.backward(); });
  CHECK(contains(text, "'mul'"));
  CHECK(contains(text, "retain_graph"));
}

TEST_CASE("graphs of several micro-batches are in flight at once") {
  Variable w = leaf({3});
  std::vector<Variable> losses;
  for (int i = 0; i < 4; ++i) losses.push_back(w * double(i + 1));
  for (int i : {0, 1, 2, 3}) losses[size_t(i)].backward();  // oldest micro-batch first, as 1F1B runs them
  CHECK(w.grad().item() == 10);
}

TEST_CASE("NoGrad, EnableGrad, detach and requires_grad_(false)") {
  Variable x = leaf({2});
  {
    const NoGrad guard;
    CHECK(!(x * 2.0).requires_grad());
    const EnableGrad inner;
    CHECK((x * 2.0).requires_grad());
  }
  CHECK(!x.detach().requires_grad());
  CHECK(x.detach().tensor().raw_data() == x.tensor().raw_data());
  x.requires_grad_(false);
  CHECK(!(x * 2.0).requires_grad());
  Variable number(Tensor::from<int64_t>({1, 2}));
  CHECK_ERROR(number.requires_grad_(), "expected a floating or complex dtype, got i64");
  x.requires_grad_();
  Variable y = x * 2.0;
  CHECK_ERROR(y.requires_grad_(false), "'mul_scalar'");
}

TEST_CASE("hooks read and replace gradients, and can be removed; leaves report when they are complete") {
  Variable x = leaf({1}), w = leaf({5});
  Variable y = x * w;
  std::vector<std::string> events;
  const int id = y.on_grad([&](const Tensor& g) {
    events.push_back("y " + std::to_string(int(g.item())));
    return mul_scalar(g, 10);
  });
  w.on_grad_complete([&](Tensor& g) { events.push_back("w " + std::to_string(int(g.item()))); });
  (y * 2.0 + w).backward();
  CHECK(events == std::vector<std::string>{"y 2", "w 21"});
  CHECK(x.grad().item() == 100);
  y.remove_hook(id);

  // A leaf's gradient is complete right after its last use, before earlier operations have run.
  Variable first = leaf({1}), last = leaf({1});
  std::vector<std::string> order;
  first.on_grad_complete([&](Tensor&) { order.push_back("first"); });
  last.on_grad_complete([&](Tensor&) { order.push_back("last"); });
  const Variable hidden = exp(first);
  (hidden * last).backward();
  CHECK(order == std::vector<std::string>{"last", "first"});
  Variable z = x * w;
  z.on_grad([](const Tensor&) { return zeros({7}); });
  CHECK_ERROR(z.backward(), "[on_grad] expected the hook to return shape");
}

TEST_CASE("a product folds the derivative before it into its gradient, unless somebody looks") {
  struct Row {
    const char* what;
    bool folds;
    std::function<void(Variable& hidden, Variable& loss)> change;
  };
  const Row rows[] = {
      {"nothing", true, [](auto&, auto&) {}},
      {"a hook that does not look", true, [](auto& hidden, auto&) { hidden.before_backward([] {}); }},
      {"a hook", false, [](auto& hidden, auto&) { hidden.on_grad([](const Tensor&) { return Tensor(); }); }},
      {"a second reader before", false, [](auto& hidden, auto& loss) { loss = loss + sum(hidden * 0.0); }},
      {"a kept gradient", false, [](auto& hidden, auto&) { hidden.retain_grad(); }}};
  for (const auto activate :
       {+[](const Variable&x, const Variable&w) { return linear(x, w, {}, Activation::gelu_tanh); },
        +[](const Variable&x, const Variable&w) { return tanh(linear(x, w)); },
        +[](const Variable&x, const Variable&w) { return relu(linear(x, w)); }}) {
    for (const DType dtype : {f32, f64, bf16}) {
      manual_seed(8);
      const Tensor data = randn({3, 5, 7}).to(dtype);
      Variable up(randn({33, 7}).to(dtype), true), down(randn({4, 33}).to(dtype), true);
      std::vector<Tensor> expected;  // the gradients of the first row
      for (const Row& row : rows) {
        CAPTURE(row.what);
        Variable x(data, true), hidden = activate(x, up), loss = sum(linear(hidden, down));
        row.change(hidden, loss);
        const Node& node = *hidden.impl()->node;
        for (const bool again : {true, false}) {  // the graph is kept first, then freed
          for (Variable* v : {&x, &up, &down}) v->clear_grad();
          bool folded = false;
          hidden.before_backward([&] { folded = node.is_folded(); });
          loss.backward({}, again);
          CHECK(folded == row.folds);
          if (expected.empty()) expected = {x.grad().clone(), up.grad().clone(), down.grad().clone()};
          CHECK(equal(x.grad(), expected[0]));
          CHECK(equal(up.grad(), expected[1]));
          CHECK(equal(down.grad(), expected[2]));
        }
      }
      // grad() reaches it, and anomaly detection names the operation that makes a NaN.
      Variable hidden = activate(Variable(data, true), up);
      const Variable loss = sum(linear(hidden, down));
      CHECK(equal(grad(loss, {hidden}, {.retain_graph = true})[0].tensor(),
                  matmul(ones({15, 4}, {.dtype = dtype}), down.tensor()).view({3, 5, 33})));
      const AnomalyMode anomaly;
      bool folded = true;
      hidden.before_backward([&folded, node = hidden.impl()->node.get()] { folded = node->is_folded(); });
      loss.backward();
      CHECK(!folded);
    }
  }
}

TEST_CASE("retain_grad keeps the gradient of a result") {
  Variable x = leaf({3});
  Variable y = x * x;
  CHECK_ERROR(y.grad(), "retain_grad");
  y.retain_grad();
  (y * 4.0).backward();
  CHECK(y.grad().item() == 4);
}

TEST_CASE("changing a saved value in place is an error that names both operations") {
  Variable x = leaf({1, 2});
  const Tensor factor = Tensor::from({3.f, 4.f});
  const Variable y = sum(x * Variable(factor));
  add_scalar_(factor, 1);
  Variable own = exp(x);
  const Variable squared = sum(own * own);
  add_scalar_(own, 1);
  for (const Variable& changed : {y, squared}) {
    const std::string text = message([&] { changed.backward(); });
    CHECK(text.starts_with("[mul]"));
    CHECK(contains(text, "'add_scalar_'"));
  }
  CHECK_ERROR_IS(exp_(x),
                 "[exp_] a leaf that requires grad cannot be changed in place; use a NoGrad scope or detach()");
  Variable fine = x * 2.0;
  add_scalar_(fine, 1);
  sum(fine * fine).backward();
  CHECK(values(x.grad()) == std::vector<float>{12, 20});
  const NoGrad scope;
  mul_scalar_(x, 2);
  CHECK(values(x.tensor()) == std::vector<float>{2, 4});
}

TEST_CASE("an error inside a pass leaves no gradients behind") {
  Variable x = leaf({1});
  Variable a = x * 2.0, b = x * 3.0;
  bool fail_now = true;
  a.on_grad([&](const Tensor&) -> Tensor {
    if (fail_now) throw Error("stop");
    return {};
  });
  const Variable y = a + b;
  CHECK_THROWS_AS(y.backward({}, true), Error);
  CHECK(!x.grad().defined());
  fail_now = false;
  y.backward();
  CHECK(x.grad().item() == 5);
}

TEST_CASE("anomaly mode names the first operation that makes a NaN") {
  const AnomalyMode guard;
  Variable x = leaf({-1});
  CHECK_ERROR(log(x), "'log' produced the first NaN");
  Variable zero = leaf({0});
  CHECK_ERROR((sqrt(zero) * 0.0).backward(), "gradient");
}

TEST_CASE("a chain of a million operations runs backward and is freed, without recursion") {
  const OnCpu on_cpu;  // the simulated device limits the number of allocations
  Variable x(ones({1}), true);
  std::thread small_stack([&] {
    Variable y = x;
    for (int i = 0; i < 1'000'000; ++i) y = y + 0.0;
    y.backward();
    Variable dropped = x;
    for (int i = 0; i < 1'000'000; ++i) dropped = dropped * 1.0;
  });
  small_stack.join();
  CHECK(x.grad().item() == 1);
}

TEST_CASE("memory does not grow after ten training steps") {
  Variable w(full({16, 16}, 0.01), true);
  const auto run = [&](int steps) {
    for (int i = 0; i < steps; ++i) {
      const Variable loss = mean(square(tanh(matmul(Variable(ones({8, 16})), w))));
      w.clear_grad();
      loss.backward();
    }
    return memory_report().total.current;
  };
  const int64_t after_ten = run(10);
  CHECK(run(10'000) == after_ten);
}

TEST_CASE("after_backward runs once, at the end of the pass") {
  Variable x = leaf({1});
  int calls = 0;
  bool complete = false;
  Variable y = x * 2.0;
  y.on_grad([&](const Tensor&) {
    after_backward([&] {
      ++calls;
      complete = x.grad().defined();
    });
    return Tensor();
  });
  y.backward();
  CHECK(calls == 1);
  CHECK(complete);
  CHECK_ERROR(after_backward([] {}), "expected a backward pass");
}

TEST_CASE("a hook may run a pass over the graph of the running pass") {
  for (const bool create : {false, true}) {
    Variable x = leaf({3});
    const Variable h = x * x;
    Variable y = h * 2.0;
    Tensor slope;
    y.on_grad([&](const Tensor&) {  // h * h has given h its gradient, y has not
      slope = grad(h, {x}, {.retain_graph = true, .create_graph = create})[0].tensor();
      return Tensor();
    });
    (y + h * h).backward({.retain_graph = true});
    CHECK(slope.item() == 6);
    CHECK(x.grad().item() == (2 + 18) * 6);
  }
}

TEST_CASE("printing and undefined variables") {
  CHECK_ERROR(Variable().tensor(), "undefined");
  std::ostringstream out;
  out << leaf({1}) * 2.0;
  CHECK(contains(out.str(), "from mul_scalar"));
}

TEST_CASE("neither a view on the tape nor its base is changed in place") {
  Variable x = leaf({1, 2, 3});
  Variable h = x * 1.0, v = h.narrow(0, 0, 2);
  CHECK_ERROR(mul_scalar_(h, 5), "with views");
  CHECK_ERROR_BEGINS(mul_scalar_(v, 5), "[mul_scalar_] a view on the tape");
}

namespace {
// Holds a graph. It is destroyed after the thread's own thread_local variables and must not fail.
Variable kept_until_exit;
}  // namespace

TEST_CASE("a static variable may hold a graph") {
  kept_until_exit = exp(leaf({1}) * 2.0);
  CHECK(kept_until_exit.requires_grad());
}
