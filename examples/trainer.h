#pragma once
// Shared by ddp_spawn.cpp and ddp.cpp: the dataset, and a trainer that does not depend on how its rank was started.
#include <lockstep.h>

#include <iostream>

#include "dist/process_group.h"
#include "parallel/ddp.h"

/// Samples of 20 random numbers, with a random target. Every rank creates the same data and reads its own part.
struct MyTrainDataset : lockstep::data::Dataset<lockstep::data::Example> {
  explicit MyTrainDataset(int64_t size) : inputs(lockstep::rand({size, 20})), targets(lockstep::rand({size, 1})) {}
  int64_t size() const override { return inputs.size(0); }
  lockstep::data::Example get(int64_t i) const override { return {inputs[i], targets[i]}; }

  lockstep::Tensor inputs, targets;
};

/// Trains a model with DistributedDataParallel and any optimizer.
class Trainer {
 public:
  /// Batches of this rank.
  using Loader = lockstep::data::DataLoader<>;
  /// Wraps the model; all ranks must construct it.
  Trainer(lockstep::nn::Module& model, Loader& loader, lockstep::optim::Optimizer& optimizer)
      : ddp_(model), loader_(loader), optimizer_(optimizer), rank_(lockstep::dist::world().rank()) {}

  /// Runs all epochs, and prints as it goes.
  void train(int64_t max_epochs) {
    for (int64_t epoch = 0; epoch < max_epochs; ++epoch) run_epoch(epoch);
    say("Done | Bias: ", ddp_.module().named_parameters()[1].variable.item());  // the bias is the same on all ranks
  }

 private:
  void run_epoch(int64_t epoch) {
    double loss = 0;
    int64_t batch_size = 0;
    for (auto& [x, y] : loader_) {  // the loader passes its epoch to the sampler, which reshuffles
      batch_size = std::max(batch_size, x.size(0));
      loss += run_batch(x, y);
    }
    say("Epoch: ", epoch, " | Batchsize: ", batch_size, " | Steps: ", loader_.size(),
        " | Loss: ", loss / double(loader_.size()));
  }

  double run_batch(const lockstep::Tensor& x, const lockstep::Tensor& y) {
    optimizer_.zero_grad();
    // Mean squared error, because the targets are real numbers. Cross entropy over a single class would be constantly 0
    // and train nothing.
    const lockstep::Variable loss = lockstep::mse_loss(ddp_(x), y);
    loss.backward();  // when it returns, gradients are averaged over the ranks
    optimizer_.step();
    return loss.item();
  }

  template <class... Args> void say(const Args&... args) {  // a single write, because other ranks print too
    std::cout << lockstep::str("[Rank: ", rank_, "] ", args..., "\n") << std::flush;
  }

  lockstep::parallel::DistributedDataParallel ddp_;
  Loader& loader_;
  lockstep::optim::Optimizer& optimizer_;
  int rank_;
};

/// Runs the training of one rank.
inline void train_rank(int64_t max_epochs, int64_t batch_size) {
  namespace ls = lockstep;
  const ls::dist::ProcessGroup& world = ls::dist::world();
  ls::manual_seed(1);
  const MyTrainDataset dataset(2048);
  Trainer::Loader loader(
      dataset,
      {.batch_size = batch_size, .sampler = ls::data::DistributedSampler(dataset.size(), world.size(), world.rank())});
  ls::nn::Linear model({.in = 20, .out = 1});
  ls::optim::SGD optimizer(model.parameters(), {.lr = 1e-3});
  Trainer(model, loader, optimizer).train(max_epochs);
}
