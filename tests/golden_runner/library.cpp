// Cases of linalg:: and distributions::.
#include "autograd/linalg.h"
#include "distributions/distributions.h"
#include "tests/golden_runner/golden.h"

namespace golden {

using namespace lockstep;
using namespace lockstep::distributions;

namespace {

using Inputs = std::vector<Variable>;
using Outputs = std::vector<Variable>;

template <class Fn> Run one(Fn fn) {
  return [fn](const Inputs& in, const Case& c) { return Outputs{fn(in, c)}; };
}

std::optional<double> maybe(const Case& c, const char* key) {
  return c.arg(key) ? std::optional<double>(c.number(key)) : std::nullopt;
}

/// Singular values, and the absolute values of vectors, whose signs are arbitrary.
Outputs decomposed(const linalg::SvdOf<Variable>& made) {
  const int64_t k = made.s.size(-1);
  return {made.s, abs(made.u.narrow(-1, 0, k)), abs(made.vh.narrow(-2, 0, k))};
}

/// All functions of a distribution: log_prob of the value, and functions of the parameters.
Outputs told(const Distribution& d, const Variable& value, bool has_entropy = true) {
  Outputs all{d.log_prob(value), d.mean(), d.variance()};
  if (has_entropy) all.push_back(d.entropy());
  return all;
}

}  // namespace

void add_linalg(std::map<std::string, Run>& t) {
  using namespace linalg;
  t["linalg_solve"] = one([](auto& in, auto& c) { return solve(in[0], in[1], c.flag("left", true)); });
  t["linalg_solve_triangular"] = one([](auto& in, auto& c) {
    return solve_triangular(in[0], in[1], c.flag("upper", false), c.flag("left", true), c.flag("unit", false));
  });
  t["linalg_inv"] = one([](auto& in, auto&) { return inv(in[0]); });
  t["linalg_det"] = one([](auto& in, auto&) { return det(in[0]); });
  t["linalg_slogdet"] = [](const Inputs& in, const Case&) {
    const auto made = slogdet(in[0]);
    return Outputs{made.sign, made.logabsdet};
  };
  t["linalg_cholesky"] = one([](auto& in, auto& c) { return cholesky(in[0], c.flag("upper", false)); });
  t["linalg_qr"] = [](const Inputs& in, const Case& c) {
    const std::string mode = c.text("mode", "reduced");
    const auto made = qr(in[0], mode == "complete" ? QrMode::complete : mode == "r" ? QrMode::r : QrMode::reduced);
    return mode == "r" ? Outputs{made.r} : Outputs{made.q, made.r};
  };
  t["linalg_svd"] = [](const Inputs& in, const Case& c) { return decomposed(svd(in[0], c.flag("full", true))); };
  t["linalg_svdvals"] = one([](auto& in, auto&) { return svdvals(in[0]); });
  t["linalg_eigh"] = [](const Inputs& in, const Case& c) {
    const auto made = eigh(in[0], c.flag("upper", false));
    return Outputs{made.values, abs(made.vectors)};
  };
  t["linalg_eigvalsh"] = one([](auto& in, auto& c) { return eigvalsh(in[0], c.flag("upper", false)); });
  t["linalg_lstsq"] = [](const Inputs& in, const Case& c) {
    const auto made = lstsq(in[0], in[1], maybe(c, "rcond"));
    return Outputs{made.solution, made.rank};
  };
  t["linalg_residuals"] = one([](auto& in, auto&) { return lstsq(in[0], in[1]).residuals.detach(); });
  t["linalg_pinv"] = one(
      [](auto& in, auto& c) { return pinv(in[0], maybe(c, "atol"), maybe(c, "rtol"), c.flag("hermitian", false)); });
  t["linalg_matrix_rank"] = one([](auto& in, auto& c) {
    return Variable(matrix_rank(in[0], maybe(c, "atol"), maybe(c, "rtol"), c.flag("hermitian", false)));
  });
  t["linalg_matrix_exp"] = one([](auto& in, auto&) { return matrix_exp(in[0]); });
  t["linalg_matrix_power"] = one([](auto& in, auto& c) { return matrix_power(in[0], c.integer("n")); });
  t["linalg_matrix_norm"] = one([](auto& in, auto& c) {
    const Dims dims = c.arg("dim") ? c.dims("dim") : Dims{-2, -1};
    const std::string kind = c.text("kind", "");
    return kind.empty() ? matrix_norm(in[0], c.number("order"), dims, c.flag("keepdim", false))
                        : matrix_norm(in[0], kind, dims, c.flag("keepdim", false));
  });
  t["linalg_vector_norm"] = one([](auto& in, auto& c) {
    return vector_norm(in[0], c.number("order", 2), c.dims("dim"), c.flag("keepdim", false));
  });
  t["linalg_cond"] = one([](auto& in, auto& c) {
    const std::string kind = c.text("kind", "");
    return kind.empty() ? cond(in[0], c.number("order", 2)) : cond(in[0], kind);
  });
}

void add_distributions(std::map<std::string, Run>& t) {
  const auto add2 = [&]<class D>(const char* name) {
    t[std::string("dist_") + name] = [](const Inputs& in, const Case&) { return told(D(in[0], in[1]), in[2]); };
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
      return told(D(in[0]), in[1], entropy);
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
  t["dist_Bernoulli_logits"] = [](const Inputs& in, const Case&) { return told(Bernoulli::from_logits(in[0]), in[1]); };
  t["dist_StudentT"] = [](const Inputs& in, const Case&) { return told(StudentT(in[0], in[1], in[2]), in[3]); };
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
