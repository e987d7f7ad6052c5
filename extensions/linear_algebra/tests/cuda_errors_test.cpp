// Errors of linalg:: on a device, provoked by the fake runtime.
#include <doctest/doctest.h>

#include <functional>

#include "extensions/linear_algebra/linalg.h"
#include "tests/cudasim/fake.h"
#include "tests/messages.h"

using namespace lockstep;

namespace {

const TensorOptions there{.dtype = f32, .device = Device{Device::Type::cuda, 0}};

/// Clears the injected faults at the end of a test.
struct Clean {
  ~Clean() {
    fake::fail_launch(0);
    fake::reset();
  }
};

}  // namespace

TEST_CASE("cuda errors: linear algebra names the library's call") {
  const Clean clean;
  const Tensor one = eye(40, 40, there), many = stack({one, one}), small = many.slice(1, 0, 5).slice(2, 0, 5);
  const struct {
    std::function<void()> call;
    const char* part;
  } rows[] = {{[&] { linalg::inv(one); }, "[linalg] cuSOLVER's getrf failed with status"},
              {[&] { linalg::inv(one); }, "cuSOLVER's getrs failed"},
              {[&] { linalg::inv(many); }, "cuBLAS's getrfBatched failed"},
              {[&] { linalg::inv(many); }, "cuBLAS's getrsBatched failed"},
              {[&] { linalg::cholesky(one); }, "cuSOLVER's potrf failed"},
              {[&] { linalg::cholesky(many); }, "cuSOLVER's potrfBatched failed"},
              {[&] { linalg::qr(many); }, "cuSOLVER's geqrf failed"},
              {[&] { linalg::qr(many); }, "cuSOLVER's orgqr failed"},
              {[&] { linalg::svd(many); }, "cuSOLVER's gesvd failed"},
              {[&] { linalg::svd(small); }, "cuSOLVER's gesvdjBatched failed"},
              {[&] { linalg::eigh(many); }, "cuSOLVER's syevd failed"},
              {[&] { linalg::eigh(small); }, "cuSOLVER's syevjBatched failed"},
              {[&] { linalg::solve_triangular(one, one, true); }, "cuBLAS's trsm failed"},
              {[&] { linalg::solve_triangular(many, many, true); }, "cuBLAS's trsmBatched failed"}};
  for (const auto& row : rows) {
    std::string all;  // the messages when each launch of row.call in turn fails
    for (int64_t nth = 1; nth < 30; ++nth) {
      fake::fail_launch(nth);
      all += message(row.call) + "\n";
    }
    fake::fail_launch(0);
    CAPTURE(row.part);
    CHECK(contains(all, row.part));
  }
}
