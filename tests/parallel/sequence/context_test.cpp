// Context parallelism of whole models: the loss and gradients of one process, also with data parallelism, scopes,
// rejected uses.
#include <doctest/doctest.h>

#include "autograd/activation_checkpoint.h"
#include "nn/models/gpt.h"
#include "parallel/ddp.h"
#include "tests/parallel/sequence/util.h"

using namespace testing;

namespace {

constexpr nn::GPT::Options small{.vocab = 17, .context = 16, .layers = 2, .width = 16, .heads = 4};

std::unique_ptr<nn::GPT> make_model(nn::GPT::Options options = small) {
  manual_seed(1);
  auto model = std::make_unique<nn::GPT>(options);
  model->to(f64);
  return model;
}

std::vector<Tensor> gradients(nn::Module& model) {
  std::vector<Tensor> all;
  for (auto& p : model.parameters()) all.push_back(p.grad().clone());
  return all;
}

}  // namespace

TEST_CASE("a GPT over data x context ranks has the loss and the gradients of one process") {
  struct Row {
    int data, context;
    ContextOptions options;
    bool checkpoint = false;
  };
  manual_seed(5);
  const Tensor tokens = randint(0, 17, {4, 16}), targets = randint(0, 17, {4, 16});
  for (const Row& row : {Row{1, 1, {}}, Row{1, 2, {}}, Row{1, 4, {ring, contiguous}}, Row{1, 4, {ulysses, {}}},
                         Row{2, 2, {}}, Row{2, 4, {}}, Row{2, 2, {ulysses, {}}}, Row{1, 2, {}, true}}) {
    INFO("data ", row.data, ", context ", row.context);
    nn::GPT::Options options = small;
    options.checkpoint_blocks = row.checkpoint;
    auto full = make_model(options);
    const Variable expected = full->loss(tokens, targets);
    expected.backward();
    const auto losses = on_ranks<double>(row.data * row.context, [&](int rank) {
      const auto group = dist::world().split(rank / row.context, rank, "cp");
      auto model = make_model(options);
      parallel::DistributedDataParallel ddp(*model);
      const auto part = share_sequences(*model, group, row.options);
      const int64_t rows = 4 / row.data, first = rank / row.context * rows;
      const auto mine = [&](const Tensor& x) {
        return slice(x.narrow(0, first, rows), 1, row.context, group->rank(), row.options.order_or_default());
      };
      const Variable loss = model->loss(mine(tokens), mine(targets));
      loss.backward();
      CHECK(max_difference(gradients(*model), gradients(*full)) < 1e-12);
      take_sequences(*model);  // afterwards the model is local: rank 0 alone may call it
      if (rank == 0) CHECK(model->loss(tokens, targets).item() == doctest::Approx(expected.item()).epsilon(1e-13));
      take_sequences(*model, part);
      CHECK(model->loss(mine(tokens), mine(targets)).item() == loss.item());
      return loss.item();
    });
    double mean = 0;
    for (const double loss : losses) mean += loss / double(losses.size());
    CHECK(mean == doctest::Approx(expected.item()).epsilon(1e-13));
  }
}

TEST_CASE("rotary positions and shared key heads follow the tokens") {
  manual_seed(2);
  const auto make = [] {
    manual_seed(4);
    auto layer = std::make_unique<nn::MultiHeadAttention>(
        nn::MultiHeadAttention::Options{.embed = 32,
                                        .heads = 4,
                                        .kv_heads = 2,
                                        .rope = std::make_shared<nn::RopeTable>(nn::Rope{}, 8, 24),
                                        .max_context = 24});
    layer->to(f64);
    return layer;
  };
  const Tensor x = randn({2, 24, 32}, {.dtype = f64});
  auto full = make();
  const Variable in(x, true);
  const Variable out = (*full)(in);
  sum(mul(out, out)).backward();
  for (const ContextOptions options : {ContextOptions{ring, zigzag}, {ring, contiguous}, {ulysses, {}}}) {
    on_ranks(4, [&](int rank) {
      auto layer = make();
      share_sequences(*layer, everyone(), options);
      const auto own = [&](const Tensor& x) { return slice(x, 1, 4, rank, options.order_or_default()); };
      const Variable mine(own(x), true);
      const Variable y = (*layer)(mine);
      sum(mul(y, y)).backward();
      CHECK(testing::max_difference(own(out.tensor()), y.tensor()) < 1e-12);
      CHECK(testing::max_difference(own(in.grad()), mine.grad()) < 1e-12);
    });
  }
}

TEST_CASE("context parallelism can be ended, and rejects unsupported models") {
  on_ranks(2, [&](int rank) {
    const auto group = everyone();
    auto model = make_model();
    const Tensor tokens = zeros({1, 16}, {.dtype = i64});
    const Tensor before = (*model)(tokens).tensor();
    {
      share_sequences(*model, group);
      const auto mine = [&](const Tensor& x) { return slice(x, 1, 2, rank, zigzag); };
      CHECK_ERROR((*model)(tokens), "expected at most 16 tokens (context), got 32, 16 on each of 2 ranks");
      CHECK((*model)(mine(tokens)).size(1) == 8);
      CHECK_ERROR(mine(zeros({1, 6}, {.dtype = i64})), "divisible by 4 (2 ranks, zigzag), got 6");
      std::vector<nn::KvCache> cache(model->blocks.size());
      const std::vector<int64_t> prompt(8);
      CHECK_ERROR(model->next_scores({prompt}, {&cache}), "a KV cache needs whole sequences");
      CHECK_ERROR(model->blocks[0].attention.forward(Variable(zeros({1, 8, 16}, {.dtype = f64})),
                                                     ones({8, 8}, {.dtype = boolean})),
                  "context parallelism does not support a mask");
    }
    take_sequences(*model);
    CHECK(equal((*model)(tokens).tensor(), before));
    nn::Linear none({.in = 2, .out = 2});
    CHECK_ERROR(share_sequences(none, group), "expected a model in which tokens attend to others, got none in");
    CHECK_ERROR(share_sequences(*model, nullptr), "expected a process group");
    CHECK_ERROR(share_sequences(*model, group, {ulysses, zigzag}), "expected contiguous order, got zigzag");
    nn::GPT::Options three = small;
    three.width = 15;
    three.heads = 3;
    nn::GPT odd(three);
    CHECK_ERROR(share_sequences(odd, group, {ulysses, {}}),
                "blocks.0.attention: Ulysses expected a number of heads divisible by the 2 ranks, got 3");
  });
}
