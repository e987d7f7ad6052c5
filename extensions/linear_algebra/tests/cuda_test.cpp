// linalg:: on the device: results stay there, and those that conventions make unique are close to the CPU's.
// linalg_test.cpp runs on the device, too.
#include "extensions/linear_algebra/linalg.h"

#include <thread>

#include "tensor/graph.h"
#include "tests/cuda/against_cpu.h"
#include "tests/messages.h"

using namespace lockstep;
namespace la = lockstep::linalg;
using testing::check_close;
using testing::cuda0;

namespace {

/// All results that do not depend on a choice of sign.
std::vector<Tensor> decomposed(const Tensor& a, const Tensor& b) {
  const Tensor s = matmul(a, a.transpose(-2, -1)) + eye(a.size(-1), -1, {a.dtype(), a.device()});
  const auto [q, r] = la::qr(a);
  const auto [sign, log_abs] = la::slogdet(a);
  return {la::solve(a, b),
          la::inv(a),
          q,
          r,
          la::det(a),
          sign,
          log_abs,
          la::svdvals(a),
          la::eigvalsh(s),
          la::cholesky(s),
          la::pinv(a),
          la::solve_triangular(s, b, false),
          la::matrix_exp(a),
          la::inv_ex(a).info};
}

}  // namespace

TEST_CASE("cuda linalg: as on the CPU") {
  for (const DType dtype : {f32, f64})
    for (const Shape& shape : {Shape{5, 5}, Shape{4, 7, 7}, Shape{2, 40, 40}}) {
      const int64_t n = shape.back();
      const Tensor a = testing::random_tensor(shape, dtype, 3) + eye(n, -1, {dtype, cpu}) * 2.0;
      Shape right = shape;
      right[right.rank() - 1] = 3;
      const Tensor b = testing::random_tensor(right, dtype, 4);
      const auto expected = decomposed(a, b), got = decomposed(a.to(cuda0), b.to(cuda0));
      for (size_t i = 0; i < expected.size(); ++i) {
        CHECK(got[i].device() == cuda0);
        check_close(got[i], expected[i], testing::tolerance(testing::Near::decomposition, dtype),
                    str("result ", i, " of ", shape));
      }
    }
}

TEST_CASE("cuda linalg: on streams and threads of their own") {
  const Tensor a = (testing::random_tensor({6, 9, 9}, f64) + eye(9, -1, {f64, cpu}) * 3.0).to(cuda0);
  const Tensor b = testing::random_tensor({6, 9, 2}, f64, 2).to(cuda0);
  const auto expected = decomposed(a, b);
  synchronize(cuda0);
  std::vector<std::vector<Tensor>> results(3);
  std::vector<std::thread> threads;
  for (auto& result : results)
    threads.emplace_back([&] {
      const Stream stream(cuda0);
      const StreamScope scope(stream);
      for (int i = 0; i < 3; ++i) result = decomposed(a, b);
      for (Tensor& x : result) x = x.to(cpu);  // moved while the stream that owns their memory exists
    });
  for (auto& thread : threads) thread.join();
  for (const auto& result : results)
    for (size_t i = 0; i < expected.size(); ++i) CHECK(equal(result[i], expected[i].to(cpu)));
}

TEST_CASE("cuda linalg: refused in a graph") {
  const Tensor a = eye(3, 3, {f32, cuda0});
  Graph graph(cuda0);
  const std::string said = message([&] { graph.capture([&] { la::det(a); }); });
  CAPTURE(said);
  CHECK(contains(said, "[linalg] matrices cannot be decomposed while a graph is captured"));
  CHECK(la::det(a).item() == 1);
}
