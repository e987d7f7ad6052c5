// Models that provide layers(): wherever they are split, also inside blocks, results equal those of the whole model.
#include <doctest/doctest.h>

#include "optim/optimizer.h"
#include "parallel/gradient_sum.h"
#include "pipeline/layers.h"
#include "tensor/ops.h"
#include "tests/parallel/util.h"

using namespace lockstep;
using namespace testing;
using namespace lockstep::pipeline;

namespace {

constexpr int model_micro_batches = 2;

/// A model with its own layers: gated blocks that also read the embedding (so stages send two tensors), a scale shared
/// by all blocks, and a head tied to the table.
struct Gated : nn::Layer<Gated> {
  struct Block : nn::Layer<Block> {
    nn::RMSNorm norm{{.size = 8}};
    nn::Linear gate{{.in = 8, .out = 12, .bias = false}}, up{{.in = 8, .out = 12, .bias = false}},
        down{{.in = 12, .out = 8}};
    nn::Dropout dropout;
    explicit Block(double p) : dropout({.p = p}) {}
    Variable forward(const Variable& input) {
      const Variable x = norm(input);
      return dropout(down(mul(silu(gate(x)), up(x))));
    }
    void fields(nn::Fields& f) override {
      f("norm", norm)("gate", gate, nn::cut::columns)("up", up, nn::cut::columns)("down", down, nn::cut::rows)(
          "dropout", dropout);
    }
  };
  nn::Embedding tokens{{.num = 13, .dim = 8}};
  nn::ModuleList<Block> blocks;
  // start: to Muon it looks like an embedding table
  Variable scale = parameter({8}, 0.5), start = parameter({1, 8}, 0.1);
  nn::Head head{tokens};
  explicit Gated(double p) {
    for (int i = 0; i < 3; ++i) blocks.emplace_back(p);
  }

  Variable run(nn::Module& block, const Variable& x, const Variable& first) {
    return add(add(x, block.call(x)), mul(first, scale));
  }
  Variable loss(const Tensor& x, const Tensor& targets) {
    Variable now = add(tokens(x), start);
    const Variable first = tanh(now);
    for (auto& block : blocks.items) now = run(*block, now, first);
    return head(now, targets);
  }
  void fields(nn::Fields& f) override {
    f("tokens", tokens)("start", start, nn::cut::rows_of_vocabulary)("scale", scale)("blocks", blocks)("head", head);
  }
  nn::LayerList layers() override {
    nn::LayerList list;
    list.add({.kind = "tokens", .fields = {tokens, start}, .forward = [this](const Values& in) {
                const Variable x = add(tokens(in[0]), start);
                return Values{x, tanh(x)};
              }});
    for (auto& block : blocks.items) {
      list.add({.kind = "block",
                .fields = {*block, scale},
                .forward =
                    [this, m = block.get()](const Values& in) {
                      return Values{run(*m, in[0], in[1]), in[1]};
                    },
                .takes = 2,
                .repeats = true});
    }
    list.add({.kind = "head",
              .fields = {head},
              .forward = [this](const Values& in) { return Values{head.scores(in[0])}; },
              .takes = 2});
    list.loss = [this](const Variable& scores, const std::vector<Tensor>& targets) {
      return head.loss(scores, targets[0]);
    };
    return list;
  }
};

struct Row {
  const char* name;
  std::function<std::shared_ptr<nn::Module>()> make;
  std::function<Variable(nn::Module&, const Tensor&, const Tensor&)> loss;
  size_t layers;
};
template <class M> Row row(const char* name, const auto& options, size_t layers) {
  return {name, [options] { return std::make_shared<M>(options); },
          [](nn::Module& m, const Tensor& x, const Tensor& y) { return static_cast<M&>(m).loss(x, y); }, layers};
}
const Row model_rows[] = {
    row<nn::GPT>("gpt", nn::GPT::Options{.vocab = 13, .context = 6, .layers = 2, .width = 8, .heads = 2}, 8),
    row<nn::GPT>("gpt with dropout",
                 nn::GPT::Options{.vocab = 13, .context = 6, .layers = 2, .width = 8, .heads = 2, .dropout = 0.2}, 8),
    row<nn::GPT>("gpt with a head of its own",
                 nn::GPT::Options{.vocab = 13, .context = 6, .layers = 1, .width = 8, .heads = 2, .tied = false}, 6),
    row<Gated>("gated", 0.2, 5),
};

Tensor tokens_of(int64_t micro, int64_t shift) {
  std::vector<int64_t> x;
  for (int64_t i = 0; i < 2 * 6; ++i) x.push_back((5 * micro + 7 * (i + shift) + i * i) % 13);
  return Tensor::from(x, {2, 6});
}

/// Loss, norm and every gradient by name, of the whole model.
Tensors full_model(const Row& row) {
  manual_seed(3);
  const auto model = row.make();
  parallel::GradientSum sum(model->parameters());
  double loss = 0;
  for (int m = 0; m < model_micro_batches; ++m) {
    set_random_step(0, uint64_t(m));
    const Variable one = row.loss(*model, tokens_of(m, 0), tokens_of(m, 1));
    one.backward();
    loss += one.item() / model_micro_batches;
    sum.add();
  }
  sum.finish();
  Tensors all{{"loss", Tensor::from({loss}, {1})}};
  for (auto& p : model->named_parameters()) {
    mul_scalar_(p.variable.grad(), 1. / model_micro_batches);
    all[p.name] = p.variable.grad();
  }
  all["norm"] = Tensor::from({optim::clip_grad_norm(model->parameters(), 1e9)}, {1});
  return all;
}

}  // namespace

TEST_CASE(
    "models by their layers: every cut is bit-identical to the whole model, and each stage holds only its own layers") {
  for (const Row& row : model_rows) {
    const Tensors expected = full_model(row);
    for (int cut = 1; cut < int(row.layers); ++cut) {
      for (const bool recompute : {false, true}) {
        CAPTURE(row.name);
        CAPTURE(cut);
        CAPTURE(recompute);
        const auto found = on_ranks<Tensors>(2, [&](int) {
          manual_seed(3);
          std::optional<nn::BuildEmpty> scope;
          if (recompute) scope.emplace();
          const auto model = row.make();
          scope.reset();
          const auto [layers, loss] = layers_of(model, recompute);
          CHECK(layers.size() == row.layers);
          PipelineEngine engine(layers, {.micro_batches = model_micro_batches, .bounds = {0, cut, int(row.layers)}},
                                loss);
          Tensors all;
          const double value = engine.train_batch([](int64_t m) {
            return Sample{{tokens_of(m, 0)}, {tokens_of(m, 1)}};
          });
          all["loss"] = Tensor::from({value}, {1});
          all["norm"] = Tensor::from({engine.clip_grad_norm(1e9)}, {1});
          std::map<std::string, bool> is_table;
          for (auto& p : model->named_parameters()) is_table[p.name] = p.is_table;
          for (auto& p : engine.module().named_parameters()) {
            all[p.name] = p.variable.grad();
            CHECK_MESSAGE(p.is_table == is_table.at(p.name), p.name);
          }
          for (auto& p : model->named_parameters())
            CHECK_MESSAGE(p.variable.tensor().storage()->is_empty() == (all.count(p.name) == 0), p.name);
          return all;
        });
        CHECK(differing(expected, merged(found)) == "");
        CHECK(found[0].size() + found[1].size() >= expected.size() + 2);  // loss, norm and tied parameters twice
      }
    }
  }
  struct Silent : Gated {
    using Gated::Gated;
    nn::LayerList layers() override {
      return std::move(nn::LayerList().add(tokens).add("scaled", {scale, start}, [](const Variable& x) { return x; }));
    }
  };
  CHECK_ERROR(layers_of(std::make_shared<Silent>(0.)),
              "no layer of Silent uses blocks.0.norm.weight; name it in layers()");
}
