// Measures the overhead of tiny operations on one thread. A program for libtorch has the same cases, for comparison.
#include "autograd/ops.h"
#include "base/threads.h"
#include "bench/cases.h"
#include "tensor/random.h"

using namespace lockstep;

namespace {

/// 100 dependent operations.
Variable chain(Variable t, const Variable& y) {
  for (int i = 0; i < 50; ++i) t = (t * y) + y;
  return t;
}

void add(const std::string& name, std::function<void()> timed) {
  bench::add_case(name, {}, [timed = std::move(timed)] { return timed; });
}

}  // namespace

int main(int argc, char** argv) {
  set_threads(1);
  manual_seed(0);
  Variable x = randn({4}), y = randn({4}), m = randn({4, 4}), v = randn({4, 4});
  Variable leaf(randn({4}), true), w(randn({4, 4}), true);
  Variable result;
  Tensor raw;
  add("add_4", [&] { result = x + y; });
  add("add_4_inplace", [&] { add_(x, y); });
  add("add_4_grad", [&] { result = leaf + y; });
  add("empty_4", [&] { raw = empty({4}); });
  add("view_slice", [&] { result = m.slice(0, 1, 3).slice(1, 0, 2); });
  add("matmul_4x4", [&] { result = matmul(m, v); });
  add("sum_4", [&] { result = sum(x); });
  add("chain100_fwd_nograd", [&] {
    const NoGrad no_grad;
    result = chain(x, y);
  });
  add("add_4_inference_mode", [&] { raw = x.tensor() + x.tensor(); });  // tensors are not recorded
  add("chain100_fwd", [&] { result = chain(leaf, y); });
  add("chain100_fwd_bwd", [&] {
    leaf.clear_grad();
    sum(chain(leaf, y)).backward();
  });
  add("matmul_relu_sum_fwd_bwd", [&] {
    w.clear_grad();
    sum(relu(matmul(w, v))).backward();
  });
  return bench::run_cases(argc, argv, "overhead", "case");
}
