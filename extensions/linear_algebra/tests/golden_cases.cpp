// The golden cases of linalg::.
#include <optional>

#include "extensions/linear_algebra/linalg.h"
#include "tests/golden_runner/golden.h"

namespace golden {

using namespace lockstep;

namespace {

template <class Fn> Run one_result(Fn fn) {
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

}  // namespace

void add_linear_algebra(Functions& functions) {
  using namespace linalg;
  auto& t = functions.ops;
  t["linalg_solve"] = one_result([](auto& in, auto& c) { return solve(in[0], in[1], c.flag("left", true)); });
  t["linalg_solve_triangular"] = one_result([](auto& in, auto& c) {
    return solve_triangular(in[0], in[1], c.flag("upper", false), c.flag("left", true), c.flag("unit", false));
  });
  t["linalg_inv"] = one_result([](auto& in, auto&) { return inv(in[0]); });
  t["linalg_det"] = one_result([](auto& in, auto&) { return det(in[0]); });
  t["linalg_slogdet"] = [](const Inputs& in, const Case&) {
    const auto made = slogdet(in[0]);
    return Outputs{made.sign, made.logabsdet};
  };
  t["linalg_cholesky"] = one_result([](auto& in, auto& c) { return cholesky(in[0], c.flag("upper", false)); });
  t["linalg_qr"] = [](const Inputs& in, const Case& c) {
    const std::string mode = c.text("mode", "reduced");
    const auto made = qr(in[0], mode == "complete" ? QrMode::complete : mode == "r" ? QrMode::r : QrMode::reduced);
    return mode == "r" ? Outputs{made.r} : Outputs{made.q, made.r};
  };
  t["linalg_svd"] = [](const Inputs& in, const Case& c) { return decomposed(svd(in[0], c.flag("full", true))); };
  t["linalg_svdvals"] = one_result([](auto& in, auto&) { return svdvals(in[0]); });
  t["linalg_eigh"] = [](const Inputs& in, const Case& c) {
    const auto made = eigh(in[0], c.flag("upper", false));
    return Outputs{made.values, abs(made.vectors)};
  };
  t["linalg_eigvalsh"] = one_result([](auto& in, auto& c) { return eigvalsh(in[0], c.flag("upper", false)); });
  t["linalg_lstsq"] = [](const Inputs& in, const Case& c) {
    const auto made = lstsq(in[0], in[1], maybe(c, "rcond"));
    return Outputs{made.solution, made.rank};
  };
  t["linalg_residuals"] = one_result([](auto& in, auto&) { return lstsq(in[0], in[1]).residuals.detach(); });
  t["linalg_pinv"] = one_result(
      [](auto& in, auto& c) { return pinv(in[0], maybe(c, "atol"), maybe(c, "rtol"), c.flag("hermitian", false)); });
  t["linalg_matrix_rank"] = one_result([](auto& in, auto& c) {
    return Variable(matrix_rank(in[0], maybe(c, "atol"), maybe(c, "rtol"), c.flag("hermitian", false)));
  });
  t["linalg_matrix_exp"] = one_result([](auto& in, auto&) { return matrix_exp(in[0]); });
  t["linalg_matrix_power"] = one_result([](auto& in, auto& c) { return matrix_power(in[0], c.integer("n")); });
  t["linalg_matrix_norm"] = one_result([](auto& in, auto& c) {
    const Dims dims = c.arg("dim") ? c.dims("dim") : Dims{-2, -1};
    const std::string kind = c.text("kind", "");
    return kind.empty() ? matrix_norm(in[0], c.number("order"), dims, c.flag("keepdim", false))
                        : matrix_norm(in[0], kind, dims, c.flag("keepdim", false));
  });
  t["linalg_vector_norm"] = one_result([](auto& in, auto& c) {
    return vector_norm(in[0], c.number("order", 2), c.dims("dim"), c.flag("keepdim", false));
  });
  t["linalg_cond"] = one_result([](auto& in, auto& c) {
    const std::string kind = c.text("kind", "");
    return kind.empty() ? cond(in[0], c.number("order", 2)) : cond(in[0], kind);
  });
}

}  // namespace golden
