// Metric learning with a triplet loss (Schroff et al., 2015): embeds digits so that equal ones are close to each other.
//   build/examples/siamese --steps 200
#include <lockstep/layers.h>

#include "examples/ports/port.h"

namespace ls = lockstep;
using ls::Tensor, ls::Variable;

struct Placer : ls::nn::Layer<Placer> {
  /// images (B, 1, 28, 28); returns embeddings (B, 16).
  Variable forward(const Variable& images) {
    const Variable x = pool(ls::relu(conv2(pool(ls::relu(conv1(images))))));
    return head(x.reshape({x.size(0), -1}));
  }
  void fields(ls::nn::Fields& f) override { f("conv1", conv1)("conv2", conv2)("head", head); }

  ls::nn::Conv2d conv1{{.in = 1, .out = 8, .kernel = 5, .padding = 2}},
      conv2{{.in = 8, .out = 16, .kernel = 5, .padding = 2}};
  ls::nn::MaxPool2d pool{{.kernel = 2}};
  ls::nn::Linear head{{.in = 16 * 49, .out = 16}};
};

/// For each sample, the index of the next sample (cyclically) whose label is the same (`same`) or different.
Tensor partners(const Tensor& labels, bool same) {
  const auto all = labels.to_vector<int64_t>();
  std::vector<int64_t> found(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    size_t j = i;
    do j = (j + 1) % all.size();
    while (j != i && (all[j] == all[i]) != same);
    found[i] = int64_t(j);
  }
  return Tensor::from(found, labels.shape());
}

int main(int argc, char** argv) {
  return ports::run(argc, argv, "a siamese network of digits", {.steps = 150, .lr = 0.02}, [](ports::Run& run) {
    Placer model;
    run.start(model);
    ls::optim::SGD optimizer(model.parameters(), {.lr = run.lr, .momentum = 0.9});
    while (run.next()) {
      const auto [images, labels] = run.digits(run.batch);
      const Variable points = model(Variable(images));
      const Variable loss = ls::triplet_margin_loss(points, ls::index_select(points, 0, partners(labels, true)),
                                                    ls::index_select(points, 0, partners(labels, false)));
      optimizer.zero_grad();
      loss.backward();
      optimizer.step();
      run.report(loss);
    }
  });
}
