// Padded batches: the same logits and texts as without padding. Defaults from generation_config.json.
#include "extensions/generation/padded.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "autograd/ops.h"
#include "extensions/generation/generation_config.h"
#include "tensor/random.h"
#include "tests/messages.h"
#include "tests/models.h"
#include "tests/temp_dir.h"

using namespace lockstep;
using namespace lockstep::nn;
using testing::TempDir;

namespace {

struct Batch {
  Tensor tokens, mask;
};

/// Texts of 5, 1, 8 and 3 tokens, with `left` tokens of padding before them and the rest behind, as a share of all.
Batch padded(double left) {
  const std::vector<int64_t> lengths = {5, 1, 8, 3};
  std::vector<int64_t> ids, ones;
  for (size_t row = 0; row < 4; ++row) {
    const int64_t before = int64_t(std::lround(left * double(8 - lengths[row])));
    for (int64_t t = 0; t < 8; ++t) {
      const bool is_text = t >= before && t < before + lengths[row];
      ones.push_back(is_text);
      ids.push_back(is_text ? (7 * int64_t(row) + 3 * (t - before) + 1) % 61 : -1);  // -1 is in no vocabulary
    }
  }
  return {Tensor::from(ids, {4, 8}), Tensor::from(ones, {4, 8})};
}

GPT model_of(bool rope) {
  GPT::Options o{.vocab = 61, .context = 16, .layers = 2, .width = 48, .heads = 4};
  if (rope) o.rope = Rope{};
  return testing::random_gpt(o, 3);
}

}  // namespace

TEST_CASE("padded: each text has the bits that it has alone, with padding on the left, the right and both sides") {
  for (const bool rope : {false, true}) {
    GPT model = model_of(rope);
    model.eval();
    const NoGrad no_grad;
    for (const double left : {0., 0.5, 1.}) {
      const Batch b = padded(left);
      const Tensor logits = padded_forward(model, b.tokens, b.mask).tensor();
      CHECK(equal(padded_forward(model, b.tokens, b.mask.to(boolean)).tensor(), logits));
      const auto texts = without_padding(b.tokens, b.mask);
      for (size_t row = 0; row < 4; ++row) {
        const int64_t count = int64_t(texts[row].size()), first = int64_t(std::lround(left * double(8 - count)));
        const Tensor single = model(Tensor::from(texts[row], {1, count})).tensor();
        CHECK(equal(logits.narrow(0, int64_t(row), 1).narrow(1, first, count).contiguous(), single));
      }
    }
  }
}

TEST_CASE("padded: gradients do not depend on the side of the padding") {
  std::vector<Tensor> gradients;
  for (const double left : {0., 1.}) {
    GPT model = model_of(true);
    const Batch b = padded(left);
    const Tensor targets =
        where(b.mask.to(boolean), full({4, 8}, 5, {.dtype = i64}), full({4, 8}, -100, {.dtype = i64}));
    cross_entropy(padded_forward(model, b.tokens, b.mask).reshape({32, 61}), targets.reshape({32})).backward();
    gradients.push_back(model.blocks[0].attention.in_proj.weight.grad());
  }
  CHECK(allclose(gradients[0], gradients[1], 1e-3, 1e-4));
}

TEST_CASE("padded: generation continues the texts") {
  GPT model = model_of(false);
  const Batch b = padded(1);
  const auto made = generate(model, b.tokens, b.mask, {.max_new_tokens = 4});
  const auto texts = without_padding(b.tokens, b.mask);
  REQUIRE(made.size() == 4);
  for (size_t row = 0; row < 4; ++row)
    CHECK(made[row].tokens == generate(model, texts[row], {.max_new_tokens = 4}).tokens);
}

TEST_CASE("padded: wrong masks") {
  GPT model = model_of(false);
  const Tensor ids = Tensor::from<int64_t>({1, 2, 3}, {1, 3});
  const auto masked = [&](const Tensor& mask) { padded_forward(model, ids, mask); };
  CHECK_ERROR(masked(Tensor::from<int64_t>({1, 0, 1}, {1, 3})),
              "row 0 of the attention_mask has padding between tokens");
  CHECK_ERROR(masked(Tensor::from<int64_t>({0, 0, 0}, {1, 3})), "is all padding; leave that row out");
  CHECK_ERROR(masked(Tensor::from<int64_t>({1, 2, 1}, {1, 3})), "expected 0 and 1 in the attention_mask, got 2");
  CHECK_ERROR(masked(Tensor::from<int64_t>({1, 1}, {1, 2})), "expected an attention_mask of the tokens' shape");
  CHECK_ERROR(masked(ones({1, 3})), "expected an attention_mask of integers or bools");
  CHECK_ERROR(padded_forward(model, ids.reshape({3}), ids.reshape({3})), "expected tokens i64 (B, T)");
}

TEST_CASE("generation_config.json: its options become defaults") {
  const TempDir d;
  Generation g{.temperature = 0.8};
  CHECK(use_generation_config(d.str(), g).empty());  // no file
  CHECK(g.temperature == 0.8);
  d.write("generation_config.json", R"({"_from_model_config": true, "do_sample": true, "temperature": 0.6, "top_p": 0.9,
    "top_k": 20, "repetition_penalty": 1.05, "max_new_tokens": 12, "eos_token_id": [1, 2], "typical_p": 1,
    "suppress_tokens": [4, 5], "min_p": null, "transformers_version": "5.24.0"})");
  CHECK(use_generation_config(d.str(), g).empty());
  CHECK((g.do_sample && g.temperature == 0.6 && g.top_p == 0.9 && g.top_k == 20 && g.repetition_penalty == 1.05));
  CHECK((g.max_new_tokens == 12 && g.min_p == 0));
  CHECK(g.suppress_tokens == std::vector<int64_t>{4, 5});
  Generation kept{.temperature = 0.1};
  use_generation_config(d.str(), kept, {"temperature", "do_sample"});
  CHECK((kept.temperature == 0.1 && !kept.do_sample && kept.top_p == 0.9));
  d.write("generation_config.json",
          R"({"num_beams": 4, "early_stopping": true, "length_penalty": 2, "typical_p": 0.9})");
  Generation beams{.do_sample = true, .overflow = Generation::Overflow::slide};
  CHECK(use_generation_config(d.str(), beams) == std::vector<std::string>{"typical_p 0.9"});
  CHECK((beams.num_beams == 4 && !beams.do_sample && beams.early_stopping && beams.length_penalty == 2));
  beams.check();
  Generation sampled{.do_sample = true};
  use_generation_config(d.str(), sampled, {"do_sample"});
  CHECK((sampled.num_beams == 1 && sampled.do_sample));
  const std::pair<const char*, const char*> wrong[] = {
      {R"({"top_p": 2})", "generation_config.json: top_p: expected top_p"},
      {R"({"top_k": 1.5})", "top_k"},
      {R"({"do_sample": 1})", "do_sample"},
      {"[]", "generation_config.json"}};
  for (const auto& [text, part] : wrong) {
    d.write("generation_config.json", text);
    Generation before;
    CHECK_ERROR(use_generation_config(d.str(), before), part);
    CHECK(before.top_p == 1);
  }
}
