#pragma once
// Image classifiers, for mlp and cnn: their data, and what is measured.
#include <functional>
#include <memory>
#include <string>

#include "nn/container.h"

namespace apps {

/// Makes the model for images of (channels, size, size) and 10 classes.
using MakeModel = std::function<std::unique_ptr<lockstep::nn::Sequential>(int64_t channels, int64_t size)>;

/// The whole program: subcommands train and eval.
int classifier_main(int argc, char** argv, const std::string& name, const std::string& about, int64_t epochs,
                    const MakeModel& make_model);

}  // namespace apps
