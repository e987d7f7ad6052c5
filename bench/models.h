#pragma once
// The models of the peer scripts (gpt.py, mlp.py, cnn.py): same shapes, batches, data and optimizers.
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/ceiling.h"
#include "nn/nn.h"
#include "optim/optim.h"

namespace bench {

/// One model, ready to be trained.
struct Job {
  std::shared_ptr<lockstep::nn::Module> model;
  std::function<std::unique_ptr<lockstep::optim::Optimizer>(lockstep::nn::Module&)> make_optimizer;
  std::function<lockstep::Variable(int64_t step)> loss;  ///< forward on the batch of a step
  std::function<void()> infer;                           ///< forward alone, nothing recorded
  std::function<std::pair<lockstep::Tensor, lockstep::Tensor>(int64_t step)> batch;  ///< gpt: tokens and targets
  int64_t items = 0;                                                                 ///< tokens or samples a step
  const char* unit = "samples";
  double flops = 0;               ///< of a step's matrix products, convolutions and attention
  std::vector<GemmShape> shapes;  ///< of its matrix products
};

/// gpt-tiny, gpt-small, gpt-124M, mlp, lenet or resnet. batch 0 means the peer's. `weights`, for gpt: a safetensors
/// file written by the peer's gpt.py --save, to start from the same numbers.
Job make_job(const std::string& name, int64_t batch, int64_t steps, const std::string& weights);

}  // namespace bench
