// The communication hooks: 16-bit rounding, PowerSGD, post-local SGD. See comm_hooks.h.
#include "extensions/compression/comm_hooks.h"

#include <cmath>
#include <map>

#include "dist/fingerprint.h"
#include "parallel/flat.h"
#include "tensor/ops.h"
#include "tensor/random.h"

namespace lockstep::parallel {

namespace {

std::string tag_of(const char* hook, const GradBucket& bucket) { return str("ddp ", hook, " ", bucket.label); }

std::function<void()> mean_of(const Tensor& flat, dist::ProcessGroup& group, const std::string& tag) {
  return [work = group.all_reduce(flat, {.op = dist::ReduceOp::mean, .tag = tag, .async = true})]() mutable {
    work.wait();
  };
}

CommHook compress_hook(DType low, const char* name) {
  return [low, name](GradBucket& bucket, dist::ProcessGroup& group) -> std::function<void()> {
    const Tensor flat = bucket.gradients;
    if (flat.dtype() == low) return mean_of(flat, group, tag_of(name, bucket));
    const MemoryScope scope(Memory::communication);
    const Tensor sent = div_scalar(flat, group.size()).to(low);
    return [flat, sent, work = group.all_reduce(sent, {.tag = tag_of(name, bucket), .async = true})]() mutable {
      work.wait();
      flat.copy_(sent);
    };
  };
}

/// Gram-Schmidt on the columns of p, in place. A column that depends linearly on those before it becomes zero.
void orthonormalise(const Tensor& p) {
  for (int64_t i = 0; i < p.size(1); ++i) {
    const Tensor column = p.narrow(1, i, 1);
    const double before = norm(column).item();
    for (int pass = 0; pass < 2 && i > 0; ++pass) {  // two passes are enough (Kahan)
      const Tensor others = p.narrow(1, 0, i).contiguous();
      sub_(column, matmul(others, matmul(others.t(), column.contiguous())));
    }
    const double length = norm(column).item();
    if (length > 1e-6 * before && length > 1e-30) div_scalar_(column, length);
    else column.zero_();
  }
}

}  // namespace

CommHook fp16_compress_hook() { return compress_hook(f16, "fp16"); }
CommHook bf16_compress_hook() { return compress_hook(bf16, "bf16"); }

// --- PowerSGD ---

struct PowerSgd::State {
  Options o;
  int64_t step = -1;
  std::map<std::string, Tensor> errors, q;

  /// True if compression of an (n, m) gradient to rank r saves enough: n * m >= min_compression * r * (n + m).
  bool compresses(const Tensor& gradient) const {
    if (gradient.dim() < 2 || gradient.numel() == 0) return false;
    const int64_t n = gradient.size(0), m = gradient.numel() / n, r = rank_of(n, m);
    return double(n) * double(m) >= o.min_compression * double(r) * double(n + m);
  }
  int64_t rank_of(int64_t n, int64_t m) const { return std::min({o.rank, n, m}); }

  /// Returns the matrix Q (m, r) from which the power iteration starts, the same on all ranks: Q of the last step, or
  /// random numbers seeded by the parameter's name.
  Tensor start(const std::string& name, int64_t m, int64_t r) {
    Tensor& last = q[name];
    if (o.warm_start && last.defined()) {
      bool alive = true;  // false if a column of Q is zero, and so useless as a start of the iteration
      for (int64_t i = 0; i < r; ++i) alive &= norm(last.narrow(1, i, 1)).item() > 0;
      if (alive && all_finite(last)) return last;
    }
    // The scope leaves the program's own random state as it was.
    const RandomScope here({.seed = o.seed ^ dist::hash_text(name), .step = uint64_t(step)});
    return last = randn({m, r});
  }
};

PowerSgd::PowerSgd(const Options& options) : state_(std::make_shared<State>()) {
  LOCKSTEP_CHECK(options.rank >= 1, "[PowerSgd] expected rank >= 1, got ", options.rank);
  LOCKSTEP_CHECK(options.start_step >= 0, "[PowerSgd] expected start_step >= 0, got ", options.start_step);
  LOCKSTEP_CHECK(options.min_compression > 0 && std::isfinite(options.min_compression),
                 "[PowerSgd] expected a finite min_compression > 0, got ", options.min_compression);
  state_->o = options;
}

Tensor PowerSgd::error(const std::string& parameter) const {
  const auto found = state_->errors.find(parameter);
  return found == state_->errors.end() ? Tensor() : found->second;
}

CommHook PowerSgd::hook() const {
  return [state = state_](GradBucket& bucket, dist::ProcessGroup& group) -> std::function<void()> {
    State& s = *state;
    if (bucket.index == 0) ++s.step;
    if (s.step < s.o.start_step) return mean_of(bucket.gradients, group, tag_of("powersgd", bucket));
    struct Matrix {
      std::string name;
      Tensor place, m, p, q;
    };
    std::vector<Matrix> matrices;
    std::vector<Tensor> plain;  // vectors and small matrices, sent uncompressed
    for (size_t i = 0; i < bucket.names.size(); ++i) {
      const Tensor& gradient = bucket.parameters[i];
      if (!s.compresses(gradient)) {
        plain.push_back(gradient);
        continue;
      }
      const int64_t rows = gradient.size(0), columns = gradient.numel() / rows;
      Matrix& x = matrices.emplace_back(Matrix{.name = bucket.names[i], .place = gradient.view({rows, columns})});
      x.q = s.start(x.name, columns, s.rank_of(rows, columns));
      x.m = x.place.to(f32);
      const auto owed = s.errors.find(x.name);
      x.m = s.o.error_feedback && owed != s.errors.end() ? add(x.m, owed->second) : x.m.clone();
    }
    const MemoryScope scope(Memory::communication);
    std::vector<Tensor> products;
    for (const Matrix& x : matrices) products.push_back(matmul(x.m, x.q));
    const Packed rest(plain), all_p(products);
    std::function<void()> rest_done, p_done;
    if (rest.flat.defined()) rest_done = mean_of(rest.flat, group, tag_of("powersgd plain", bucket));
    if (all_p.flat.defined()) p_done = mean_of(all_p.flat, group, tag_of("powersgd P", bucket));
    for (size_t i = 0; i < matrices.size(); ++i) matrices[i].p = all_p.parts[i];
    return [state, &bucket, &group, matrices, plain, rest, rest_done, p_done] {
      State& s = *state;
      if (rest_done) rest_done();
      for (size_t i = 0; i < plain.size(); ++i) plain[i].copy_(rest.parts[i]);
      if (!p_done) return;
      p_done();
      std::vector<Tensor> products;
      for (const Matrix& x : matrices) {
        orthonormalise(x.p);
        products.push_back(matmul(x.m.t(), x.p));
        if (s.o.error_feedback) s.errors[x.name] = sub(x.m, matmul(x.p, products.back().t()));
      }
      const Packed all_q(products);
      group.all_reduce(all_q.flat, {.op = dist::ReduceOp::mean, .tag = tag_of("powersgd Q", bucket)});
      for (size_t i = 0; i < matrices.size(); ++i) {
        matrices[i].place.copy_(matmul(matrices[i].p, all_q.parts[i].t()));
        s.q[matrices[i].name] = all_q.parts[i].clone();
      }
    };
  };
}

// --- post-local SGD ---

PostLocalSgd::PostLocalSgd(const Options& options) : o_(options) {
  LOCKSTEP_CHECK(o_.start_step >= 0, "[PostLocalSgd] expected start_step >= 0, got ", o_.start_step);
  LOCKSTEP_CHECK(o_.period >= 1, "[PostLocalSgd] expected period >= 1, got ", o_.period);
}

CommHook PostLocalSgd::hook() const {
  return [o = o_, step = step_](GradBucket& bucket, dist::ProcessGroup& group) -> std::function<void()> {
    if (bucket.index == 0) ++*step;
    if (*step < o.start_step) return mean_of(bucket.gradients, group, tag_of("local sgd", bucket));
    if (o.subgroup) return mean_of(bucket.gradients, *o.subgroup, tag_of("local sgd", bucket));
    return {};
  };
}

bool PostLocalSgd::step(nn::Module& module, dist::ProcessGroup& group) {
  const int64_t after = ++taken_ - o_.start_step;
  if (after <= 0 || after % o_.period != 0) return false;
  for (auto& p : module.named_parameters()) {
    const Tensor& tensor = p.variable.tensor();
    const Tensor dense = tensor.contiguous();
    group.all_reduce(dense, {.op = dist::ReduceOp::mean, .tag = p.name});
    if (dense.storage() != tensor.storage()) tensor.copy_(dense);
  }
  return true;
}

}  // namespace lockstep::parallel
