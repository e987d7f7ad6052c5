// Layers with two inputs: Bilinear, CosineSimilarity and PairwiseDistance. See similarity.h.
#include "extensions/layers/similarity.h"

#include <cmath>

#include "extensions/layers/losses.h"
#include "nn/init.h"

namespace lockstep::nn {

Bilinear::Bilinear(const Options& o) {
  LOCKSTEP_CHECK(o.in1 > 0 && o.in2 > 0 && o.out > 0, "[Bilinear] expected sizes > 0, got in1 ", o.in1, ", in2 ", o.in2,
                 " and out ", o.out);
  const double bound = 1 / std::sqrt(double(o.in1));
  weight = parameter({o.out, o.in1, o.in2});
  init::uniform(weight, -bound, bound);
  if (!o.bias) return;
  bias = parameter({o.out});
  init::uniform(bias, -bound, bound);
}

Variable Bilinear::forward(const Variable& a, const Variable& b) {
  const int64_t out = weight.size(0), in1 = weight.size(1), in2 = weight.size(2);
  Shape shape = a.shape(), beside = b.shape();
  const bool fit = a.dim() > 0 && b.dim() > 0 && a.size(-1) == in1 && b.size(-1) == in2;
  if (fit) shape[a.dim() - 1] = beside[b.dim() - 1] = out;
  LOCKSTEP_CHECK(fit && shape == beside, "[Bilinear] expected inputs (..., ", in1, ") and (..., ", in2,
                 ") of the same shape except the last dim, got ", a.shape(), " and ", b.shape(), "; reshape one");
  const int64_t n = a.numel() / in1;
  const Variable halves = linear(b.reshape({n, in2}), weight.view({out * in1, in2})).view({n, out, in1});
  const Variable y = matmul(halves, a.reshape({n, in1, 1})).reshape(shape);
  return bias.defined() ? y + bias : y;
}

std::string Bilinear::options() const {
  return str("in1 ", weight.size(1), ", in2 ", weight.size(2), ", out ", weight.size(0),
             bias.defined() ? "" : ", no bias");
}

Variable CosineSimilarity::forward(const Variable& a, const Variable& b) {
  const Shape shape = broadcast_shapes("CosineSimilarity", a.shape(), b.shape());
  const int dim = normalize_dim("CosineSimilarity", o.dim, shape.rank());
  const auto unit = [&](const Variable& v) {
    const Variable full = v.expand(shape), length = norm(full, {dim}, true);
    return full / (length + Variable(relu(o.eps - length.tensor())));  // the lower bound has no gradient
  };
  return sum(unit(a) * unit(b), {dim});
}

PairwiseDistance::PairwiseDistance(const Options& options) : o(options) {
  LOCKSTEP_CHECK(o.p > 0, "[PairwiseDistance] expected p > 0, got ", o.p);
}
Variable PairwiseDistance::forward(const Variable& a, const Variable& b) {
  const Shape shape = broadcast_shapes("PairwiseDistance", a.shape(), b.shape());
  return pairwise_distance(a.expand(shape), b.expand(shape), o.p, o.eps, o.keepdim);
}

}  // namespace lockstep::nn
