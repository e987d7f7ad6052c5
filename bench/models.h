#pragma once
// The models of the PyTorch scripts that we compare with (the peer scripts gpt.py, mlp.py and cnn.py; see RESULTS.md),
// with the same shapes, batches, data and optimizers.
#include <functional>

#include "nn/nn.h"
#include "optim/optim.h"

namespace bench {

/// A product of (m x k) and (k x n).
struct GemmShape {
  int64_t m, n, k;
  /// Floating-point operations of the product.
  double flops() const { return 2. * m * n * k; }
  auto operator<=>(const GemmShape&) const = default;
};

/// A model to train, with its data.
struct Job {
  std::shared_ptr<lockstep::nn::Module> model;
  /// Makes the optimizer that the PyTorch script uses for the model.
  std::function<std::unique_ptr<lockstep::optim::Optimizer>(lockstep::nn::Module&)> make_optimizer;
  std::function<lockstep::Variable(int64_t step)> loss;  ///< forward and loss on the batch of a step
  std::function<void()> infer;                           ///< forward only, without recording
  std::function<std::pair<lockstep::Tensor, lockstep::Tensor>(int64_t step)> batch;  ///< gpt: tokens and targets
  int64_t items = 0;                                                                 ///< tokens or samples per step
  const char* unit = "samples";
  double flops = 0;               ///< operations per step in products, convolutions and attention
  std::vector<GemmShape> shapes;  ///< matrix products of a step
};

/// Makes gpt-tiny, gpt-small, gpt-124M, mlp, lenet or resnet. batch 0: the PyTorch script's batch size. `weights`, for
/// gpt models: a safetensors file of initial weights, written by gpt.py --save.
Job make_job(const std::string& name, int64_t batch, int64_t steps, const std::string& weights);

}  // namespace bench
