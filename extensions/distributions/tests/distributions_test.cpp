// Distributions: moments of samples, gradients, densities that integrate to 1, edge cases, errors, and the same bits
// for any number of threads. Values and gradients from PyTorch are golden cases
// (tests/golden/distributions.safetensors).
#include "extensions/distributions/distributions.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>

#include "autograd/gradcheck.h"
#include "extensions/distributions/samplers.h"
#include "extensions/linear_algebra/linear_algebra.h"
#include "extensions/operations/operations.h"
#include "tests/messages.h"
#include "tests/threads.h"

using namespace lockstep;
using namespace lockstep::distributions;

namespace {

using Inputs = std::vector<Variable>;
using Made = std::shared_ptr<Distribution>;

Tensor numbers(std::initializer_list<double> values) { return Tensor::from<double>(values); }
Variable leaf(std::initializer_list<double> values) { return Variable(numbers(values), true); }

template <class D, class... Args> Made make(Args&&... args) { return std::make_shared<D>(std::forward<Args>(args)...); }
Made moved(auto d) { return std::make_shared<decltype(d)>(std::move(d)); }

struct Row {
  const char* name;
  Inputs parameters;
  std::function<Made(const Inputs&)> of;
  bool has_entropy = true;
};

/// One of each distribution, with several parameters.
std::vector<Row> rows() {
  return {
      {"Normal", {leaf({0, -3, 2}), leaf({1, 0.2, 5})}, [](auto& p) { return make<Normal>(p[0], p[1]); }},
      {"LogNormal", {leaf({0, 0.5}), leaf({0.3, 0.6})}, [](auto& p) { return make<LogNormal>(p[0], p[1]); }},
      {"Laplace", {leaf({0, 4}), leaf({1, 0.3})}, [](auto& p) { return make<Laplace>(p[0], p[1]); }},
      {"Uniform", {leaf({0, -4}), leaf({1, 3})}, [](auto& p) { return make<Uniform>(p[0], p[1]); }},
      {"StudentT",
       {leaf({9, 30}), leaf({1, -1}), leaf({0.5, 2})},
       [](auto& p) { return make<StudentT>(p[0], p[1], p[2]); }},
      {"Bernoulli", {leaf({0.5, 0.1, 0.9})}, [](auto& p) { return make<Bernoulli>(p[0]); }},
      {"Bernoulli of logits", {leaf({0, -2, 3})}, [](auto& p) { return moved(Bernoulli::from_logits(p[0])); }},
      {"Poisson", {leaf({0.3, 4, 9.9, 10.1, 60, 1e4})}, [](auto& p) { return make<Poisson>(p[0]); }, false},
      {"Gamma", {leaf({0.3, 1, 2.5, 40}), leaf({2, 1, 0.5, 4})}, [](auto& p) { return make<Gamma>(p[0], p[1]); }},
      {"Exponential", {leaf({0.2, 3})}, [](auto& p) { return make<Exponential>(p[0]); }},
      {"Beta", {leaf({0.4, 2, 30}), leaf({0.7, 3, 5})}, [](auto& p) { return make<Beta>(p[0], p[1]); }},
      {"Dirichlet", {leaf({0.5, 2, 7})}, [](auto& p) { return make<Dirichlet>(p[0]); }},
      {"MultivariateNormal",
       {leaf({1, -2}), leaf({0.5, 0.3, 0, 0.8})},
       [](auto& p) {
         const Variable x = p[1].view({2, 2});
         return make<MultivariateNormal>(p[0], tril(x));
       }},
  };
}

double sum_of(const Tensor& x) { return sum(x).item(); }

/// The difference between two samples of equal size in standard deviations: a chi-squared test of how often each value
/// occurs, where rare neighboring values are merged. 5 or more is never chance.
double misfit(std::vector<double> a, std::vector<double> b) {
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  double squares = 0;
  int cells = 0;
  for (size_t i = 0, j = 0, begin_i = 0, begin_j = 0; i < a.size() || j < b.size();) {
    const double value = j == b.size() || (i < a.size() && a[i] < b[j]) ? a[i] : b[j];
    while (i < a.size() && a[i] == value) ++i;
    while (j < b.size() && b[j] == value) ++j;
    const double in_a = double(i - begin_i), in_b = double(j - begin_j);
    if (in_a + in_b < 60 && (i < a.size() || j < b.size())) continue;
    squares += (in_a - in_b) * (in_a - in_b) / (in_a + in_b);
    ++cells, begin_i = i, begin_j = j;
  }
  // the normal approximation of chi-squared by Wilson and Hilferty, 1931
  const double k = std::max(1, cells - 1), width = 2 / (9 * k);
  return (std::cbrt(squares / k) - (1 - width)) / std::sqrt(width);
}

std::vector<double> column(const Tensor& x, int64_t i) { return x.select(1, i).to_vector<double>(); }

}  // namespace

TEST_CASE("distributions: samples have the moments that they should have") {
  manual_seed(1);
  constexpr int64_t n = 200000;
  for (const Row& row : rows()) {
    INFO(row.name);
    const Made d = row.of(row.parameters);
    for (const bool narrow : {false, true}) {
      Inputs same = row.parameters;
      for (Variable& p : same) p = narrow ? p.detach().to(f32) : p;
      const Tensor x = row.of(same)->sample({n}).to(f64);
      const auto means = d->mean().tensor().to_vector<double>(), variances = d->variance().tensor().to_vector<double>();
      const auto got = mean(x, {0}).to_vector<double>(), sample_var = var(x, {0}).to_vector<double>();
      const auto fourth = mean(square(square(x - mean(x, {0}))), {0}).to_vector<double>();
      for (size_t i = 0; i < means.size(); ++i) {
        CAPTURE(i);
        // Within five standard deviations of the mean, and six of the variance (from the fourth moment).
        CHECK(std::abs(got[i] - means[i]) < 5 * std::sqrt(variances[i] / n));
        CHECK(std::abs(sample_var[i] - variances[i]) <
              6 * std::sqrt(std::max(0.0, fourth[i] - sample_var[i] * sample_var[i]) / n) + 1e-4 * sample_var[i]);
      }
      if (!row.has_entropy || d->event_shape().rank() > 0) continue;
      // The entropy is the mean of -log_prob.
      const Tensor log_p = row.of(row.parameters)
                               ->log_prob(Variable(clamp(x, -1e9, std::string(row.name) == "Beta" ? 1 - 1e-9 : 1e9)))
                               .tensor();
      const auto entropy = d->entropy().tensor().to_vector<double>(), said = mean(log_p, {0}).to_vector<double>(),
                 off = var(log_p, {0}).to_vector<double>();
      for (size_t i = 0; i < said.size(); ++i) CHECK(std::abs(entropy[i] + said[i]) < 5 * std::sqrt(off[i] / n) + 1e-6);
    }
  }
  const Categorical d(Variable(Tensor::from<float>({0, 1, 2, 0, 5, 0, 0, 3, 3, 0}, {2, 5})));
  const Tensor x = d.sample({n});
  CHECK((x.dtype() == i64 && x.shape() == Shape({n, 2})));
  const auto counts = mean(one_hot(x, 5).to(f64), {0}).to_vector<double>();
  const auto probs = d.probs.tensor().to_vector<double>();
  for (size_t i = 0; i < counts.size(); ++i) {
    CHECK(counts[i] == doctest::Approx(probs[i]).epsilon(0.02));
    if (probs[i] == 0) CHECK(counts[i] == 0);
  }
}

TEST_CASE("distributions: draws in 16 bits have f32's law, rounded once") {
  constexpr int64_t n = 30000;
  std::vector<Row> all = rows();
  all.push_back({"Bernoulli", {leaf({0.996, 0.004, 1})}, [](auto& p) { return make<Bernoulli>(p[0]); }});
  all.push_back({"Normal", {leaf({100, 0.1}), leaf({3, 1e-3})}, [](auto& p) { return make<Normal>(p[0], p[1]); }});
  all.push_back(
      {"Uniform", {leaf({-1.25, 0, 5}), leaf({-1, 3, 6})}, [](auto& p) { return make<Uniform>(p[0], p[1]); }});
  all.push_back({"Categorical", {leaf({1, 0, 3, 2, 2.5})}, [](auto& p) { return make<Categorical>(p[0]); }});
  all.push_back(
      {"Categorical", {leaf({-1, 7, 6.5, 5, 6.3})}, [](auto& p) { return moved(Categorical::from_logits(p[0])); }});
  for (const DType dtype : {f16, bf16})
    for (const Row& row : all) {
      Inputs given = row.parameters, wide;
      for (Variable& p : given) p = p.detach().to(dtype), wide.push_back(p.to(f32));
      const std::string name = row.name;
      INFO(name, " in ", dtype);
      manual_seed(11);
      Tensor draws = row.of(given)->sample({n});
      CHECK(draws.dtype() == (name == "Categorical" ? i64 : dtype));
      manual_seed(12);
      Tensor law = row.of(wide)->sample({n}).to(draws.dtype());
      if (name == "Uniform") {  // in f32 a sample may round to the upper bound
        CHECK(lockstep::all(lt(draws, given[1].tensor())).item<bool>());
        law = minimum(law, amax(draws, {0}));
      }
      if (name == "Gamma" || name == "Beta")  // samples stay strictly between the bounds in their own dtype
        law = clamp(law, dtype == f16 ? 0x1p-14 : 0x1p-126,
                    name == "Gamma" ? INFINITY : 1 - (dtype == f16 ? 0x1p-11 : 0x1p-8));
      draws = draws.reshape({n, draws.numel() / n}), law = law.reshape(draws.shape());
      for (int64_t i = 0; i < draws.size(1); ++i) {
        CAPTURE(i);
        CHECK(misfit(column(draws, i), column(law, i)) < 5);
      }
      if (!row.of(given)->has_rsample()) continue;
      const Variable first(given[0].tensor(), true);
      given[0] = first;
      sum(row.of(given)->rsample({7})).backward();
      CHECK((first.grad().dtype() == dtype && all_finite(first.grad())));
    }
}

TEST_CASE("distributions: Categorical in 16 bits draws from all classes") {
  constexpr int64_t n = 30000, classes = 1000;
  for (const DType dtype : {f32, f16, bf16}) {
    const TensorOptions options{.dtype = dtype};
    for (const Categorical& d : {Categorical(Variable(ones({classes}, options))),
                                 Categorical::from_logits(Variable(zeros({classes}, options)))}) {
      CAPTURE(dtype);
      manual_seed(13);
      const auto sampled = d.sample({n}).to_vector<double>();
      CHECK(misfit(sampled, randint(0, classes, {n}).to_vector<double>()) < 5);
      CHECK(std::set<double>(sampled.begin(), sampled.end()).size() == classes);
      const Tensor last = full({}, classes - 1, {.dtype = i64});
      CHECK(d.log_prob(Variable(last)).item() == doctest::Approx(-std::log(1e3)).epsilon(4e-3));
      CHECK(d.entropy().item() == doctest::Approx(std::log(1e3)).epsilon(4e-3));
      CHECK(d.probs.dtype() == dtype);
      CHECK(d.logits.dtype() == dtype);
      CHECK(d.entropy().dtype() == dtype);
      const Variable weights(arange(1, classes + 1, 1, {.dtype = f64}));
      const Categorical other(weights.to(dtype)), exact(weights), even(Variable(ones({classes}, {.dtype = f64})));
      CHECK(kl_divergence(d, other).item() == doctest::Approx(kl_divergence(even, exact).item()).epsilon(8e-3));
    }
    // The weights add up to more than the largest f16.
    const Categorical many(Variable(ones({100000}, options)));
    const Tensor sampled = many.sample({1000});
    CHECK((min(sampled).item() >= 0 && max(sampled).item() < 100000 && max(sampled).item() > 90000));
    CHECK(many.log_prob(Variable(sampled)).tensor().to_vector<double>()[0] ==
          doctest::Approx(-std::log(1e5)).epsilon(4e-3));
    for (const double p : {1e-3, 0.999}) {
      const Bernoulli b(full({1}, p, options));
      const double rounded = b.probs.tensor().item();
      CHECK(b.log_prob(Variable(ones({1}, options))).item() == doctest::Approx(std::log(rounded)).epsilon(8e-3));
    }
  }
}

TEST_CASE("distributions: densities and probabilities sum to 1") {
  const auto integral = [](const Distribution& d, double low, double high) {
    const Tensor x = linspace(low, high, 200001, {.dtype = f64}).slice(0, 1, 200000);
    return sum_of(exp(d.log_prob(Variable(x)).tensor())) * (high - low) / 200000;
  };
  CHECK(integral(Normal(numbers({0.5}), 2.0), -30, 30) == doctest::Approx(1));
  CHECK(integral(LogNormal(numbers({0.5}), 0.5), 0, 100) == doctest::Approx(1).epsilon(1e-6));
  CHECK(integral(Laplace(numbers({1}), 0.5), -30, 30) == doctest::Approx(1).epsilon(1e-6));
  CHECK(integral(StudentT(numbers({5}), 1.0, 2.0), -500, 500) == doctest::Approx(1).epsilon(1e-6));
  CHECK(integral(Gamma(numbers({2.5}), 2.0), 0, 60) == doctest::Approx(1).epsilon(1e-6));
  CHECK(integral(Exponential(numbers({2})), 0, 30) == doctest::Approx(1).epsilon(1e-3));
  CHECK(integral(Beta(numbers({2.5}), 1.5), 0, 1) == doctest::Approx(1).epsilon(1e-5));
  CHECK(integral(Uniform(numbers({-1}), 3.0), -1, 3) == doctest::Approx(1).epsilon(1e-4));
  const Variable counts(arange(0, 200, 1, {.dtype = f64}));
  CHECK(sum_of(exp(Poisson(numbers({17})).log_prob(counts).tensor())) == doctest::Approx(1));
}

TEST_CASE("distributions: gradients match finite differences") {
  manual_seed(2);
  for (const Row& row : rows()) {
    INFO(std::string(row.name));
    const Made d = row.of(row.parameters);
    Tensor x = d->sample({3});
    if (std::string(row.name) == "Uniform") x = x * 0.5 + d->mean().tensor() * 0.5;
    const auto log_prob = [&](const Inputs& p) { return row.of(p)->log_prob(Variable(x)); };
    CHECK(gradcheck(log_prob, row.parameters) == "");
    if (row.has_entropy) CHECK(gradcheck([&](const Inputs& p) { return row.of(p)->entropy(); }, row.parameters) == "");
    CHECK(gradcheck([&](const Inputs& p) { return row.of(p)->mean() + row.of(p)->variance(); }, row.parameters) == "");
    if (d->has_rsample() && d->event_shape().rank() == 0) {
      const Tensor inner = d->mean().tensor() + (x - d->mean().tensor()) * 0.5;
      Inputs with_value = row.parameters;
      with_value.push_back(Variable(inner, true));
      CHECK(gradcheck([&](const Inputs& p) { return row.of(p)->log_prob(p.back()); }, with_value) == "");
    }
    const std::string name = row.name;
    const bool implicit = name == "Gamma" || name == "Beta" || name == "Dirichlet" || name == "StudentT";
    if (!d->has_rsample() || implicit) continue;  // rejection samplers draw other numbers if a parameter changes
    CHECK(gradcheck([&](const Inputs& p) { return row.of(p)->rsample({4}); }, row.parameters) == "");
  }
  const Variable weights = leaf({0.2, 1, 3, 0.5});
  const Tensor classes = Tensor::from<int64_t>({0, 3, 2});
  CHECK(gradcheck([&](const Inputs& p) { return Categorical(p[0]).log_prob(classes); }, {weights}) == "");
  CHECK(gradcheck([&](const Inputs& p) { return Categorical(p[0]).entropy(); }, {weights}) == "");
  CHECK(gradcheck([&](const Inputs& p) { return Categorical::from_logits(p[0]).log_prob(classes); }, {weights}) == "");
}

TEST_CASE("distributions: a gamma variate moves with its shape so that the probability below it stays") {
  // P(a, x) by its series, or as 1 - Q if x is large; central differences of it in f64 give the slope.
  const auto below = [](double a, double x) {
    double term = 1 / a, total = term;
    for (int n = 1; n < 20000 && term > 1e-18 * total; ++n) total += term *= x / (a + n);
    return total * std::exp(a * std::log(x) - x - std::lgamma(a));
  };
  for (const double a : {1e-3, 0.05, 0.5, 1.0, 2.5, 9.9, 10.1, 80.0, 999.0})
    for (const double z : {-2.0, -1.0, -0.1, 0.0, 0.3, 1.0, 2.5}) {
      const double x = a * (a < 1 ? std::exp(z) : std::pow(1 - 1 / (9 * a) + z / (3 * std::sqrt(a)), 3)), h = 1e-4 * a;
      CAPTURE(a);
      CAPTURE(x);
      const double by_a = (below(a + h, x) - below(a - h, x)) / (2 * h);
      const double density = std::exp((a - 1) * std::log(x) - x - std::lgamma(a));
      const double slope = log_gamma_sample_grad(numbers({a}), numbers({std::log(x)})).item() * x;
      CHECK(slope == doctest::Approx(-by_a / density).epsilon(2e-5));
    }
  // The two methods agree where one takes over from the other.
  for (const double z : {-3.0, -0.5, 0.0, 1.0, 4.0}) {
    const auto at = [&](double a) {
      return log_gamma_sample_grad(numbers({a}), numbers({std::log(a + z * std::sqrt(a))})).item() * a;
    };
    CHECK(at(9999.99) == doctest::Approx(at(10000.01)).epsilon(1e-6));
  }
  // For shape 1, x = -log(1 - p): the derivative at the median is known in closed form. Far below and far above
  // the median, the derivative stays finite.
  CHECK(log_gamma_sample_grad(numbers({1e-5}), numbers({-1e5})).item() ==
        doctest::Approx((-0.5772 + 1e5) / 1e-5).epsilon(1e-4));
  CHECK(std::isfinite(log_gamma_sample_grad(numbers({0.5}), numbers({std::log(700.0)})).item()));
  // Gradients of means of samples match the gradients of the moments: E[x] = a / rate, and E[x^2].
  manual_seed(3);
  const auto check_means = [](const Inputs& p, const Variable& sampled, const Variable& exact, double within) {
    const std::vector<Variable> got = grad(sum(mean(sampled, {0})), p, {.retain_graph = true}),
                                wanted = grad(sum(exact), p);
    for (size_t k = 0; k < p.size(); ++k) {
      const auto some = got[k].tensor().to_vector<double>(), all = wanted[k].tensor().to_vector<double>();
      for (size_t i = 0; i < some.size(); ++i) CHECK(some[i] == doctest::Approx(all[i]).epsilon(within));
    }
  };
  const Variable a = leaf({0.3, 1.5, 20}), rate = leaf({1, 2, 0.5}), one = leaf({0.6, 3}), zero = leaf({0.9, 2}),
                 c = leaf({0.5, 2, 4}), weights(numbers({1, 5, -2}));
  check_means({a, rate}, Gamma(a, rate).rsample({400000}), a / rate, 0.02);
  const Beta beta(one, zero);
  check_means({one, zero}, square(beta.rsample({400000})), square(beta.mean()) + beta.variance(), 0.03);
  check_means({c}, Dirichlet(c).rsample({400000}) * weights, Dirichlet(c).mean() * weights, 0.03);
}

TEST_CASE("distributions: kl_divergence is the mean of the difference of log_prob, and 0 of one and the same") {
  manual_seed(4);
  const Parameter two(2.0), three(3.0);
  const Tensor l = Tensor::from<double>({1, 0, 0.5, 2}, {2, 2}), m = Tensor::from<double>({2, 0, -0.5, 1}, {2, 2});
  const Variable v(numbers({1, 2})), w(numbers({0, 1}));
  const auto n = [](double x) { return Parameter(numbers({x})); };
  const std::pair<Made, Made> pairs[] = {
      {make<Normal>(n(0.5), two), make<Normal>(n(-1), three)},
      {make<LogNormal>(n(0.5), n(0.4)), make<LogNormal>(n(0), n(0.7))},
      {make<Laplace>(n(0.5), two), make<Laplace>(n(-1), three)},
      {make<Uniform>(n(0), n(1)), make<Uniform>(n(-1), n(4))},
      {make<Bernoulli>(n(0.3)), make<Bernoulli>(n(0.6))},
      {make<Categorical>(v), make<Categorical>(Variable(numbers({3, 1})))},
      {make<Poisson>(n(4)), make<Poisson>(n(7))},
      {make<Gamma>(n(2.5), two), make<Gamma>(n(1.5), three)},
      {make<Exponential>(n(2)), make<Exponential>(n(0.7))},
      {make<Exponential>(n(2)), make<Gamma>(n(1.5), n(0.7))},
      {make<Gamma>(n(2.5), two), make<Exponential>(n(0.7))},
      {make<Beta>(n(2), n(3)), make<Beta>(n(1.5), n(0.8))},
      {make<Dirichlet>(v), make<Dirichlet>(Variable(numbers({3, 1})))},
      {make<MultivariateNormal>(v, Variable(l)), make<MultivariateNormal>(w, Variable(m))},
      {make<Uniform>(n(0), n(1)), make<Normal>(n(-1), three)},
      {make<Laplace>(n(0.5), two), make<Normal>(n(-1), three)},
  };
  for (const auto& [p, q] : pairs) {
    INFO(p->name(), " and ", q->name());
    const Variable x(p->sample({200000}));
    const Tensor difference = p->log_prob(x).tensor() - q->log_prob(x).tensor();
    const double error = std::sqrt(var(difference).item() / 200000);
    CHECK(std::abs(kl_divergence(*p, *q).item() - mean(difference).item()) < 5 * error + 1e-9);
    if (std::string(p->name()) == q->name()) CHECK(std::abs(kl_divergence(*p, *p).item()) < 1e-12);
  }
  const Tensor sure = numbers({0, 1}), half = numbers({0.5, 0.5});
  CHECK(kl_divergence(Bernoulli(half), Bernoulli(sure)).tensor().to_vector<double>() ==
        std::vector<double>(2, INFINITY));
  CHECK(sum_of(kl_divergence(Bernoulli(sure), Bernoulli(half)).tensor()) == doctest::Approx(2 * std::log(2.0)));
  CHECK(kl_divergence(Categorical(Variable(half)), Categorical(Variable(sure))).item() == INFINITY);
  CHECK(kl_divergence(Uniform(n(0), n(2)), Uniform(n(1), n(3))).item() == INFINITY);
}

TEST_CASE("distributions: shapes, dtypes, and numbers at the edges") {
  manual_seed(5);
  const Normal d(zeros({3, 1}, {.dtype = f64}), Variable(ones({4}, {.dtype = f64})));
  CHECK((d.batch_shape() == Shape({3, 4}) && d.sample().shape() == Shape({3, 4}) &&
         d.sample({0}).shape() == Shape({0, 3, 4})));
  CHECK((d.sample({2, 5}).shape() == Shape({2, 5, 3, 4}) && d.sample().dtype() == f64));
  CHECK(d.log_prob(Variable(zeros({7, 1, 1}, {.dtype = f64}))).shape() == Shape({7, 3, 4}));
  CHECK((Normal(0.0, 1.0).batch_shape() == Shape{} && Normal(0.0, 1.0).sample().dtype() == f32));
  const MultivariateNormal m(Variable(zeros({5, 1, 2})), Variable(eye(2).expand({3, 2, 2})));
  CHECK((m.batch_shape() == Shape({5, 3}) && m.sample({4}).shape() == Shape({4, 5, 3, 2})));
  CHECK(m.log_prob(Variable(zeros({2}))).shape() == Shape({5, 3}));
  CHECK(Dirichlet(Variable(ones({2, 3}))).log_prob(Variable(full({3}, 1. / 3))).shape() == Shape({2}));
  CHECK(Categorical(Variable(ones({2, 3}))).sample({4}).shape() == Shape({4, 2}));
  CHECK(Categorical(Variable(ones({3}))).log_prob(Variable(full({}, 2))).item() == doctest::Approx(-std::log(3.0)));
  for (const DType dtype : {f16, bf16}) CHECK(Normal(zeros({3}, {.dtype = dtype}), 1.0).sample().dtype() == dtype);
  // Gamma with a shape parameter near 0: a sample that would round to 0 is the smallest positive number instead.
  const Tensor small = Gamma(full({1000}, 1e-3), 1.0).sample();
  CHECK((min(small).item() > 0 && all_finite(small)));
  const Tensor beta = Beta(full({1000}, 1e-3), 1e-3).sample();
  CHECK((min(beta).item() > 0 && max(beta).item() < 1));
  const Tensor simplex = Dirichlet(Variable(full({1000, 3}, 1e-3))).sample();
  CHECK(allclose(sum(simplex, {1}), ones({1000})));
  CHECK(sum_of(Poisson(zeros({10})).sample()) == 0);
  CHECK(Poisson(zeros({1})).log_prob(Variable(zeros({1}))).item() == 0);
  CHECK(std::isnan(StudentT(1.0).mean().item()));
  CHECK((std::isnan(StudentT(1.0).variance().item()) && StudentT(2.0).variance().item() == INFINITY));
  CHECK(Uniform(0.0, 1.0).log_prob(Variable(ones({}))).item() == -INFINITY);
  CHECK(Bernoulli::from_logits(-1000.0).log_prob(Variable(ones({}))).item() == -1000);
  CHECK(std::isnan(Categorical(Variable(ones({3}))).mean().item()));
  CHECK(sum_of(Bernoulli(numbers({0, 1})).sample({100})) == 100);
}

TEST_CASE("distributions: samples do not depend on the number of threads or on other draws") {
  check_threads([] {
    manual_seed(6);
    const Tensor a = arange(1, 5001, 1, {.dtype = f64}) * 0.01;
    return std::vector{
        Gamma(a, 1.0).sample(),          Poisson(a).sample(),      Beta(a, 2.0).sample(),  StudentT(a).sample(),
        Dirichlet(Variable(a)).sample(), Laplace(a, 1.0).sample(), Normal(a, 1.0).sample()};
  });
  manual_seed(6);
  const Tensor few = log_gamma_sample(full({10}, 0.7));
  manual_seed(6);
  CHECK(equal(log_gamma_sample(full({5000}, 0.7)).slice(0, 0, 10), few));
}

TEST_CASE("distributions: errors name the expected value") {
  const Tensor one = ones({2});
  const Normal normal(one, 1.0);
  CHECK_REJECTED(Normal, (one, ones({2}, {.dtype = f64})), "parameters of one dtype");
  CHECK_ERROR(Normal(one, ones({3})), "[Normal]");
  CHECK_REJECTED(Normal, (arange(3), 1.0), "floating parameters, got i64");
  CHECK_REJECTED(Dirichlet, (Variable(zeros({}))), "floating parameters with at least 1 dims");
  CHECK_ERROR(MultivariateNormal(Variable(one), Variable(eye(3))), "expected loc (..., n) and scale_tril");
  CHECK_ERROR(normal.log_prob(Variable(ones({3}))), "[Normal]");
  CHECK_ERROR(Dirichlet(Variable(one)).log_prob(Variable(ones({3}))),
              "expected values whose shape ends with the event shape (2)");
  CHECK_ERROR(Bernoulli(0.5).rsample(), "[Bernoulli] has no rsample(): its samples");
  CHECK_ERROR(Poisson(1.0).entropy(), "[Poisson] has no formula for its entropy");
  CHECK_ERROR(kl_divergence(normal, Poisson(1.0)), "[kl_divergence] has no formula for Normal and Poisson");
  CHECK_REJECTED(log_gamma_sample, (ones({2}, {.dtype = bf16})), "f32 or f64, got bf16");
  if (default_device().is_cpu()) {  // constructors and log_prob() check values on the CPU only
    CHECK_REJECTED(Normal, (one, Tensor::from<float>({1, 0})), "scale > 0, got 0 at element 1");
    CHECK_REJECTED(Uniform, (one, 1.0), "low < high");
    CHECK_REJECTED(Bernoulli, (one * 2.0), "probs in [0, 1], got 2");
    CHECK_REJECTED(Categorical, (Variable(zeros({2}))), "probs that are not all 0");
    CHECK_REJECTED(Categorical, (Variable(-one)), "probs >= 0");
    CHECK_REJECTED(Gamma, (one, 0.0), "rate > 0");
    CHECK_REJECTED(Gamma, (one * 0.0, 1.0), "concentration > 0");
    CHECK_REJECTED(Poisson, (-1.0), "rate >= 0");
    CHECK_REJECTED(MultivariateNormal, (Variable(one), Variable(ones({2, 2}))), "a lower");
    CHECK_ERROR(MultivariateNormal(Variable(one), Variable(zeros({2, 2}))), "scale_tril with a diagonal > 0");
    CHECK_ERROR(normal.log_prob(Variable(full({2}, NAN))), "[Normal] expected values without NaN, got nan");
    CHECK_REJECTED(Exponential, (1.0).log_prob(Variable(-one)), "values >= 0, got -1 at element 0");
    CHECK_ERROR(Poisson(1.0).log_prob(Variable(one * 0.5)), "expected values that are whole numbers");
    CHECK_ERROR(Categorical(Variable(one)).log_prob(Variable(one * 2.0)), "expected values that are classes, got 2");
    CHECK_REJECTED(Uniform, (0.0, 1.0).log_prob(Variable(one * 2.0)), "values in [low, high], got 2");
    CHECK_REJECTED(Dirichlet, (Variable(one)).log_prob(Variable(one)), "values in [0, 1] that sum to 1");
  }
}
