// Sparse attention: the layouts and rejected options, and MultiHeadAttention with them: equal to dense attention under
// the same mask, causal, with caches, gradients.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "autograd/gradcheck.h"
#include "extensions/sparse_attention/layouts.h"
#include "nn/nn.h"
#include "tensor/batch_invariant.h"
#include "tensor/block_layout.h"
#include "tests/messages.h"
#include "tests/threads.h"

using namespace lockstep;
using namespace lockstep::nn;

namespace {

using Mode = SparsityConfig::Mode;
using Inputs = std::vector<Variable>;

/// One configuration of each kind, with all options that it uses; `uni`: for causal models.
std::vector<SparsityConfig> every_mode(bool uni) {
  std::vector<SparsityConfig> all = {
      {.mode = Mode::dense},
      {.mode = Mode::local, .num_sliding_window_blocks = 4},
      {.mode = Mode::fixed, .num_local_blocks = 3},
      {.mode = Mode::fixed,
       .different_layout_per_head = true,
       .num_local_blocks = 4,
       .num_different_global_patterns = 4},
      {.mode = Mode::fixed, .num_local_blocks = 4, .num_global_blocks = 2},
      {.mode = Mode::variable,
       .num_random_blocks = 2,
       .local_window_blocks = {1, 3, 2},
       .global_block_indices = {0, 4},
       .global_block_end_indices = std::vector<int64_t>{1, 6}},
      {.mode = Mode::variable, .local_window_blocks = {2}, .global_block_indices = {}},
      {.mode = Mode::bigbird, .different_layout_per_head = true, .num_random_blocks = 2, .seed = 3},
      {.mode = Mode::bslongformer, .global_block_indices = {2, 40}},
  };
  if (!uni) all.push_back({.mode = Mode::fixed, .horizontal_global_attention = true});
  for (SparsityConfig& c : all) c.unidirectional = uni;
  return all;
}

std::string text_of(const SparsityConfig& c) {
  return str(name_of(c.mode), ", block ", c.block, c.unidirectional.value_or(false) ? ", unidirectional" : "",
             c.different_layout_per_head ? ", by head" : "", ", global ", c.num_global_blocks);
}

bool same_bits(const Tensor& a, const Tensor& b) {
  const Tensor x = a.to(cpu).contiguous(), y = b.to(cpu).contiguous();
  return x.shape() == y.shape() && std::memcmp(x.raw_data(), y.raw_data(), size_t(x.numel() * size_of(x.dtype()))) == 0;
}

/// The layout of one head as text such as "##. ", one group per row.
std::string picture(const BlockLayout& layout, int64_t head = 0) {
  const auto mask = mask_of(layout, layout.blocks * layout.block).to_vector<double>();
  const int64_t tokens = layout.blocks * layout.block;
  std::string text;
  for (int64_t r = 0; r < layout.blocks; ++r) {
    for (int64_t c = 0; c < layout.blocks; ++c)
      text += mask[size_t((head * tokens + r * layout.block) * tokens + c * layout.block)] != 0 ? '#' : '.';
    text += ' ';
  }
  return text;
}

Tensor noise(const Shape& shape, uint64_t seed, DType dtype = f32) {
  manual_seed(seed);
  return randn(shape).to(dtype);
}

double largest(const Tensor& a, const Tensor& b) { return max(abs(sub(a, b))).item(); }

}  // namespace

TEST_CASE("sparse layouts: windows, patterns and the lower triangle") {
  const auto rendered = [](const SparsityConfig& c, int64_t tokens, int64_t head = 0) {
    return picture(make_layout(c, 4, tokens), head);
  };
  CHECK(rendered({.mode = Mode::dense, .block = 2}, 5) == "### ### ### ");
  CHECK(rendered({.mode = Mode::local, .block = 1, .num_sliding_window_blocks = 2}, 4) == "##.. ###. .### ..## ");
  CHECK(rendered({.mode = Mode::local, .block = 1, .unidirectional = true}, 4) == "#... ##.. .##. ..## ");
  // Two global blocks per window: DeepSpeed would set the second one above the diagonal.
  const SparsityConfig two{
      .mode = Mode::fixed, .block = 1, .unidirectional = true, .num_local_blocks = 4, .num_global_blocks = 2};
  CHECK(rendered(two, 6) == "#..... ##.... ###... ####.. ..###. ..#### ");
  const SparsityConfig patterns{.mode = Mode::fixed,
                                .block = 1,
                                .different_layout_per_head = true,
                                .num_local_blocks = 2,
                                .num_different_global_patterns = 2};
  CHECK(rendered(patterns, 4, 0) == "##.# ##.# .### .### ");
  CHECK(rendered(patterns, 4, 3) == "###. ###. #.## #.## ");
  const SparsityConfig variable{
      .mode = Mode::variable, .block = 1, .local_window_blocks = {1, 2}, .global_block_indices = {9}};
  CHECK(rendered(variable, 5) == "#.... .##.. .##.. ...## ...## ");
}

TEST_CASE("sparse layouts: random blocks come from the seed, the layer and the head alone") {
  SparsityConfig c{.mode = Mode::bigbird,
                   .different_layout_per_head = true,
                   .num_global_blocks = 0,
                   .num_random_blocks = 3,
                   .num_sliding_window_blocks = 1,
                   .seed = 7};
  const BlockLayout one = make_layout(c, 2, 20 * 16);
  const auto same = [&] { return picture(one) == picture(make_layout(c, 2, 20 * 16)); };
  CHECK(same());
  CHECK(picture(one, 0) != picture(one, 1));
  c.layer = 1;
  CHECK(!same());
  c.layer = 0, c.seed = 8;
  CHECK(!same());
  c.different_layout_per_head = false;
  CHECK(make_layout(c, 2, 20 * 16).heads == 1);
  // These rows have only 3 blocks. Random blocks are drawn without repetition, so a row attends to all that it may see.
  const std::string all = picture(make_layout(c, 1, 3 * 16));
  CHECK(all == "### ### ### ");
  c.unidirectional = true;
  CHECK(picture(make_layout(c, 1, 3 * 16)) == "#.. ##. ### ");
  // All columns are drawn about equally often.
  SparsityConfig many{.mode = Mode::bigbird,
                      .block = 1,
                      .num_global_blocks = 0,
                      .num_random_blocks = 10,
                      .num_sliding_window_blocks = 1};
  const Tensor counts = sum(mask_of(make_layout(many, 1, 400), 400).to(f32), {0, 1});
  CHECK(max(counts).item() < 40);
  CHECK(min(counts).item() > 1);
}

TEST_CASE("sparse layouts: a row of a causal one is the same at any length") {
  for (const SparsityConfig& c : every_mode(true)) {
    CAPTURE(text_of(c));
    const Tensor full = mask_of(make_layout(c, 4, 16 * 20), 16 * 20);
    for (const int64_t tokens : {1, 16, 17, 100, 303})
      CHECK(equal(mask_of(make_layout(c, 4, tokens), tokens),
                  full.narrow(1, 0, tokens).narrow(2, 0, tokens).contiguous()));
    const auto bits = full.to_vector<double>();
    int64_t ahead = 0;  // blocks above the diagonal, which in DeepSpeed's layouts would show the future
    for (size_t i = 0; i < bits.size(); ++i) ahead += bits[i] != 0 && i % 320 / 16 > i / 320 % 320 / 16;
    CHECK(ahead == 0);
  }
}

TEST_CASE("sparse layouts: options that contradict each other are rejected") {
  const auto refused = [](const SparsityConfig& c, const char* said) { CHECK_ERROR(make_layout(c, 2, 64), said); };
  refused({.block = 0}, "expected block from 1 to 1073741824, got 0");
  refused({.num_local_blocks = 4, .num_global_blocks = 3}, "that divides num_local_blocks 4, got 3");
  refused({.num_different_global_patterns = 2}, "needs different_layout_per_head, got false");
  refused({.different_layout_per_head = true, .num_different_global_patterns = 5},
          "expected at most num_local_blocks / num_global_blocks = 4 num_different_global_patterns, got 5");
  refused({.unidirectional = true, .horizontal_global_attention = true}, "got unidirectional");
  refused({.mode = Mode::variable, .local_window_blocks = {}}, "got an empty list");
  refused({.mode = Mode::variable, .global_block_end_indices = std::vector<int64_t>{1, 2}},
          "as many global_block_end_indices as global_block_indices, 1, got 2");
  refused({.mode = Mode::variable, .global_block_end_indices = std::vector<int64_t>{0}}, "got the range 0 to 0");
  const auto local =
      std::make_shared<SparsePattern>(SparsityConfig{.mode = Mode::local, .unidirectional = false}, true);
  CHECK_ERROR(MultiHeadAttention({.embed = 8, .heads = 2, .sparse = local}),
              "expected unidirectional sparse attention in a causal model, got bidirectional");
}

TEST_CASE("sparse attention is dense attention under its mask, in every mode, and dense mode bit for bit") {
  for (const bool causal : {false, true})
    for (SparsityConfig c : every_mode(causal))
      for (const int64_t kv_heads : {4, 2}) {
        c.block = 8;
        CAPTURE(text_of(c));
        CAPTURE(kv_heads);
        manual_seed(2);
        const auto options = [&](std::shared_ptr<const BlockPattern> pattern) {
          return MultiHeadAttention::Options{
              .embed = 32, .heads = 4, .kv_heads = kv_heads, .causal = causal, .sparse = std::move(pattern)};
        };
        MultiHeadAttention sparse(options(std::make_shared<SparsePattern>(c, causal))), dense(options({}));
        dense.load_state(sparse.state());
        const int64_t tokens = 93;
        const Tensor mask = mask_of(make_layout(c, 4, tokens), tokens);
        const auto run = [&](MultiHeadAttention& attention, const Tensor& m) {
          const Variable x(noise({2, tokens, 32}, 5), true);
          const Variable y = attention.forward(x, m);
          y.backward(noise(y.shape(), 6));
          std::vector<Tensor> all{y.tensor(), x.grad()};
          for (const Variable& p : attention.parameters()) all.push_back(p.grad());
          return all;
        };
        const auto a = run(sparse, {}), b = run(dense, c.mode == Mode::dense ? Tensor() : mask);
        for (size_t i = 0; i < a.size(); ++i) {
          const double reach = std::max(1., max(abs(b[i])).item());
          CHECK_MESSAGE(largest(a[i], b[i]) <= 1e-6 * reach, "result " << i);
          if (c.mode == Mode::dense) CHECK(same_bits(a[i], b[i]));
        }
      }
}

TEST_CASE("sparse attention shows nothing of the future, by whole bits, and threads change none") {
  const BatchInvariant scope;  // without it, a row's bits on a CUDA device may depend on the number of rows
  for (SparsityConfig c : every_mode(true)) {
    c.block = 8;
    CAPTURE(text_of(c));
    manual_seed(2);
    MultiHeadAttention attention({.embed = 32,
                                  .heads = 4,
                                  .kv_heads = 2,
                                  .rope = std::make_shared<RopeTable>(Rope{}, 8, 2048),
                                  .sparse = std::make_shared<SparsePattern>(c, true)});
    const Tensor x = noise({1, 77, 32}, 5);
    const Tensor before = attention(x).tensor();
    for (const int64_t t : {1, 7, 8, 12, 40, 76}) {
      Tensor other = x.clone();
      other.narrow(1, t, 1).fill_(9);
      CHECK(same_bits(attention(other).tensor().narrow(1, 0, t), before.narrow(1, 0, t)));
    }
    for (const int n : {1, 2}) {
      const Threads threads(n);
      CHECK(same_bits(attention(x).tensor(), before));
    }
    const NoGrad no_grad;
    KvCache cache;  // a prompt, then one token at a time
    std::vector<Variable> parts{attention.forward(x.narrow(1, 0, 30), cache)};
    for (int64_t t = 30; t < 77; ++t) parts.push_back(attention.forward(x.narrow(1, t, 1), cache));
    CHECK(same_bits(cat(parts, 1).tensor(), before));
  }
}

TEST_CASE("sparse attention: rows that attend to nothing give zeros, and gradients equal finite differences") {
  // Row 1 is empty: its tokens attend to nothing.
  std::vector<std::vector<int32_t>> rows{{0}, {}, {0, 2}, {1}};
  AttentionArgs args{.scale = 0, .causal = true};
  args.layout = std::make_shared<BlockLayout>(BlockLayout::of_rows(3, 1, rows));
  const auto leaf = [](uint64_t seed, int64_t heads) { return Variable(noise({1, heads, 11, 4}, seed, f64), true); };
  const Inputs x{leaf(1, 4), leaf(2, 2), leaf(3, 2)};
  const auto attend = [&](const Inputs& in) { return attention(in[0], in[1], in[2], {}, args); };
  CHECK(gradcheck(attend, x) == "");
  const Variable y = attend(x);
  CHECK(max(abs(y.tensor().narrow(2, 3, 3))).item() == 0);
  y.backward(noise(y.shape(), 4, f64));
  CHECK(max(abs(x[0].grad().narrow(2, 3, 3))).item() == 0);
  const AttentionResult r = attention(x[0].tensor(), x[1].tensor(), x[2].tensor(), {}, args);
  CHECK(max(r.lse.narrow(2, 3, 3)).item() == -INFINITY);
  CHECK(std::isfinite(min(r.lse.narrow(2, 0, 3)).item()));

  SparsityConfig c{.mode = Mode::fixed, .block = 4, .num_local_blocks = 2};
  manual_seed(1);
  MultiHeadAttention module({.embed = 8, .heads = 2, .sparse = std::make_shared<SparsePattern>(c, true)});
  module.to(f64);
  CHECK(gradcheck([&](const Inputs& in) { return module(in[0]); }, {Variable(noise({1, 19, 8}, 7, f64), true)}) == "");
  CHECK(allclose(sum(module.weights(noise({2, 19, 8}, 8, f64)), {2}), ones({2, 19}, {.dtype = f64}), 1e-9, 1e-9));
  CHECK(contains(module.options(), "sparse fixed"));
  CHECK(module.flops_beside(19) < MultiHeadAttention({.embed = 8, .heads = 2}).flops_beside(19));
}

TEST_CASE("sparse attention is set in every layer that has none, numbered, and not with parts of sequences") {
  GPT model({.vocab = 7, .context = 40, .layers = 3, .width = 16, .heads = 2});
  set_sparsity(model.blocks[1].attention, {.mode = Mode::local});
  const SparseCount count = set_sparse_attention(model, {.mode = Mode::bigbird, .block = 4, .num_random_blocks = 1});
  CHECK(count.set == 2);
  CHECK(count.all == 3);
  const auto config_of = [&](size_t block) {
    return dynamic_cast<const SparsePattern&>(*model.blocks[block].attention.o.sparse).config;
  };
  CHECK(config_of(0).layer == 0);
  CHECK(config_of(1).mode == Mode::local);
  CHECK(config_of(2).layer == 2);
  Linear plain({.in = 2, .out = 2});
  CHECK(set_sparse_attention(plain, {}).all == 0);
  set_sparse_attention(model.blocks[0], {.num_local_blocks = 0});  // has sparse attention already: no error
  GPT other({.vocab = 7, .context = 40, .layers = 1, .width = 16, .heads = 2});
  CHECK_ERROR(set_sparse_attention(other, {.num_local_blocks = 0}),
              "blocks.0.attention: [sparse attention] expected num_local_blocks from 1 to 1073741824, got 0");
  const auto part = std::make_shared<SequencePart>();
  const char* const refusal = "sparse attention does not support context parallelism";
  CHECK_ERROR(model.blocks[0].attention.share_sequence(part), refusal);
  other.blocks[0].attention.share_sequence(part);
  CHECK_ERROR(set_sparse_attention(other, {}), refusal);
}
