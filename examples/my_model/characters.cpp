// A character model with a custom layer: layer i mixes each character with the character 2^i places before.
//   build/characters --steps 300
//   lockstep run -n 2 -- build/characters --steps 300 --plan pp2
#include <lockstep.h>

namespace ls = lockstep;
using ls::Variable, ls::Tensor;

constexpr int64_t vocab = 128, context = 32, width = 96;

/// x + out(sigmoid(gate(m)) * value(m)), where m is a weighted mean, with learned weights, of norm(x) at this token and
/// x at the token `distance` places before.
struct Mixer : ls::nn::Layer<Mixer> {
  explicit Mixer(int64_t distance) : distance(distance) {}
  Variable forward(const Variable& x) {
    const Variable before =
        ls::cat({Variable(ls::zeros({x.size(0), distance, width}, {.dtype = x.dtype(), .device = x.device()})),
                 x.narrow(1, 0, x.size(1) - distance)},
                1);
    const Variable share = ls::sigmoid(mix), mixed = ls::add(before, ls::mul(share, ls::sub(norm(x), before)));
    return ls::add(x, out(ls::mul(ls::sigmoid(gate(mixed)), value(mixed))));
  }
  void fields(ls::nn::Fields& f) override { f("mix", mix)("norm", norm)("gate", gate)("value", value)("out", out); }

  int64_t distance;
  Variable mix = parameter({width}, 0);
  ls::nn::LayerNorm norm{width};
  ls::nn::Linear gate{{.in = width, .out = 2 * width}}, value{{.in = width, .out = 2 * width}},
      out{{.in = 2 * width, .out = width}};
};

struct Characters : ls::nn::Layer<Characters> {
  Characters() {
    for (int64_t distance = 1; distance < context; distance *= 2) mixers.emplace_back(distance);
  }
  /// text (B, T); returns scores (B, T, vocab) of the next characters.
  Variable forward(const Tensor& text) {
    Variable x = table(text);
    for (auto& mixer : mixers.items) x = (*mixer)(x);
    return head(x);
  }
  void fields(ls::nn::Fields& f) override { f("table", table)("mixers", mixers)("head", head); }
  ls::nn::LayerList layers() override {
    ls::nn::LayerList list;
    list.add(table);
    for (auto& mixer : mixers.items) list.add(*mixer);
    return list.add(head);
  }

  ls::nn::Embedding table{{.num = vocab, .dim = width}};
  ls::nn::ModuleList<Mixer> mixers;
  ls::nn::Linear head{{.in = width, .out = vocab}};
};

/// Text of `count` random sums, "12+34=46\n" each.
Tensor sums(int64_t count, uint64_t seed) {
  std::string text;
  for (uint64_t i = 0, state = seed + 1; i < uint64_t(count); ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const int a = int(state >> 40) % 50, b = int(state >> 50) % 50;
    text += ls::str(a, "+", b, "=", a + b, "\n");
  }
  return Tensor::from(std::vector<uint8_t>(text.begin(), text.end()), {int64_t(text.size())});
}

Variable loss(const Variable& scores, const Tensor& next) {
  return ls::cross_entropy(scores.reshape({-1, vocab}), next.reshape({-1}));
}

int main(int argc, char** argv) {
  ls::train::TrainOptions defaults;
  defaults.steps = 200;
  defaults.batch = 8;
  return ls::train::run(
      argc, argv, "a model of characters that learns to add",
      [](ls::train::TrainJob& job) {
        const ls::data::TokenBatches batches(sums(20000, job.options().seed), job.options().seed);
        const ls::data::TextDataset test(sums(200, job.options().seed + 1), {.context = context, .stride = context});
        Characters model;
        ls::train::Trainer trainer(
            job, model,
            {.loss = loss,
             .batches = [&](int64_t step, int64_t micro,
                            int64_t samples) { return batches.sample(step, micro, samples, context); },
             .evaluate = ls::data::share(test),
             .optimizer =
                 [](ls::nn::Module& m) {
                   return std::make_unique<ls::optim::AdamW>(m.parameters(), ls::optim::AdamWOptions{.lr = 3e-3});
                 },
             .unit = "characters",
             .per_sample = context});
        trainer.fit();
      },
      defaults);
}
