// Tensor parallelism applied to existing models: losses, dropout and every gradient of the whole model in f64; bytes by
// formula; errors on all ranks.
#include <doctest/doctest.h>

#include <map>

#include "parallel/tensor_parallel/apply.h"
#include "tensor/ops.h"
#include "tests/parallel/tensor_parallel/util.h"

using namespace lockstep;
using namespace testing;
namespace tp = lockstep::tensor_parallel;

namespace {

constexpr int64_t vocab = 29, tokens = 24, batch = 2;

nn::GPT::Options gpt_options(bool tied = true, double dropout = 0.2) {
  return {.vocab = vocab, .context = tokens, .layers = 2, .width = 48, .heads = 24, .dropout = dropout, .tied = tied};
}

using Tensors = std::map<std::string, Tensor>;
Tensors gradients(nn::Module& m) {
  Tensors all;
  for (auto& p : m.named_parameters()) all[p.name] = p.variable.grad();
  return all;
}

/// Checks that the gradients of a sharded model are slices of those of the whole model.
void expect_gradients(nn::Module& m, const tp::TensorParallel& cut, const Tensors& full, const std::string& what) {
  const auto mine = m.named_parameters();
  LOCKSTEP_CHECK(mine.size() == full.size(), what, ": other parameters");
  for (const auto& p : mine) {
    const auto* const shard = cut.find(p.variable);
    LOCKSTEP_CHECK(full.count(p.name), what, ": ", p.name, " is new");
    const Tensor all = full.at(p.name);
    expect_near(p.variable.grad(), shard ? tp::shard_of(all, shard->cut, cut.group().size(), cut.group().rank()) : all,
                what + ", gradient of " + p.name);
  }
}

}  // namespace

TEST_CASE(
    "GPT: logits, loss with dropout, and gradients; the same gradients through its logits, with blocks recomputed") {
  const Tensor x = ids(1, {batch, tokens}, vocab), y = ids(2, {batch, tokens}, vocab);
  for (const bool tied : {true, false}) {
    nn::GPT full = seeded<nn::GPT>(gpt_options(tied));
    full.eval();
    const Tensor logits = full(x).tensor();
    full.train();
    set_random_step(3, 4);
    const Variable loss = full.loss(x, y);
    loss.backward();
    const Tensors grads = gradients(full);
    for (const int n : worlds) {
      if (!tied && n != 2) continue;
      on_ranks(n, [&](dist::ProcessGroup& g) {
        for (const bool sequence : {false, true}) {
          const std::string what = str("n ", n, tied ? " tied" : "", sequence ? " sequence" : "");
          // built empty: each rank fills its own slices
          nn::GPT model = seeded<nn::GPT>(gpt_options(tied), f64, sequence);
          if (g.rank() > 0 && !sequence) model.norm.weight.tensor().fill_(7);  // overwritten by rank 0's values
          const auto cut = tp::apply(model, g, {.sequence = sequence});
          nn::fill(model);
          if (n > 1)
            LOCKSTEP_CHECK(model.blocks[0].attention.in_proj.weight.size(0) == 3 * 48 / n &&
                               model.blocks[0].mlp.down.weight.size(1) == 4 * 48 / n,
                           "it is cut");
          model.eval();
          expect_near(model(x).tensor(), logits, what + ", logits");
          model.train();
          set_random_step(3, 4);
          const Variable mine = model.loss(x, y);
          expect_near(mine.tensor(), loss.tensor(), what + ", loss");
          mine.backward();
          expect_gradients(model, cut, grads, what);
          if (n != 3) continue;
          nn::GPT::Options o = gpt_options(tied);
          o.checkpoint_blocks = true;
          nn::GPT again = seeded<nn::GPT>(o);
          const auto cut_again = tp::apply(again, g, {.sequence = sequence});
          set_random_step(3, 4);
          cross_entropy(again(x).view({-1, vocab}), y.view({-1})).backward();
          expect_gradients(again, cut_again, grads, "recomputed");
          CHECK_ERROR(again.blocks[0].attention.weights(values(1, {1, 3, 48})),
                      "averaged attention weights need all heads on this rank, got 8 of 24");
        }
      });
    }
  }
}

TEST_CASE("one block, with grouped queries and rotary positions") {
  const nn::TransformerBlock::Options o{.width = 32,
                                        .heads = 8,
                                        .kv_heads = 4,
                                        .inner = 12,
                                        .dropout = 0.3,
                                        .rope = std::make_shared<nn::RopeTable>(nn::Rope{}, 4, 2048)};
  const Tensor x = values(1, {batch, 8, 32}), up = values(2, {batch, 8, 32});
  nn::TransformerBlock full = seeded<nn::TransformerBlock>(o);
  const Variable in = leaf(x);
  set_random_step(1);
  const Variable out = full(in);
  out.backward(up);
  const Tensors grads = gradients(full);
  for (const int n : {2, 4}) {
    on_ranks(n, [&](dist::ProcessGroup& g) {
      for (const bool sequence : {false, true}) {
        nn::TransformerBlock block = seeded<nn::TransformerBlock>(o);
        const auto cut = tp::apply(block, g, {.sequence = sequence});
        const auto own = [&](const Tensor& t) { return sequence ? part(t, 1, n, g.rank()).contiguous() : t; };
        const Variable mine = leaf(own(x));
        set_random_step(1);
        const Variable result = block(mine);
        expect_near(result.tensor(), own(out.tensor()), "output");
        result.backward(own(up));
        expect_near(mine.grad(), own(in.grad()), "gradient of x");
        expect_gradients(block, cut, grads, "block");
      }
    });
  }
}

namespace {

/// A model whose layers either declare how they are sharded, or leave that to rules.
struct Net : nn::Layer<Net> {
  nn::LayerNorm first{12};
  nn::Linear up{{.in = 12, .out = 36}}, gate{{.in = 12, .out = 36}}, down{{.in = 36, .out = 12}},
      last{{.in = 12, .out = 18}};
  Variable scale = parameter({36}, 0.5);
  nn::Dropout inner{{.p = 0.4}}, outer{{.p = 0.4}};
  nn::RMSNorm end{{.size = 12}};
  // parts: the norm between the column-parallel layers and the last one leaves its output whole.
  enum Says { nothing, all, parts } says;
  explicit Net(Says says) : says(says) {}
  Variable forward(const Variable& input) {
    const Variable x = first(input);
    return last(end(outer(down(inner(mul(mul(up(x, Activation::relu), gate(x)), scale))))));
  }
  void fields(nn::Fields& f) override {
    using namespace nn;
    if (says == nothing)
      f("first", first)("a.up", up)("a.gate", gate)("scale", scale)("b.down", down)("inner", inner)("outer", outer)(
          "end", end)("last", last);
    else
      f("first", first, cut::from_full(cut::tokens))("a.up", up, cut::columns)("a.gate", gate, cut::columns)(
          "scale", scale, cut::features)("b.down", down, cut::rows)("inner", inner, cut::features)(
          "outer", outer, cut::tokens)("end", end, cut::to_full(cut::tokens))(
          "last", last, says == parts ? Cut{} : cut::to_full(cut::columns));
  }

  static std::unique_ptr<Net> make(Says says) {
    manual_seed(11);
    auto net = std::make_unique<Net>(says);
    net->to(f64);
    return net;
  }
};

}  // namespace

TEST_CASE(
    "by what a model says, and by rules: dropout of slices, whole outputs, a part of the sequence between two modules, "
    "packed parts") {
  const Tensor x = values(1, {2, 12, 12}), up = values(2, {2, 12, 18});
  const auto full = Net::make(Net::nothing);
  const Variable in = leaf(x);
  set_random_step(5);
  const Variable out = (*full)(in);
  out.backward(up);
  const Tensors grads = gradients(*full);
  namespace cut = nn::cut;
  const std::vector<tp::Rule> rules{{"*.up", cut::columns},
                                    {"gate", cut::columns},
                                    {"b.*", cut::rows},
                                    {"inner", cut::features},
                                    {"scale", cut::features}};
  std::vector<tp::Rule> plain = rules, in_parts = rules;
  plain.push_back({"last", cut::to_full(cut::columns)});
  in_parts.insert(in_parts.end(),
                  {{"first", cut::from_full(cut::tokens)}, {"outer", cut::tokens}, {"end", cut::to_full(cut::tokens)}});
  const std::pair<Net::Says, tp::TensorParallelOptions> rows[] = {{Net::nothing, {.rules = plain}},
                                                                  {Net::nothing, {.sequence = true, .rules = in_parts}},
                                                                  {Net::all, {}},
                                                                  {Net::parts, {.sequence = true}}};
  for (const int n : {1, 2, 3}) {
    on_ranks(n, [&](dist::ProcessGroup& g) {
      for (const auto& [says, options] : rows) {
        const auto net = Net::make(says);
        const auto sharded = tp::apply(*net, g, options);
        LOCKSTEP_CHECK(net->scale.size(0) == 36 / n && net->down.weight.size(1) == 36 / n, "it is cut");
        const Variable mine = leaf(x);
        set_random_step(5);
        const Variable result = (*net)(mine);
        expect_near(result.tensor(), out.tensor(), "output");
        result.backward(up);
        expect_near(mine.grad(), in.grad(), "gradient of x");
        expect_gradients(*net, sharded, grads, "by hand");
      }
      const auto net = Net::make(Net::nothing);
      tp::apply(*net, g, {.rules = {{"up", cut::packed_columns(3)}}});
      const Tensor expected =
          full->up.weight.tensor().view({3, 12, 12}).narrow(1, g.rank() * 12 / n, 12 / n).reshape({36 / n, 12});
      LOCKSTEP_CHECK(equal(net->up.weight.tensor(), expected), "its slice of each of 3 parts");
    });
  }
}

TEST_CASE("bytes of a layer, by formula") {
  // Bytes of the activations in f64: more than the small tensors that are sent without a schedule.
  constexpr int64_t width = 48, size = batch * tokens * width * 8;
  const nn::TransformerBlock::Options o{.width = width, .heads = 24};
  for (const int n : {2, 3, 4, 8}) {
    on_ranks(n, [&](dist::ProcessGroup& g) {
      const int64_t share = size * (n - 1) / n;
      for (const bool sequence : {false, true}) {
        nn::TransformerBlock block = seeded<nn::TransformerBlock>(o);
        const auto cut = tp::apply(block, g, {.sequence = sequence});
        const Tensor x = values(1, {batch, sequence ? tokens / n : tokens, width});
        const int64_t start = g.traffic().sent;
        const Variable y = block(leaf(x));
        const int64_t forward = g.traffic().sent - start;
        y.backward(x);
        const int64_t backward = g.traffic().sent - start - forward;
        // 2 all-reduces in each direction. With sequence parallelism, one more gather in the backward of each
        // column-parallel layer, and sums over ranks of the gradients of 6 vectors: weight and bias of 2 norms, and the
        // biases of 2 row-parallel layers.
        const int64_t vectors = 6 * (n - 1) * width * 8;
        LOCKSTEP_CHECK(forward == 4 * share, "forward sent ", forward, ", formula ", 4 * share);
        LOCKSTEP_CHECK(backward == (sequence ? 6 * share + vectors : 4 * share), "backward sent ", backward,
                       ", formula ", sequence ? 6 * share + vectors : 4 * share);
      }
      nn::GPT model = seeded<nn::GPT>(gpt_options());
      const auto cut = tp::apply(model, g);
      const Tensor x = ids(1, {batch, tokens}, vocab);
      const int64_t start = g.traffic().sent;
      model.loss(x, x).backward();
      // The layers; one all-reduce each for the rows of the embedding and for the head's input gradient; the cross
      // entropy sends two numbers per token to each other rank.
      const int64_t expected = 2 * 8 * share + 2 * 2 * share + (n - 1) * 2 * batch * tokens * 8;
      LOCKSTEP_CHECK(g.traffic().sent - start == expected, "a step of GPT sent ", g.traffic().sent - start,
                     ", formula ", expected);
    });
  }
}

TEST_CASE("invalid plans: an Error on all ranks, and nothing is changed") {
  namespace cut = nn::cut;
  struct Row {
    tp::Rule rule;
    std::string part;
    bool sequence = false;
  };
  const std::vector<Row> rows{
      {{"mlp.upp", cut::columns},
       "pattern \"mlp.upp\" (columns) matches no module; did you mean mlp.up?; name one of its modules: tokens, "
       "positions, dropout, blocks, blocks.0"},
      {{"*.attn.qkv", cut::columns}, "pattern \"*.attn.qkv\" (columns) matches no module"},
      {{"up.weight", cut::columns}, "pattern \"up.weight\" (columns) matches no module"},
      {{"norm1", cut::columns}, "columns is for nn::Linear, but \"blocks.0.norm1\" is a LayerNorm"},
      {{"mlp", cut::rows}, "rows is for nn::Linear, but \"blocks.0.mlp\" is a Mlp"},
      {{"norm", cut::rows_of_vocabulary}, "vocabulary is for nn::Embedding and nn::Head, but \"norm\" is a LayerNorm"},
      {{"in_proj", cut::heads(6, 6)},
       "\"blocks.0.attention.in_proj\": expected heads that the 4 ranks of group world divide, got 6"},
      {{"mlp.up", cut::columns},
       "\"blocks.0.mlp.up\": expected outputs that the 4 ranks of group world divide, got 30"},
      {{"mlp.down", cut::rows},
       "\"blocks.0.mlp.down\": expected inputs that the 4 ranks of group world divide, got 30"},
      {{"out_proj", cut::packed_columns(5)},
       "\"blocks.0.attention.out_proj\": expected outputs divisible by 5 parts, got 12"},
      {{"out_proj", cut::packed_columns(6)},
       "expected parts of the outputs that the 4 ranks of group world divide, got 2"},
      {{"blocks", cut::tokens},
       "blocks.0.attention.in_proj.weight is split over ranks by a rule for its module, but each rank computes a part "
       "of the sequence",
       true},
      {{"norm", cut::to_full(cut::features)}, "to_full is for the cuts columns and tokens, got features to full"},
      {{"in_proj", cut::from_full(cut::columns)}, "from_full is for the cuts rows and tokens, got columns from full"},
      {{"head", cut::full},
       "tokens.weight is also head.weight: a parameter shared by several modules must be cut in all of them"},
  };
  on_ranks(4, [&](dist::ProcessGroup& g) {
    manual_seed(1);
    nn::GPT model({.vocab = 7, .context = 4, .layers = 2, .width = 12, .heads = 6, .inner = 30});
    const nn::State before = model.state();
    for (const Row& row : rows) {
      // Everything but the rule under test is divisible by 4 ranks or left whole.
      std::vector<tp::Rule> rules{row.rule, {"in_proj", cut::columns}, {"mlp.up", cut::full}, {"mlp.down", cut::full}};
      if (row.rule.pattern == "in_proj") rules.erase(rules.begin() + 1);
      CHECK_ERROR(tp::apply(model, g, {.sequence = row.sequence, .rules = rules}), row.part);
    }
    for (size_t i = 0; i < before.size(); ++i)
      LOCKSTEP_CHECK(model.state()[i].second.storage() == before[i].second.storage(), before[i].first, " was changed");

    // Ranks with different rules or models.
    CHECK_ERROR(tp::apply(model, g, {.rules = {{"tokens", g.rank() == 2 ? cut::full : cut::rows_of_vocabulary}}}),
                "rule tokens");
    nn::GPT other({.vocab = 7, .context = 4, .layers = g.rank() == 1 ? 1 : 2, .width = 12, .heads = 4});
    CHECK_ERROR(tp::apply(other, g), "[tensor_parallel]");

    // Modules that are sharded already, shared, padded, or declare nothing.
    nn::GPT full({.vocab = 8, .context = 4, .layers = 1, .width = 8, .heads = 4});
    tp::apply(full, g);
    CHECK_ERROR(tp::apply(full, g), "\"tokens\" is sharded already");
    CHECK_ERROR(tp::apply(full, g, {.rules = {{"tokens", cut::full}, {"blocks", cut::full}}}),
                "\"head\" is sharded already");
    CHECK_ERROR(tp::apply(full, g, {.rules = {{"tokens", cut::full}}}),
                "\"blocks.0.attention.in_proj\" is sharded already");
    nn::Sequential shared(nn::Linear({.in = 4, .out = 4}), nn::Linear({.in = 4, .out = 4}));
    CHECK_ERROR(tp::apply(shared, g),
                "expected a Sequential whose fields() say how they can be cut (nn/cut.h), or rules that do, got none");
    static_cast<nn::Linear&>(shared[1]).weight = static_cast<nn::Linear&>(shared[0]).weight;
    CHECK_ERROR(tp::apply(shared, g, {.rules = {{"0", cut::columns}}}),
                "0.weight is also 1.weight: a parameter shared by several modules must be cut in all of them");
    CHECK_ERROR(tp::apply(shared, g, {.rules = {{"0", cut::columns}, {"1", cut::rows}}}),
                "0.weight is also 1.weight, which would be cut differently");
    nn::Sequential padded(nn::Embedding({.num = 8, .dim = 4, .padding_index = 2}));
    CHECK_ERROR(tp::apply(padded, g, {.rules = {{"0", cut::rows_of_vocabulary}}}),
                "expected an embedding without a padding row, got 2");
  });
}
