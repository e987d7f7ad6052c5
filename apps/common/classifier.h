#pragma once
// Training and evaluation of image classifiers, for mlp and cnn.
#include <functional>
#include <memory>

#include "apps/common/optimizer.h"
#include "apps/common/run.h"
#include "nn/container.h"

namespace apps {

struct ClassifierOptions {
  CommonOptions common;
  OptimizerOptions optimizer;
  std::string data = "digits";   ///< "digits" (drawn by us), or a folder with MNIST's IDX files or CIFAR-10's binary batches
  int64_t epochs = 5, batch = 64, samples = 8000, steps = 0;
  int workers = 1;
  double lr = 1e-3, weight_decay = 0.01;
  std::string checkpoint;        ///< eval: a checkpoint, or the folder of a run
};

/// Makes the model for images of (channels, size, size) and 10 classes.
using MakeModel = std::function<std::unique_ptr<lockstep::nn::Sequential>(int64_t channels, int64_t size)>;

/// The whole program: subcommands train and eval.
int classifier_main(int argc, char** argv, const std::string& name, const std::string& about, ClassifierOptions defaults, const MakeModel& make_model);

}  // namespace apps
