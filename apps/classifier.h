#pragma once
// The code that the programs mlp and cnn share: trains and evaluates an image classifier.
#include <functional>
#include <memory>
#include <string>

#include "nn/container.h"

namespace apps {

/// Makes a model for images of shape (channels, size, size) and 10 classes.
using MakeModel = std::function<std::unique_ptr<lockstep::nn::Sequential>(int64_t channels, int64_t size)>;

/// main() of a classifier, with the subcommands train and eval. Returns the exit code. epochs: the default of --epochs.
int classifier_main(int argc, char** argv, const std::string& name, const std::string& about, int64_t epochs,
                    const MakeModel& make_model);

}  // namespace apps
