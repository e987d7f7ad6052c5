// Batch norm with statistics of all ranks. See sync_batch_norm.h.
#include "extensions/vision/sync_batch_norm.h"

#include <numeric>

#include "autograd/autocast.h"
#include "autograd/recorded.h"
#include "tensor/ops.h"

namespace lockstep::parallel {

namespace {

/// Count, mean and M2 (sum of squared distances from the mean) of each channel.
struct Moments {
  double count = 0;
  std::vector<double> mean, m2;

  void merge(double n, const double* mean_b, const double* m2_b) {
    if (n == 0) return;
    const double total = count + n;
    for (size_t c = 0; c < mean.size(); ++c) {
      const double delta = mean_b[c] - mean[c];
      mean[c] += delta * (n / total);
      m2[c] += m2_b[c] + delta * delta * (count * n / total);
    }
    count = total;
  }
};

Moments moments_of_all(const Tensor& x, dist::ProcessGroup& group) {
  const int64_t channels = x.size(1), width = 2 * channels + 1;
  const Tensor row = zeros({width}, {.dtype = f64, .device = x.device()});
  if (x.numel() > 0) {
    Dims dims{0};
    for (int d = 2; d < x.dim(); ++d) dims.push_back(d);
    const double count = double(x.numel() / channels);
    row.narrow(0, 0, 1).fill_(count);
    row.narrow(0, 1, channels).copy_(mean(x, dims));
    row.narrow(0, 1 + channels, channels).copy_(mul_scalar(var(x, dims, 0).to(f64), count));
  }
  const Tensor rows = empty({width * group.size()}, {.dtype = f64, .device = x.device()});
  group.all_gather(rows, row, {.tag = "batch norm statistics"});
  const std::vector<double> all = rows.to_vector<double>();
  Moments moments{0, std::vector<double>(size_t(channels)), std::vector<double>(size_t(channels))};
  for (int rank = 0; rank < group.size(); ++rank) {
    const double* r = all.data() + rank * width;
    moments.merge(r[0], r + 1, r + 1 + channels);
  }
  return moments;
}

Tensor channel_tensor(std::vector<double> values, double divisor, DType dtype, Device device) {
  for (double& value : values) value /= divisor;
  const int64_t n = int64_t(values.size());
  return Tensor::from(values, {n}).to(dtype).to(device);
}

}  // namespace

Variable sync_batch_norm(const Variable& input, const Variable& scale, const Variable& shift,
                         const Tensor& running_mean, const Tensor& running_var, double momentum, double eps,
                         std::shared_ptr<dist::ProcessGroup> group) {
  LOCKSTEP_CHECK(group, "[sync_batch_norm] expected a process group, got none; make one with new_group()");
  LOCKSTEP_CHECK(input.dim() >= 2, "[sync_batch_norm] expected x (N, C, ...), got ", input.shape(), "; unsqueeze() it");
  if (group->size() == 1) return batch_norm(input, scale, shift, running_mean, running_var, true, momentum, eps);
  const auto [x, weight, bias] = Autocast::of_norm(input, scale, shift);
  const DType dtype = size_of(x.dtype()) == 2 ? f32 : x.dtype();
  const Moments moments = moments_of_all(x.tensor().to(dtype), *group);
  const double count = moments.count;
  LOCKSTEP_CHECK(count > 1, "[sync_batch_norm] expected more than one value per channel over all ranks, got ", count,
                 "; give it more samples, or call eval()");
  const Tensor mean = channel_tensor(moments.mean, 1, dtype, x.device()),
               var = channel_tensor(moments.m2, count, dtype, x.device());
  const auto tensor_of = [](const Variable& v) { return v.defined() ? v.tensor() : Tensor(); };
  NormResult result = batch_norm(x.tensor(), tensor_of(weight), tensor_of(bias), mean, var, false, 0, eps);
  if (running_mean.defined()) {
    running_mean.copy_(lerp(running_mean.to(dtype), mean, momentum));
    running_var.copy_(lerp(running_var.to(dtype), channel_tensor(moments.m2, count - 1, dtype, x.device()), momentum));
  }
  Tensor out = std::exchange(result.out, {});
  return on_tape(
      "sync_batch_norm", {&x, &weight, &bias}, std::move(out),
      [x = Saved(x), weight = Saved(weight), result = std::move(result), group = std::move(group), count,
       dtype](Backward& back) {
        const Tensor& data = x.get("sync_batch_norm");
        const int64_t channels = data.size(1);
        const Tensor& kept = weight.get("sync_batch_norm");
        const Tensor w = kept.defined() ? kept : ones({channels}, {.dtype = data.dtype(), .device = data.device()});
        // grads.x: dx = dy w rstd, as if the statistics were constant. grads.weight, grads.bias: Σ dy x̂ and Σ dy,
        // which the derivative of the statistics needs; x̂ is the normalised x.
        NormGrad grads = batch_norm_grad(back.grad(), data, result, w, true, false);
        back.give(1, grads.weight);
        back.give(2, grads.bias);
        if (!back.needs(0)) return;
        const Tensor sums = cat({grads.bias.to(f64), grads.weight.to(f64)});
        group->all_reduce(sums, {.tag = "batch norm gradients"});
        // With the derivative of the statistics, and a and b as below:
        //   dx = w rstd (dy - mean(dy) - x̂ mean(dy x̂)) = dy w rstd + (x - mean) a + b
        const Tensor grad_mean = div_scalar(sums.narrow(0, 0, channels), count),
                     slope = div_scalar(sums.narrow(0, channels, channels), count);
        const Tensor rstd = result.rstd.to(f64), scale = mul(w.to(f64), rstd), a = neg(mul(mul(scale, rstd), slope));
        const Tensor b = neg(mul(scale, grad_mean));
        Shape shape = Dims::filled(data.dim() - 1, 1);
        shape[0] = channels;
        const Tensor correction =
            add(mul(sub(data.to(dtype), result.mean.view(shape)), a.to(dtype).view(shape)), b.to(dtype).view(shape));
        back.give(0, add(grads.x.to(dtype), correction).to(data.dtype()));
      });
}

int convert_sync_batch_norm(nn::Module& module, dist::ProcessGroup* given) {
  dist::ProcessGroup& parent = given ? *given : dist::world();
  std::vector<int> ranks(static_cast<size_t>(parent.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  const std::shared_ptr<dist::ProcessGroup> group = parent.new_group(ranks, parent.name() + ".sync_batch_norm");
  int layers = 0;
  module.apply([&](nn::Module& m) {
    auto* const layer = dynamic_cast<nn::BatchNorm*>(&m);
    if (!layer) return;
    layer->across_ranks = [group](const auto&... arguments) { return sync_batch_norm(arguments..., group); };
    ++layers;
  });
  return layers;
}

}  // namespace lockstep::parallel
