// Generation on the device: a text has the same logits and tokens in any batch.
#include <doctest/doctest.h>

#include "extensions/generation/generate.h"
#include "tensor/random.h"

using namespace lockstep;
using namespace lockstep::nn;

namespace {

const Device cuda0{Device::Type::cuda, 0};

std::vector<int64_t> some_ids(int64_t count, uint64_t seed) {
  manual_seed(seed);
  return randint(0, 61, {count}, {.device = cpu}).to_vector<int64_t>();
}

/// Two layers with large weights, so that logits are far apart; heads of 64 are those of Hopper's attention.
GPT small_gpt(DType dtype, int64_t head_size, int64_t window) {
  manual_seed(3);
  GPT model({.vocab = 61,
             .context = 240,
             .layers = 2,
             .width = 2 * head_size,
             .heads = 2,
             .kv_heads = 1,
             .norm = Norm::rms,
             .feed_forward = FeedForward::swiglu,
             .rope = Rope{},
             .window = window});
  for (const Variable& p : model.parameters()) p.tensor().copy_(randn(p.shape(), {.device = cpu}));
  model.eval();
  model.to(dtype).to(cuda0);
  return model;
}

/// Logits of all positions when the prompt is fed to the cache in pieces.
Tensor in_pieces(GPT& model, const std::vector<int64_t>& ids, const std::vector<size_t>& pieces) {
  std::vector<KvCache> cache(model.blocks.size());
  std::vector<Tensor> rows;
  size_t at = 0;
  for (const size_t piece : pieces) {
    std::vector<int64_t> places;
    for (size_t i = 0; i < piece; ++i) places.push_back(int64_t(i));
    rows.push_back(model.scores_behind(places, {std::span(ids).subspan(at, piece)}, {&cache}).tensor());
    at += piece;
  }
  REQUIRE(at == ids.size());
  return cat(rows, 0);
}

}  // namespace

TEST_CASE("generate: a text has the same logits and tokens in any batch, and however its prompt is cut") {
  struct Row {
    DType dtype;
    int64_t head_size, window;
  };
  for (const Row& r : {Row{f32, 24, 0}, {bf16, 64, 0}, {f16, 64, 0}, {bf16, 40, 0}, {bf16, 64, 70}, {f32, 24, 70}}) {
    CAPTURE(r.dtype);
    CAPTURE(r.head_size);
    CAPTURE(r.window);
    GPT model = small_gpt(r.dtype, r.head_size, r.window);
    const std::vector<int64_t> ids = some_ids(210, 1);
    const NoGrad no_grad;
    const Tensor full = model(Tensor::from(ids, {1, 210}).to(cuda0)).tensor()[0].clone();
    CHECK(equal(in_pieces(model, ids, {210}), full));
    CHECK(equal(in_pieces(model, ids, {128, 1, 63, 16, 1, 1}), full));  // 128: the size of a tile of keys
    CHECK(equal(in_pieces(model, ids, {1, 190, 2, 1, 1, 15}), full));
    const Tensor both = model(Tensor::from(ids, {1, 210}).expand({2, 210}).contiguous().to(cuda0)).tensor();
    CHECK(equal(both[1].clone(), full));

    const std::vector<std::vector<int64_t>> prompts{some_ids(130, 2), some_ids(3, 3), some_ids(64, 4), some_ids(1, 5)};
    const Generation g{.max_new_tokens = 5, .do_sample = true, .seed = 7, .logprobs = true};
    const std::vector<Generated> together = generate(model, prompts, g);
    const Generated single = generate(model, prompts[0], g);
    CHECK(single.tokens == together[0].tokens);
    CHECK(single.logprobs == together[0].logprobs);
  }
}
