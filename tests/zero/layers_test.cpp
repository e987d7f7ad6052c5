// Layers under DDP and every stage of ZeRO, also with checkpointing: layers that read parameters in unusual ways, and a
// row for every layer with parameters.
#include <doctest/doctest.h>

#include "tests/zero/layers.h"

using namespace lockstep;
using namespace testing;

namespace {

struct Mixture : nn::Layer<Mixture> {
  nn::Linear first = linear(6, 8);
  nn::LayerNorm norm{8};
  nn::Linear pair = linear(14, 5);
  nn::Linear head = linear(5, 3);
  Variable forward(const Variable& x) {
    const Variable h = mean(tanh(norm(first(x))), {0});
    return head(silu(pair(cat(std::vector<Variable>{h, x.select(0, 0)}, 1))));
  }
  void fields(nn::Fields& f) override { f("first", first)("norm", norm)("pair", pair)("head", head); }
};

/// Stacked, which can be checkpointed.
struct Stacked : nn::Layer<Stacked> {
  nn::Linear in = linear(6, 12);
  nn::ModuleList<nn::TransformerBlock> blocks;
  nn::Linear head = linear(12, 3);
  Stacked() {
    for (int i = 0; i < 3; ++i) blocks.emplace_back(nn::TransformerBlock::Options{.width = 12, .heads = 3});
  }
  Variable forward(const Variable& x) {
    Variable h = in(x).transpose(0, 1);
    for (auto& block : blocks.items) h = (*block)(h);
    return head(mean(h, {1}));
  }
  void fields(nn::Fields& f) override { f("in", in)("blocks", blocks)("head", head); }
};

/// A head tied to the embedding table, whose loss is computed in chunks of 7 rows.
struct Words : nn::Layer<Words> {
  nn::Embedding table{{.num = 11, .dim = 6}};
  nn::Linear inner = linear(6, 6);
  nn::Head head{table};
  Words() { head.rows_at_once = 7; }
  Variable forward(const Variable& x) {
    const Tensor words = Tensor::from<int64_t>({3, 0, 10, 7, 7}, {5, 1}).expand({5, 4});
    const Variable loss = head(inner(x + table(words.contiguous())), words.contiguous());
    return stack(std::vector<Variable>{loss, loss * 2.0, loss * -0.5}).expand({4, 3});
  }
  void fields(nn::Fields& f) override { f("table", table)("inner", inner)("head", head); }
  std::vector<Variable> reads() override { return {table.weight}; }
};

}  // namespace

TEST_CASE("zero: a penalty of a gradient has the same bits under DDP and stages 1 and 2; stage 3 refuses it") {
  check_penalty([] { return std::make_unique<Mixture>(); });
}

TEST_CASE("zero: every layer with parameters has the same bits under DDP, every stage and checkpoints") {
  struct {
    const char* name;
    MakeModel make;
    bool blocks = false;  ///< true: the model's blocks can be checkpointed
  } rows[] = {
      {"a mixture", [] { return std::make_unique<Mixture>(); }},
      {"blocks", [] { return std::make_unique<Stacked>(); }, true},
      {"a head in chunks", [] { return std::make_unique<Words>(); }},
      {"TransformerBlock, as Llama's",
       between(
           [] {
             return nn::TransformerBlock({.width = 6,
                                          .heads = 3,
                                          .kv_heads = 1,
                                          .norm = nn::Norm::rms,
                                          .feed_forward = nn::FeedForward::swiglu});
           },
           6, [](nn::TransformerBlock& l, const Variable& x) { return mean(l(x.transpose(0, 1)), {1}); })},
      {"Conv1d", of_channels<nn::Conv1d>({.in = 6, .out = 9, .groups = 3}, {4, 6, 5}, 9)},
      {"Conv2d", of_channels<nn::Conv2d>({.in = 2, .out = 7, .padding = 1}, {4, 2, 3, 5}, 7)},
      {"LayerNorm", of_steps<nn::LayerNorm>({.shape = {6}}, 6)},
      {"RMSNorm", of_steps<nn::RMSNorm>({.size = 6}, 6)},
      {"Norm", of_steps<nn::Norm>({.kind = nn::Norm::layer, .size = 6, .eps = 1e-5}, 6)},
      {"BatchNorm1d", of_channels<nn::BatchNorm1d>({.channels = 6}, {4, 6, 5}, 6)},
      {"BatchNorm2d", of_channels<nn::BatchNorm2d>({.channels = 2}, {4, 2, 3, 5}, 2)},
      {"Mlp", of_steps<nn::Mlp>({.width = 6, .inner = 11, .kind = nn::FeedForward::swiglu}, 6)},
      {"Embedding", between([] { return nn::Embedding({.num = 9, .dim = 6, .padding_index = 2}); }, 6,
                            [](nn::Embedding& l, const Variable& x) { return l(randint(0, 9, {4})) * x[0]; })},
  };
  for (const auto& [name, make, blocks] : rows) {
    CAPTURE(std::string(name));
    check_same_bits(make, blocks);
  }
}
