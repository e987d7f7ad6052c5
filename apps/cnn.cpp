// cnn: a network for images: convolutions to 32 and 64 channels, pooling, linear layers to 128 and 10 features.
#include "apps/classifier.h"
#include "nn/activation.h"
#include "nn/conv.h"
#include "nn/linear.h"

int main(int argc, char** argv) {
  using namespace lockstep::nn;
  const auto make_model = [](int64_t channels, int64_t size) {
    const int64_t pooled = (size - 4) / 2;  // after two 3x3 convolutions without padding and a 2x2 pool
    return std::make_unique<Sequential>(Conv2d({.in = channels, .out = 32, .kernel = 3}), ReLU(),
                                        Conv2d({.in = 32, .out = 64, .kernel = 3}), ReLU(), MaxPool2d(), Flatten(),
                                        Linear({.in = 64 * pooled * pooled, .out = 128}), ReLU(),
                                        Linear({.in = 128, .out = 10}));
  };
  return apps::classifier_main(argc, argv, "cnn",
                               "A small convolutional network (conv 32, conv 64, pool, 128) that learns to read images",
                               3, make_model);
}
