// The golden cases of distributions::.
#include "extensions/distributions/distributions.h"
#include "tests/golden_runner/golden.h"

namespace golden {

using namespace lockstep;
using namespace lockstep::distributions;

namespace {

template <class Fn> Run one(Fn fn) {
  return [fn](const Inputs& in, const Case& c) { return Outputs{fn(in, c)}; };
}

/// log_prob of the value, and the mean, variance and entropy.
Outputs outputs_of(const Distribution& d, const Variable& value, bool has_entropy = true) {
  Outputs all{d.log_prob(value), d.mean(), d.variance()};
  if (has_entropy) all.push_back(d.entropy());
  return all;
}

}  // namespace

void add_distributions(Functions& functions) {
  auto& t = functions.ops;
  const auto add2 = [&]<class D>(const char* name) {
    t[std::string("dist_") + name] = [](const Inputs& in, const Case&) { return outputs_of(D(in[0], in[1]), in[2]); };
    t[std::string("kl_") + name] = one([](auto& in, auto&) { return kl_divergence(D(in[0], in[1]), D(in[2], in[3])); });
  };
  add2.operator()<Normal>("Normal");
  add2.operator()<LogNormal>("LogNormal");
  add2.operator()<Laplace>("Laplace");
  add2.operator()<Uniform>("Uniform");
  add2.operator()<Gamma>("Gamma");
  add2.operator()<Beta>("Beta");
  add2.operator()<MultivariateNormal>("MultivariateNormal");
  const auto add1 = [&]<class D>(const char* name, bool entropy = true) {
    t[std::string("dist_") + name] = [entropy](const Inputs& in, const Case&) {
      return outputs_of(D(in[0]), in[1], entropy);
    };
    t[std::string("kl_") + name] = one([](auto& in, auto&) { return kl_divergence(D(in[0]), D(in[1])); });
  };
  add1.operator()<Bernoulli>("Bernoulli");
  add1.operator()<Exponential>("Exponential");
  add1.operator()<Poisson>("Poisson", false);
  add1.operator()<Dirichlet>("Dirichlet");
  const auto categorical = [](const Inputs& in, const Case& c, size_t i) {
    return c.flag("logits", false) ? Categorical::from_logits(in[i]) : Categorical(in[i]);
  };
  t["dist_Categorical"] = [=](const Inputs& in, const Case& c) {
    const Categorical d = categorical(in, c, 0);
    return Outputs{d.log_prob(in[1]), d.entropy()};
  };
  t["kl_Categorical"] = [=](const Inputs& in, const Case& c) {
    return Outputs{kl_divergence(categorical(in, c, 0), categorical(in, c, 1))};
  };
  t["dist_Bernoulli_logits"] = [](const Inputs& in, const Case&) {
    return outputs_of(Bernoulli::from_logits(in[0]), in[1]);
  };
  t["dist_StudentT"] = [](const Inputs& in, const Case&) { return outputs_of(StudentT(in[0], in[1], in[2]), in[3]); };
  t["kl_Exponential_Gamma"] =
      one([](auto& in, auto&) { return kl_divergence(Exponential(in[0]), Gamma(in[1], in[2])); });
  t["kl_Gamma_Exponential"] =
      one([](auto& in, auto&) { return kl_divergence(Gamma(in[0], in[1]), Exponential(in[2])); });
  t["kl_Uniform_Normal"] =
      one([](auto& in, auto&) { return kl_divergence(Uniform(in[0], in[1]), Normal(in[2], in[3])); });
  t["kl_Laplace_Normal"] =
      one([](auto& in, auto&) { return kl_divergence(Laplace(in[0], in[1]), Normal(in[2], in[3])); });
}

}  // namespace golden
