// Stage 3: parameters that are gathered and released. The same bits however long they are held, and errors if its rules
// are broken.
#include <doctest/doctest.h>

#include "autograd/activation_checkpoint.h"
#include "nn/models/gpt.h"
#include "parallel/activation_checkpoints.h"
#include "tests/zero/util.h"

using namespace lockstep;
using namespace testing;
using zero::ZeroOptions;

namespace {

const nn::GPT::Options tiny{.vocab = 61, .context = 8, .layers = 3, .width = 24, .heads = 2, .dropout = 0.1};

Variable gpt_loss(nn::GPT& model, int step, int64_t micro) {
  manual_seed(11);
  set_random_step(1000 + uint64_t(step), uint64_t(micro));
  const Tensor tokens = randint(0, 61, {2, 9});
  manual_seed(5);
  set_random_step(uint64_t(step), uint64_t(micro));
  return model.loss(tokens.narrow(1, 0, 8).contiguous(), tokens.narrow(1, 1, 8).contiguous());
}

ZeroOptions stage3(ZeroOptions o = {}) {
  o.stage = 3;
  o.param_persistence_threshold = 0;
  return o;
}

/// A GPT: built empty, with blocks that checkpoint themselves, or wrapped, or with a frozen block. Also how stage 3
/// keeps its parameters.
struct Variant {
  bool frozen = false, empty = false, checkpointed = false, wrapped = false;
  int64_t module_size = 0, reuse = 0;  // 8000: a block is gathered as one unit
  int buffers = 0;                     // above 0: parameters in files
};
Tensors train_gpt(const Variant& v, int ranks = 1, std::optional<int> stage = {}) {
  ZeroOptions options = stage3({.max_reuse_distance = v.reuse, .module_size = v.module_size});
  options.stage = stage.value_or(3);
  if (v.buffers > 0) {
    options.offload_param = all_in_files().offload_param;
    options.offload_param.buffer_count = v.buffers;
  }
  return train({.ranks = ranks,
                .accumulation = 4 / ranks,
                .options = stage ? std::optional(options) : std::nullopt,
                .steps = 3,
                .model =
                    [&] {
                      std::optional<nn::BuildEmpty> scope;
                      if (v.empty) scope.emplace();
                      nn::GPT::Options sizes = tiny;
                      sizes.checkpoint_blocks = v.checkpointed;
                      auto model = std::make_unique<nn::GPT>(sizes);
                      if (v.wrapped)
                        parallel::ActivationCheckpoints({.cpu_checkpointing = true, .every = 2}).wrap_blocks(*model);
                      if (v.frozen) model->blocks[1].requires_grad_(false);
                      return model;
                    },
                .loss = [](nn::Module& net, const Call&, int step,
                           int64_t micro) { return gpt_loss(static_cast<nn::GPT&>(net), step, micro); },
                .after =
                    [](nn::Module& net, Zero& zero, int) {
                      for (const auto& unit : zero.units()) {
                        const auto p = net.named_parameters().at(unit.parameters[0]);
                        LOCKSTEP_CHECK(p.variable.tensor().storage()->is_empty() == !unit.persistent, p.name,
                                       " is whole");
                      }
                      const NoGrad no_grad;  // an evaluation between steps changes nothing
                      gpt_loss(static_cast<nn::GPT&>(net), 77, 0);
                    }});
}

/// Calls left, then right; swapped: right, then left.
struct Pair : nn::Layer<Pair> {
  nn::Linear left = linear(6, 6), right = linear(6, 6);
  bool swapped = false;
  Variable forward(const Variable& x) { return swapped ? left(right(x)) : right(left(x)); }
  void fields(nn::Fields& f) override { f("left", left)("right", right); }
};

/// Reads the weight of a layer without calling that layer.
struct Reader : nn::Layer<Reader> {
  nn::Linear layer = linear(6, 6), other = linear(6, 6);
  Variable forward(const Variable& x) { return lockstep::linear(layer(x), other.weight, other.bias); }
  void fields(nn::Fields& f) override { f("layer", layer)("other", other); }
};

/// A model under stage 3 with SGD.
template <class Model> struct OnStage3 {
  Model model;
  optim::SGD optimizer;
  Zero zero;
  explicit OnStage3(const ZeroOptions& o = {})
      : optimizer(model.parameters(), {.lr = 0.1}), zero(model, optimizer, stage3(o)) {}
  /// Trains a step; returns the error.
  std::string train() {
    return message([&] {
      sum(square(model(ones({2, 6})))).backward();
      zero.step();
    });
  }
};

}  // namespace

TEST_CASE("zero 3: the same bits for every way to gather, keep and free parameters") {
  const Tensors one = train({.steps = 3});
  std::vector<ZeroOptions> rows;
  for (const int64_t ahead : {int64_t(0), int64_t(1000), int64_t(1) << 40})
    rows.push_back(stage3({.prefetch_bucket_size = ahead}));
  for (const int64_t live : {int64_t(1), int64_t(14000)}) rows.push_back(stage3({.max_live_parameters = live}));
  for (const int64_t reuse : {int64_t(500), int64_t(1) << 40}) rows.push_back(stage3({.max_reuse_distance = reuse}));
  rows.push_back(stage3({.max_live_parameters = 14000, .max_reuse_distance = int64_t(1) << 40}));
  for (const int64_t size : {int64_t(2000), int64_t(1) << 40}) rows.push_back(stage3({.module_size = size}));
  rows.push_back(stage3({.overlap_comm = false}));
  rows.push_back(stage3({.reduce_scatter = false}));
  rows.push_back({.stage = 3, .param_persistence_threshold = 700, .model_persistence_threshold = 400});
  rows.push_back({.stage = 3, .param_persistence_threshold = 1 << 30});
  for (size_t i = 0; i < rows.size(); ++i) {
    for (const int ranks : {1, 2, 4}) {
      CAPTURE(i);
      CAPTURE(ranks);
      CHECK(differing(one, train(divided({.steps = 3}, ranks, rows[i]))) == "");
    }
  }
}

TEST_CASE(
    "zero 3: GPT with a tied head, dropout, checkpointed blocks, frozen blocks, built whole or in an Init scope") {
  const Variant rows[] = {{},
                          {.checkpointed = true},
                          {.wrapped = true},
                          {.checkpointed = true, .module_size = 8000},
                          {.checkpointed = true, .module_size = 8000, .reuse = 20000},
                          {.checkpointed = true, .module_size = 8000, .reuse = 20000, .buffers = 5},
                          {.empty = true, .buffers = 2}};
  for (const bool frozen : {false, true}) {
    const Tensors one = train_gpt({.frozen = frozen});
    for (const int ranks : {1, 2, 4}) {
      INFO(ranks, " ranks, ", frozen ? "frozen" : "all trained");
      for (const int stage : {1, 2, 3})
        CHECK(differing(one, train_gpt({.frozen = frozen, .empty = true}, ranks, stage)) == "");
      for (Variant row : rows) {
        row.frozen = frozen;
        CHECK(differing(one, train_gpt(row, ranks, 3)) == "");
      }
    }
  }
}

TEST_CASE("zero 3: ranks that run modules in another order are told, with both modules' names") {
  std::vector<std::string> said(2);
  const std::string error = message([&] {
    dist::spawn(2,
                [&](int rank) {
                  OnStage3<Pair> on;
                  on.model.swapped = rank == 1;
                  try {
                    on.model(ones({2, 6}));
                  } catch (const Error& e) {
                    said[size_t(rank)] = e.what();
                    throw;
                  }
                },
                {.timeout = dist::Seconds(20)});
  });
  CHECK(contains(error, "of module left"));
  CHECK(contains(error, "of module right"));
  for (const std::string& text : said) CHECK(contains(text, "of module left"));
}

TEST_CASE("zero 3: a parameter that is read outside its module is named; register_external() cures it") {
  on_ranks(2, [](int) {
    manual_seed(1);
    OnStage3<Reader> on;
    const std::string error = on.train();
    LOCKSTEP_CHECK(contains(error, "module other, other.weight") && contains(error, "released"), error);
    on.zero.zero_grad();
    on.zero.register_external(on.model, on.model.other.weight);
    on.zero.register_external(on.model, on.model.other.bias);
    const std::string now = on.train();
    LOCKSTEP_CHECK(now == "(no error)", now);
    nn::Linear stranger = linear(2, 2);
    CHECK_ERROR(on.zero.register_external(stranger, on.model.other.weight), "that is not");
    CHECK_ERROR(on.zero.register_external(on.model, stranger.weight), "not one of the module's 4");
  });
}

TEST_CASE("zero 3: after a forward that threw, and one whose graph was dropped, training goes on with the same bits") {
  const auto run = [](bool disturbed) {
    return on_ranks<Tensors>(2, [&](int) {
      manual_seed(1);
      OnStage3<Pair> on({.max_reuse_distance = disturbed ? 1000 : 0});
      for (int step = 0; step < 4; ++step) {
        if (disturbed) {
          CHECK_ERROR(on.model(ones({2, 5})), "linear");
          on.model(ones({2, 6}));
        }
        on.train();
      }
      return gathered_parameters(on.zero, on.model);
    })[0];
  };
  CHECK(differing(run(false), run(true)) == "");
}

TEST_CASE("zero 3: ranks that build a model empty must agree on how it starts") {
  CHECK_ERROR(dist::spawn(2,
                          [](int rank) {
                            manual_seed(uint64_t(rank));
                            const nn::BuildEmpty scope;
                            OnStage3<Pair>();
                          }),
              "starts in 1 steps, changed 0 times; from seed 0");
}
