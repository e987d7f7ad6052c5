// A Siamese net: two pictures of digits in, two targets: do they show the same class, and which class has the left one?
//   guide_a_siamese --epochs 2 --out runs/siamese
//   guide_a_siamese --epochs 4 --out runs/siamese --resume
#include <lockstep.h>
#include <lockstep/metrics.h>

namespace ls = lockstep;

struct Siamese : ls::nn::Layer<Siamese> {
  explicit Siamese(int64_t width)
      : tower({.in = 784, .out = width}), same({.in = width, .out = 2}), digit({.in = width, .out = 10}) {}
  // A Trainer's model returns one variable: scores of same in columns 0 and 1, of the digit in columns 2 to 11.
  ls::Variable forward(const ls::Variable& left, const ls::Variable& right) {
    const ls::Variable a = ls::relu(tower(left.flatten(1))), b = ls::relu(tower(right.flatten(1)));
    return ls::cat({same(ls::abs(a - b)), digit(a)}, 1);
  }
  void fields(ls::nn::Fields& f) override { f("tower", tower)("same", same)("digit", digit); }

  ls::nn::Linear tower, same, digit;
};

struct Pairs : ls::data::Dataset<> {
  Pairs(int64_t n, uint64_t seed) : digits(n, seed) {}
  int64_t size() const override { return digits.size(); }
  ls::data::Example get(int64_t i) const override {
    const auto [a, x] = digits.get(i);
    int64_t j = i;  // even samples: a partner of the same class
    do j = (j + 1) % size();
    while ((digits.get(j).target.item() == x.item()) != (i % 2 == 0));
    return {a, ls::Tensor::from<int64_t>({i % 2 == 0}, {}), {digits.get(j).input}, {x}};
  }
  ls::data::SyntheticDigits digits;
};

int main(int argc, char** argv) {
  int64_t width = 64;
  ls::train::TrainOptions defaults;
  defaults.batch = 32;
  defaults.epochs = 4;
  return ls::train::program(
      argc, argv, "a Siamese net for pairs of digits",
      {{"--width", &width, "features of a picture", ls::train::integer(1, 1024)}},
      [&](ls::train::TrainJob& job) {
        const Pairs train(1024, 2 * job.options().seed), test(256, 2 * job.options().seed + 1);
        Siamese model(width);
        ls::train::TrainerOptions options;
        options.loss = [](const ls::Variable& out, const std::vector<ls::Tensor>& targets) {
          return ls::cross_entropy(out.narrow(1, 0, 2), targets[0]) +
                 ls::cross_entropy(out.narrow(1, 2, 10), targets[1]);
        };
        options.data = ls::data::share(train);
        options.evaluate = ls::data::share(test);
        options.preprocess_logits_for_metrics = [](const ls::Variable& out, const std::vector<ls::Tensor>&) {
          return ls::argmax(out.narrow(1, 0, 2), 1);
        };
        options.compute_metrics = ls::metrics::MetricCollection(
            {{"accuracy", ls::metrics::share(ls::metrics::Accuracy())},
             {"f1",
              ls::metrics::share(ls::metrics::F1Score({.classes = 2, .average = ls::metrics::Average::binary}))}});
        ls::train::Trainer(job, model, options).fit();
      },
      defaults);
}
