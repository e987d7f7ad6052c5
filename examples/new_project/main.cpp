// A model of your own, trained by Lockstep. Change Net, loss() and the data; train::run() provides ranks, checkpoints
// and metrics.
//   build/my_project --epochs 2
//   lockstep run -n 2 -- build/my_project --plan zero3 --out runs/first
#include <lockstep.h>

namespace ls = lockstep;
using ls::Tensor, ls::Variable;

struct Net : ls::nn::Layer<Net> {
  /// images (B, 1, 28, 28); returns scores (B, 10).
  Variable forward(const Variable& images) { return head(ls::relu(hidden(images.reshape({-1, 784})))); }
  /// Names every parameter and layer once. Anything not named here is not trained.
  void fields(ls::nn::Fields& f) override { f("hidden", hidden)("head", head); }

  ls::nn::Linear hidden{{.in = 784, .out = 128}}, head{{.in = 128, .out = 10}};
};

Variable loss(const Variable& scores, const Tensor& digits) { return ls::cross_entropy(scores, digits); }
Variable accuracy(const Variable& scores, const Tensor& digits) {
  return ls::mean(Variable(ls::eq(ls::argmax(scores.tensor(), -1), digits).to(ls::f32)));
}

int main(int argc, char** argv) {
  return ls::train::run(argc, argv, "my_project", [](ls::train::TrainJob& job) {
    const uint64_t seed = job.options().seed;
    const auto training = ls::data::to_tensors(ls::data::SyntheticDigits(2048, 2 * seed)),
               test = ls::data::to_tensors(ls::data::SyntheticDigits(512, 2 * seed + 1));
    Net model;
    ls::train::Trainer trainer(job, model,
                               {.loss = loss,
                                .data = ls::data::share(training),
                                .evaluate = ls::data::share(test),
                                .metrics = {{"accuracy", accuracy}},
                                .evaluated = "test"});
    trainer.fit();
  });
}
