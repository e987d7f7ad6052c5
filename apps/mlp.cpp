// mlp: a multi-layer perceptron for images of digits, 784-512-512-10.
#include "apps/classifier.h"
#include "nn/activation.h"
#include "nn/linear.h"

int main(int argc, char** argv) {
  using namespace lockstep::nn;
  const auto make_model = [](int64_t channels, int64_t size) {
    return std::make_unique<Sequential>(Flatten(), Linear({.in = channels * size * size, .out = 512}), ReLU(),
                                        Linear({.in = 512, .out = 512}), ReLU(), Linear({.in = 512, .out = 10}));
  };
  return apps::classifier_main(argc, argv, "mlp",
                               "A multi-layer perceptron (784-512-512-10) that learns to read digits", 5, make_model);
}
