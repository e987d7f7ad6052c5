// Averages of weights, and batch norm statistics for them.
#include "extensions/optimizers/weight_average.h"

#include <doctest/doctest.h>

#include "autograd/ops.h"
#include "nn/nn.h"
#include "tests/messages.h"

using namespace lockstep;
using namespace lockstep::optim;

TEST_CASE("a weight average takes equal shares, or decays, and changes places with the parameters") {
  for (const DType dtype : {f32, f64, bf16}) {
    for (const double decay : {0., 0.75}) {
      Variable p(full({2}, 1, {.dtype = dtype}), true);
      WeightAverage average({p}, decay), other({p}, decay);
      double expected = 0;
      for (int i = 1; i <= 4; ++i) {
        Tensor(p.tensor()).fill_(i * i);
        average.update();
        expected += (i * i - expected) * (i == 1 ? 1 : decay > 0 ? 1 - decay : 1. / i);
      }
      CHECK(average.averages()[0].dtype() == (dtype == f64 ? f64 : f32));
      other.load_state(average.state());
      CHECK(other.updates() == 4);
      CHECK(equal(other.averages()[0], average.averages()[0]));
      average.swap();
      CHECK(p.tensor().to(f64).to_vector<double>()[1] ==
            doctest::Approx(expected).epsilon(dtype == bf16 ? 1e-2 : 1e-6));
      average.swap();
      CHECK(p.tensor().to(f64).to_vector<double>()[1] == 16);
    }
  }
}

TEST_CASE("update_bn makes statistics of all batches, and leaves modes and momenta") {
  nn::BatchNorm1d norm({.channels = 2});
  norm.eval();
  manual_seed(1);
  const Tensor batches[] = {randn({8, 2}), randn({8, 2}), mul_scalar(randn({8, 2}), 3)};
  nn::update_bn(norm, [&] {
    for (const Tensor& batch : batches) norm(Variable(batch));
  });
  Tensor expected = zeros({2});
  for (const Tensor& batch : batches) add_(expected, mean(batch, {0}), 1. / 3);
  CHECK(allclose(norm.running_mean, expected, 1e-5, 1e-6));
  CHECK(norm.num_batches_tracked.item() == 3);
  CHECK(norm.o.momentum == 0.1);
  CHECK(!norm.is_training());
  CHECK_THROWS_AS(nn::update_bn(norm, [] { fail("a loader's error"); }), Error);
  CHECK(norm.o.momentum == 0.1);
  CHECK(!norm.is_training());
}

TEST_CASE("an average keeps its f32 bits while it replaces 16-bit parameters, and so do writes to them") {
  Variable w(ones({2}, {.dtype = bf16}), true);
  WeightAverage average({w}, 0.999);
  average.update();
  w.tensor().fill_(2);
  // an evaluation after each step swaps the averages in and out
  for (int i = 0; i < 1000; ++i) average.update(), average.swap(), average.swap();
  CHECK(average.averages()[0].to_vector<float>()[0] == doctest::Approx(2 - std::pow(0.999, 1000)).epsilon(1e-5));
  const float kept = average.averages()[0].to_vector<float>()[1];
  average.swap();
  CHECK_ERROR(average.update(), "update() while the averages are swapped in");
  CHECK_ERROR(average.load_state(average.state()), "call swap() again first");
  w.tensor()[0].fill_(4);
  average.swap();
  CHECK(w.tensor().to(f32).to_vector<float>() == std::vector<float>{2, 2});
  CHECK(average.averages()[0].to_vector<float>() == std::vector<float>{4, kept});
}

TEST_CASE("a master copy keeps its f32 bits while an average replaces its 16-bit parameter") {
  Variable w(ones({1}, {.dtype = bf16}), true);
  SGD sgd({w}, {.lr = 1e-4});
  const auto step = [&] {
    sgd.zero_grad();
    sum(w).backward();
    sgd.step();
    return sgd.state_of(w).tensors.at("master").to_vector<float>()[0];
  };
  float master = 1;
  for (int i = 0; i < 10; ++i) master = step();
  CHECK(master < 0.9995F);
  WeightAverage average({w});
  average.update();
  average.swap(), average.swap();
  CHECK(step() == doctest::Approx(master - 1e-4F).epsilon(1e-7));
}

TEST_CASE("statistics of the averaged model come and go with it") {
  manual_seed(1);
  struct Net : nn::Layer<Net> {
    nn::Linear a{{.in = 2, .out = 2}};
    nn::BatchNorm1d norm{{.channels = 2}};
    Variable forward(const Variable& x) { return norm(a(x)); }
    void fields(nn::Fields& f) override { f("a", a)("norm", norm); }
  } net;
  const Variable x(randn({32, 2}));
  WeightAverage average(net.parameters());
  for (int i = 0; i < 3; ++i) {
    net(x);
    Tensor(net.a.weight.tensor()).fill_(i + 1);
    average.update();
  }
  const auto statistics = [&] {
    std::vector<std::vector<float>> all;
    for (const auto& b : net.named_buffers()) all.push_back(b.tensor.to(f32).to_vector<float>());
    return all;
  };
  const auto own = statistics();
  average.swap();
  nn::update_bn(net, [&] { net(x); });
  nn::update_bn(net, [&] { net(x); });  // repeating it changes nothing
  const auto averaged = statistics();
  CHECK(averaged != own);
  average.swap();
  CHECK(statistics() == own);
  average.swap();
  CHECK(statistics() == averaged);
  average.swap();
  nn::update_bn(net, [&] { net(x); });  // for the model's own weights
  const auto updated = statistics();
  CHECK(updated != own);
  average.swap(), average.swap();
  CHECK(statistics() == updated);
}

TEST_CASE("with use_buffers the statistics of batch norm are averaged, too") {
  manual_seed(2);
  nn::Sequential net(nn::Linear({.in = 2, .out = 2}), nn::BatchNorm1d({.channels = 2}));
  const auto buffer = [&](size_t i) { return net.named_buffers()[i].tensor; };  // mean, var, num_batches_tracked
  for (const double decay : {0., 0.75}) {
    WeightAverage average(net, {.decay = decay, .use_buffers = true}), other(net, {.use_buffers = true}), plain(net);
    CHECK(average.averages().size() == 6);
    CHECK(plain.averages().size() == 4);
    std::vector<double> expected(2, 0);
    for (int i = 1; i <= 3; ++i) {
      net(Variable(randn({8, 2}, {.dtype = f32}) + 3.0 * i));
      average.update();
      for (size_t b = 0; b < 2; ++b)
        expected[b] += (buffer(b)[0].item() - expected[b]) * (i == 1 ? 1 : decay > 0 ? 1 - decay : 1. / i);
    }
    const double own[] = {buffer(0)[0].item(), buffer(1)[0].item(), buffer(2).item()};
    average.swap();
    for (size_t b = 0; b < 2; ++b) CHECK(buffer(b)[0].item() == doctest::Approx(expected[b]).epsilon(1e-5));
    CHECK(buffer(2).item() == own[2]);  // a number of batches is not averaged
    average.swap();
    for (size_t b = 0; b < 2; ++b) CHECK(buffer(b)[0].item() == own[b]);
    other.load_state(average.state());
    CHECK(equal(other.averages()[4], average.averages()[4]));
    CHECK_ERROR(plain.load_state(average.state()), "and 4 averages in the saved state, got 6");

    average.swap();
    nn::update_bn(net, [&] { net(Variable(ones({4, 2}))); });
    const double updated = buffer(0)[0].item();
    CHECK(updated != doctest::Approx(expected[0]));
    average.swap();
    CHECK(buffer(0)[0].item() == own[0]);
    average.swap();
    CHECK(buffer(0)[0].item() == updated);  // update_bn() replaced the average
    average.swap();
  }
}

TEST_CASE("averages refuse nonsense") {
  Variable w(ones({1}), true);
  CHECK_ERROR(WeightAverage({}), "at least one parameter");
  CHECK_ERROR(WeightAverage({w}, 1), "decay in [0, 1), got 1");
  CHECK_ERROR(WeightAverage({w}).swap(), "call update() first");
  CHECK_ERROR(WeightAverage({w}).load_state({}), "and 1 averages in the saved state, got 0");
}
