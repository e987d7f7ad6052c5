// sparse_attention of the configuration file: keys and rejected values, DeepSpeed's layouts and results, and models
// that train with it under any plan.
#include <doctest/doctest.h>

#include "data/safetensors.h"
#include "engine/check_plan.h"
#include "engine/engine.h"
#include "extensions/sparse_attention/section.h"
#include "nn/models/gpt.h"
#include "parallel/tensor_parallel/apply.h"
#include "tensor/block_layout.h"
#include "tests/devices.h"
#include "tests/engine/util.h"
#include "tests/golden_folder.h"

using namespace lockstep;
using namespace testing;

namespace sparse_attention_test {

using engine::EngineBase, engine::InitializeArgs, engine::PipelineModule;

namespace {

nn::SparsityConfig sparsity(const std::string& block) {
  return *engine::sparse_attention(
      engine::config_from_json(R"({"train_batch_size": 1, "sparse_attention": )" + block + "}"));
}

/// The largest difference relative to the largest element of b (at least 1).
double distance(const Tensor& a, const Tensor& b) {
  return max(abs(sub(a, b))).item() / std::max(1., max(abs(b)).item());
}

}  // namespace

TEST_CASE("sparse_attention: layouts and results match DeepSpeed's own classes") {
  const OnCpu on_cpu;
  struct Row {
    const char *name, *block;
    int64_t sum, ours;  // attended blocks of head 0: DeepSpeed's, and ours (if causal, none above the diagonal)
  };
  const Row rows[] = {
      {"fixed_default", R"({"mode": "fixed"})", 51, 51},
      {"fixed_uni", R"({"attention": "unidirectional"})", 27, 27},
      {"fixed_patterns", R"({"mode": "fixed", "different_layout_per_head": true, "num_different_global_patterns": 4})",
       56, 56},
      {"fixed_horizontal", R"({"mode": "fixed", "horizontal_global_attention": true})", 46, 46},
      {"fixed_uni_glob2", R"({"mode": "fixed", "num_global_blocks": 2, "attention": "unidirectional"})", 30, 28},
      {"variable_2_3", R"({"mode": "variable", "local_window_blocks": [2, 3], "global_block_indices": [0, 5]})", 36,
       36},
      {"variable_ends",
       R"({"mode": "variable", "attention": "unidirectional", "global_block_indices": [1, 6], "global_block_end_indices": [3, 8]})",
       35, 33},
      {"bigbird_no_random", R"({"mode": "bigbird", "num_global_blocks": 2})", 37, 37},
      {"bigbird_uni", R"({"mode": "bigbird", "num_sliding_window_blocks": 5, "attention": "unidirectional"})", 22, 22},
      {"bslongformer", R"({"mode": "bslongformer", "global_block_indices": [0, 4]})", 35, 35},
      {"bslongformer_uni",
       R"({"mode": "bslongformer", "attention": "unidirectional", "global_block_indices": [1], "global_block_end_indices": [3]})",
       21, 21},
  };
  const auto file = data::SafeTensors::open(std::string(golden_folder()) + "/sparse.safetensors");
  for (const Row& row : rows) {
    CAPTURE(std::string(row.name));
    const auto tensor = [&](const char* what) { return file.tensor(str(row.name, "/", what)); };
    const Tensor golden = tensor("layout");
    const int64_t heads = golden.size(0), blocks = golden.size(1), tokens = blocks * 16;
    nn::SparsityConfig config = sparsity(row.block);
    const bool causal = config.unidirectional.value_or(false);
    const nn::SparsityConfig by_block = [&] { return config.block = 1, config; }();
    const Tensor layout = nn::mask_of(nn::make_layout(by_block, heads, blocks), blocks).expand({heads, blocks, blocks});
    CHECK(sum(golden.narrow(0, 0, 1).to(f32)).item() == double(row.sum));
    CHECK(sum(layout.narrow(0, 0, 1).to(f32)).item() == double(row.ours));
    const Tensor wanted = golden.to(f32);
    CHECK(equal(layout.to(f32), causal ? tril(wanted) : wanted));

    config.block = 16;
    AttentionArgs args{.scale = 0, .causal = causal};
    args.layout = std::make_shared<BlockLayout>(nn::make_layout(config, heads, tokens));
    const Tensor q = tensor("q"), k = tensor("k"), v = tensor("v");
    const AttentionResult r = attention(q, k, v, {}, args);
    const AttentionGrad g = attention_grad(tensor("gout"), q, k, v, {}, r, args);
    const std::pair<const char*, Tensor> results[] = {{"out", r.out}, {"gq", g.q}, {"gk", g.k}, {"gv", g.v}};
    for (const auto& [what, found] : results) CHECK_MESSAGE(distance(found, tensor(what)) <= 1e-6, what);
  }
}

TEST_CASE("sparse_attention: defaults, and keys that are rejected by name") {
  const OnCpu on_cpu;
  const nn::SparsityConfig plain = sparsity("{}");
  CHECK(plain.mode == nn::SparsityConfig::Mode::fixed);
  CHECK(plain.block == 16);
  CHECK(plain.num_local_blocks == 4);
  CHECK(!plain.unidirectional);
  CHECK(sparsity(R"({"mode": "bigbird"})").num_random_blocks == 0);
  CHECK(sparsity(R"({"mode": "local", "block": 1e2})").block == 100);
  CHECK(sparsity(R"({"mode": "variable", "global_block_end_indices": null})").global_block_indices.size() == 1);
  for (const char* off : {"false", "null"})
    CHECK(!engine::sparse_attention(engine::config_from_json(str(R"({"sparse_attention": )", off, "}"))));
  CHECK(sparsity("{}").seed == 1234);
  struct Row {
    const char *block, *message;
  };
  const Row rows[] = {
      {"true",
       R"(sparse_attention: expected false or an object {...}, got true; write the block, such as {"mode": "fixed"})"},
      {R"("auto")", "sparse_attention: expected false or an object {...}, got \"auto\""},
      {R"({"mode": "fixd"})",
       "sparse_attention.mode: expected dense, fixed, variable, bigbird, bslongformer or local, got \"fixd\"; did you "
       "mean"},
      {R"({"mode": 3})", "sparse_attention.mode: expected dense, fixed"},
      {R"({"blok": 16})", "sparse_attention.blok: no such key"},
      {R"({"mode": "bigbird", "num_local_blocks": 4})",
       "sparse_attention.num_local_blocks: only applies to mode fixed, but mode is bigbird; leave it out"},
      {R"({"mode": "dense", "attention": "unidirectional"})",
       "sparse_attention.attention: only applies to mode fixed, variable, bigbird, bslongformer or local, but mode is "
       "dense"},
      {R"({"mode": "local", "global_block_indices": [0]})", "only applies to mode variable or bslongformer"},
      {R"({"block": 0})", "sparse_attention.block: expected an integer from 1 to "},
      {R"({"block": "16"})", "sparse_attention.block: expected an integer"},
      {R"({"attention": "causal"})", "sparse_attention.attention: expected unidirectional or bidirectional, got"},
      {R"({"horizontal_global_attention": 1})", "horizontal_global_attention: expected true or false, got 1"},
      {R"({"mode": "variable", "local_window_blocks": [4, 0]})",
       "local_window_blocks: expected a list of integers from 1 on, got [4, 0]"},
      {R"({"mode": "variable", "local_window_blocks": 4})",
       "local_window_blocks: expected a list of integers from 1 on"},
      {R"({"mode": "variable", "global_block_end_indices": 4})",
       "expected a list of integers from 1 on, or null, got 4"},
      {R"({"mode": "local", "block": 0, "num_random_blocks": 1})", "2 problems"},
      {R"({"num_global_blocks": 3})", "sparse_attention: [sparse attention] expected num_global_blocks that divides"},
  };
  for (const Row& row : rows) {
    CAPTURE(std::string(row.block));
    CHECK_ERROR(sparsity(row.block), row.message);
  }
}

namespace {

constexpr int64_t vocab = 11, length = 20;
const char* const bigbird =
    R"({"mode": "bigbird", "block": 3, "num_random_blocks": 1, "num_sliding_window_blocks": 1, "different_layout_per_head": true})";

Config with_sparse(const char* block, int stage, int64_t accumulation) {
  Config c = config_of(stage, accumulation);
  c.section<engine::SparseAttentionConfig>().value = data::parse_json(block, "block");
  return c;
}

struct Trained {
  std::vector<double> losses;
  std::string said;
};

/// by_list: train the model's layers as a list, not the model itself.
Trained train_gpt(const char* block, const std::string& named, bool by_list = false) {
  const parallel::Plan plan = parallel::parse_plan(named);
  std::string said;
  const auto all = on_ranks<std::vector<double>>(plan.ranks(), [&](int rank) {
    const parallel::Mesh mesh(plan, dist::world());
    InitializeArgs args{.optimizer = make_adamw,
                        .config = with_sparse(block, std::max(plan.zero, 0), 4 / plan.dp),
                        .mesh = &mesh,
                        .log = [&](const std::string& text) {
                          if (rank == 0 && text.starts_with("sparse_attention")) said = text;
                        }};
    manual_seed(1);
    PipelineModule module{.num_stages = plan.pp};
    if (by_list) {
      const nn::TransformerBlock::Options options{.width = 16, .heads = 4, .kv_heads = 2};
      module.layers = {pipeline::layer<nn::Embedding>({.num = vocab, .dim = 16}),
                       pipeline::layer<nn::TransformerBlock>(options), pipeline::layer<nn::TransformerBlock>(options),
                       pipeline::layer<nn::Linear>({.in = 16, .out = vocab})};
      module.loss_fn = [](const pipeline::Values& y, const std::vector<Tensor>& targets) {
        return cross_entropy(y[0].reshape({-1, vocab}), targets[0].reshape({-1}));
      };
      module.partition_method = "uniform";
    } else {
      module.model = std::make_shared<nn::GPT>(
          nn::GPT::Options{.vocab = vocab, .context = length, .layers = 2, .width = 16, .heads = 4});
    }
    if (plan.tp > 1) args.sharded = tensor_parallel::apply(*module.model, mesh.tp());
    EngineBase engine(std::move(module), std::move(args));
    std::vector<double> losses;
    while (engine.global_steps() < 3)
      losses.push_back(engine.train_batch([&](int64_t) {
        const Tensor tokens = randint(0, vocab, {2, length + 1});
        return pipeline::Sample{{tokens.narrow(1, 0, length).contiguous()}, {tokens.narrow(1, 1, length).contiguous()}};
      }));
    return losses;
  });
  for (const auto& other : all) CHECK(other == all[0]);
  return {all[0], said};
}

}  // namespace

TEST_CASE("sparse_attention: a model trains with it under every plan as in one process") {
  const OnCpu on_cpu;
  const Trained dense = train_gpt("false", "dp1");
  CHECK(dense.said == "");
  CHECK(train_gpt(R"({"mode": "dense", "block": 7})", "dp1").losses == dense.losses);
  for (const char* block : {bigbird, R"({"block": 4, "num_local_blocks": 2})"}) {
    const Trained one = train_gpt(block, "dp1");
    CHECK(one.losses != dense.losses);
    CHECK(contains(one.said, "in 2 of 2 MultiHeadAttention"));
    for (const char* plan : {"dp2", "dp2+zero3", "pp2", "dp2+pp2+zero1"}) {
      CAPTURE(std::string(plan));
      CHECK(train_gpt(block, plan).losses == one.losses);
    }
    for (const char* plan : {"tp2", "pp2+tp2", "tp4"}) {
      CAPTURE(std::string(plan));
      const Trained sharded = train_gpt(block, plan);
      for (size_t i = 0; i < one.losses.size(); ++i)
        CHECK(sharded.losses[i] == doctest::Approx(one.losses[i]).epsilon(1e-5));
    }
  }
  const Trained list = train_gpt(bigbird, "dp1", true);
  CHECK(contains(list.said, "sparse_attention: bigbird, blocks of 3, in 2 of 2 MultiHeadAttention"));
  CHECK(train_gpt(bigbird, "pp2", true).losses == list.losses);
  CHECK(train_gpt("false", "dp1", true).losses != list.losses);
}

TEST_CASE("sparse_attention: models and plans that do not support it are rejected") {
  const OnCpu on_cpu;
  Net plain;
  nn::GPT gpt({.vocab = vocab, .context = length, .layers = 1, .width = 16, .heads = 2});
  const auto args = [](const char* block) {
    return InitializeArgs{.optimizer = make_adamw, .config = with_sparse(block, 0, 1), .log = quiet};
  };
  CHECK_ERROR(engine::initialize(plain, args("{}")),
              "sparse_attention: expected a model with MultiHeadAttention, got none in Net; leave it out");
  CHECK_ERROR(engine::initialize(gpt, args(R"({"attention": "bidirectional"})")),
              "in a causal model, got bidirectional; leave it out");
  CHECK_ERROR(engine::initialize(gpt, args(R"({"horizontal_global_attention": true})")),
              "needs bidirectional attention");
  const auto shared = std::make_shared<nn::GPT>(gpt.o);
  PipelineModule replicated{.model = shared, .forward = [shared](const Tensor& x) { return (*shared)(x); }};
  CHECK_ERROR(EngineBase(std::move(replicated), args("{}")), "not supported with the program's own forward");
  const auto reasons = engine::reasons_against(with_sparse("{}", 0, 1), {.cp = 2}, {.ranks = 2});
  REQUIRE(reasons.size() == 1);
  CHECK(reasons[0] == "sparse_attention with cp2 is not supported; leave one of them out");
  CHECK(engine::reasons_against(with_sparse("false", 0, 1), {.cp = 2}, {.ranks = 2}).empty());
  if (!engine::is_launched()) dist::shutdown();  // the engines above have created a world
}

}  // namespace sparse_attention_test
