// A vision transformer (Dosovitskiy et al., 2021) on drawn digits. The program defines the model, the loss and the
// metric, and does not deal with ranks.
//   build/vit --epochs 3
//   lockstep run -n 4 -- build/vit --plan dp2+pp2 --out runs/vit
//   lockstep verify --plans ddp:1x4,ddp:4x1,zero3:2x2,pp2:2x4 --steps 5 -- build/vit
#include <lockstep.h>

namespace ls = lockstep;
using ls::Variable, ls::Tensor;

constexpr int64_t side = 28, patch = 7, patches = (side / patch) * (side / patch), width = 64;

struct ViT : ls::nn::Layer<ViT> {
  explicit ViT(int64_t depth) {
    ls::nn::init::normal(positions, 0, 0.02);
    for (int64_t i = 0; i < depth; ++i)
      blocks.emplace_back(ls::nn::TransformerBlock::Options{.width = width, .heads = 4, .causal = false});
  }
  /// images (B, 1, 28, 28); returns scores (B, 10).
  Variable forward(const Variable& images) {
    Variable x = embedded(images);
    for (auto& block : blocks.items) x = (*block)(x);
    return scores(x);
  }
  // Parameters by name. The blocks say themselves how tensor parallelism shards them; pipelines divide layers().
  void fields(ls::nn::Fields& f) override {
    f("project", project)("positions", positions)("blocks", blocks)("norm", norm)("head", head);
  }
  ls::nn::LayerList layers() override {
    ls::nn::LayerList list;
    list.add("Patches", {project, positions}, [this](const Variable& x) { return embedded(x); });
    for (auto& block : blocks.items) list.append(block->layers());
    return list.add("Scores", {norm, head}, [this](const Variable& x) { return scores(x); });
  }

  ls::nn::Linear project{{.in = patch * patch, .out = width}};
  Variable positions = parameter({patches, width});
  ls::nn::ModuleList<ls::nn::TransformerBlock> blocks;
  ls::nn::LayerNorm norm{width};
  ls::nn::Linear head{{.in = width, .out = 10}};

 private:
  Variable embedded(const Variable& images) {
    const int64_t n = side / patch;
    const Variable pieces =
        images.reshape({-1, n, patch, n, patch}).permute({0, 1, 3, 2, 4}).reshape({-1, patches, patch * patch});
    return ls::add(project(pieces), positions);
  }
  Variable scores(const Variable& x) { return head(ls::mean(norm(x), {1})); }
};

Variable loss(const Variable& scores, const Tensor& digits) { return ls::cross_entropy(scores, digits); }
Variable accuracy(const Variable& scores, const Tensor& digits) {
  return ls::mean(Variable(ls::eq(ls::argmax(scores.tensor(), -1), digits).to(ls::f32)));
}

int main(int argc, char** argv) {
  return ls::train::run(argc, argv, "a vision transformer that reads digits", [](ls::train::TrainJob& job) {
    const uint64_t seed = job.options().seed;
    const auto training = ls::data::to_tensors(ls::data::SyntheticDigits(2048, 2 * seed)),
               test = ls::data::to_tensors(ls::data::SyntheticDigits(512, 2 * seed + 1));
    ViT model(4);
    ls::train::Trainer trainer(job, model,
                               {.loss = loss,
                                .data = ls::data::share(training),
                                .evaluate = ls::data::share(test),
                                .metrics = {{"accuracy", accuracy}},
                                .evaluated = "test"});
    trainer.fit();
  });
}
