// Times oneDNN's sgemm directly, on all threads. See ceiling.h.
#include "bench/ceiling.h"

#include <algorithm>
#include <chrono>

#include "base/check.h"
#ifdef LOCKSTEP_WITH_ONEDNN
#include <oneapi/dnnl/dnnl.h>
#endif

namespace bench {
namespace {

void product([[maybe_unused]] const GemmShape& s, [[maybe_unused]] const float* a, [[maybe_unused]] const float* b,
             [[maybe_unused]] float* c) {
#ifdef LOCKSTEP_WITH_ONEDNN
  const auto status = dnnl_sgemm('N', 'N', s.m, s.n, s.k, 1, a, s.k, b, s.n, 0, c, s.n);
  LOCKSTEP_CHECK(status == dnnl_success, "[ceiling] expected oneDNN's sgemm to succeed, got status ", int(status),
                 "; use another version of oneDNN");
#else
  LOCKSTEP_CHECK(false, "[ceiling] expected a build with oneDNN, got one without; build with -Donednn=enabled");
#endif
}

}  // namespace

GemmCeiling::GemmCeiling(const std::vector<GemmShape>& shapes) {
  for (const int64_t n : {1024, 1536, 2048}) seconds_[{n, n, n}];
  for (const GemmShape& shape : shapes) seconds_[shape];
  size_t a = 0, b = 0, c = 0;
  for (const auto& [s, times] : seconds_)
    a = std::max(a, size_t(s.m * s.k)), b = std::max(b, size_t(s.k * s.n)), c = std::max(c, size_t(s.m * s.n));
  a_.assign(a, 0.5f), b_.assign(b, 0.25f), c_.assign(c, 0);
}

void GemmCeiling::measure() {
  for (auto& [shape, times] : seconds_) {
    const int runs = std::max(1, int(4e9 / shape.flops()));  // small products in groups; the first call only warms up
    product(shape, a_.data(), b_.data(), c_.data());
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < runs; ++i) product(shape, a_.data(), b_.data(), c_.data());
    times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / runs);
  }
}

double GemmCeiling::median() const {
  double ceiling = 0;
  for (auto [shape, times] : seconds_) {
    std::sort(times.begin(), times.end());
    if (!times.empty()) ceiling = std::max(ceiling, shape.flops() / times[times.size() / 2] / 1e9);
  }
  return ceiling;
}

double GemmCeiling::best() const {
  double ceiling = 0;
  for (const auto& [shape, times] : seconds_)
    for (const double t : times) ceiling = std::max(ceiling, shape.flops() / t / 1e9);
  return ceiling;
}

}  // namespace bench
