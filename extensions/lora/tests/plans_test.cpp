// LoRA under parallel plans: adapters are ordinary parameters, and frozen parameters need neither optimizer state nor
// gradients.
#include <doctest/doctest.h>

#include "engine/pipeline_module.h"
#include "extensions/lora/low_rank.h"
#include "parallel/ddp.h"
#include "tensor/memory.h"
#include "tests/devices.h"
#include "tests/engine/training.h"

using namespace lockstep;
using namespace testing;

namespace {

constexpr int64_t lora_vocab = 12, lora_context = 8;

nn::GPT::Options lora_sizes(bool llama) {
  nn::GPT::Options o{.vocab = lora_vocab, .context = lora_context, .layers = 2, .width = 16, .heads = 4};
  if (llama) o = as_llama(o), o.inner = 12;
  return o;
}

struct LoraMix {
  std::string plan;
  bool llama = false;
  nn::LoraOptions lora = {};
};

std::shared_ptr<nn::GPT> lora_model(const LoraMix& m) {
  manual_seed(3);
  auto model = std::make_shared<nn::GPT>(lora_sizes(m.llama));
  nn::add_lora(*model, m.lora);
  return model;
}

Tensors train_lora(const LoraMix& m, bool sequence = false) {
  const auto make = [&](const parallel::Mesh&) { return engine::PipelineModule{.model = lora_model(m)}; };
  const auto sample = [](int64_t, int64_t) {
    const Tensor tokens = randint(0, lora_vocab, {2, lora_context + 1});
    return pipeline::Sample{{tokens.narrow(1, 0, lora_context).contiguous()},
                            {tokens.narrow(1, 1, lora_context).contiguous()}};
  };
  const auto change = [](engine::Config& c) {
    c.zero_optimization.stage3_param_persistence_threshold = 0;
    c.optimizer = {.type = "AdamW", .params = data::parse_json(R"({"lr": 0.01, "weight_decay": 0.1})", "params")};
  };
  const Subject subject{.name = m.llama ? "Llama" : "GPT", .make = make, .sample = sample, .optimizer = {}};
  Tensors all = train(
      subject,
      {.plan = m.plan, .steps = 3, .clip = 1, .tp_options = {.sequence = sequence, .sum = false}, .change = change});
  // Keep what every plan returns: a pipeline stage that trains nothing does not return its frozen parameters.
  std::erase_if(all, [](const auto& one) {
    const std::string& name = one.first;
    return name != "report" && name.find(".lora.") == name.npos && !name.starts_with("norm.");
  });
  CHECK(all.size() > 2);
  return all;
}

}  // namespace

TEST_CASE("lora: plans train adapters bit-identically to one process; slices to a tolerance") {
  const OnCpu on_cpu;
  const std::vector<nn::LoraOptions> options{{.r = 2, .alpha = 8, .dropout = 0.2},
                                             {.r = 3, .targets = {"out_proj", "mlp.up", "down"}},
                                             {.targets = {"blocks.1.mlp.down"}, .modules_to_save = {"norm"}}};
  for (const bool llama : {false, true}) {
    for (const nn::LoraOptions& lora : options) {
      const Tensors one = train_lora({"dp1", llama, lora});
      for (const std::string plan : {"dp2", "dp4", "dp2+zero1", "dp2+zero2", "dp2+zero3", "pp2", "dp2+pp2"})
        check_same(one, train_lora({plan, llama, lora}), {}, str(plan, ", Llama ", llama));
      if (lora.dropout > 0) continue;
      for (const bool sequence : {false, true})
        check_same(one, train_lora({"tp2", llama, lora}, sequence), {1e-5, 1e-5, INFINITY}, str("sequence ", sequence));
    }
  }
}

TEST_CASE("lora: cuts of adapters follow from their Linear's") {
  const OnCpu on_cpu;
  for (const std::vector<std::string>& targets :
       {std::vector<std::string>{"q_proj", "v_proj", "mlp.up"}, {"k_proj", "out_proj", "down"}, {"in_proj", "gate"}}) {
    const LoraMix m{"tp2", true, {.r = 2, .targets = targets}};
    const auto fill_b = [](nn::GPT& model) {
      manual_seed(9);
      for (const auto& p : model.named_parameters())
        if (p.name.find(".lora.B") != p.name.npos) p.variable.tensor().copy_(randn(p.variable.shape()));
    };
    const auto full = lora_model(m);
    fill_b(*full);
    manual_seed(1);
    const Tensor tokens = randint(0, lora_vocab, {2, lora_context});
    const Tensor logits = (*full)(tokens).tensor();
    full->loss(tokens, tokens).backward();
    for (const bool sequence : {false, true}) {
      on_ranks(2, [&](int) {
        const auto model = lora_model(m);
        fill_b(*model);
        const auto cut = tensor_parallel::apply(*model, dist::world(), {.sequence = sequence});
        LOCKSTEP_CHECK(max(abs(sub((*model)(tokens).tensor(), logits))).item() < 1e-5, "expected equal logits");
        model->loss(tokens, tokens).backward();
        const auto ours = model->named_parameters(), theirs = full->named_parameters();
        int shards = 0;
        for (size_t i = 0; i < ours.size(); ++i) {
          if (!ours[i].variable.requires_grad()) continue;
          Tensor wanted = theirs[i].variable.grad();
          if (const auto* s = cut.find(ours[i].variable))
            wanted = tensor_parallel::shard_of(wanted, s->cut, 2, dist::world().rank()), ++shards;
          LOCKSTEP_CHECK(max(abs(sub(ours[i].variable.grad(), wanted))).item() < 1e-5, ours[i].name,
                         ": expected the gradient of one process; sequence ", sequence);
        }
        LOCKSTEP_CHECK(shards >= 2, "expected slices of adapters, got ", shards);
      });
    }
  }
}

TEST_CASE("lora: frozen parameters have no optimizer state and send no gradient") {
  const OnCpu on_cpu;
  const LoraMix m{"dp2", false, {.r = 2}};
  int64_t adapters = 0;
  for (const Variable& p : lora_model(m)->parameters())
    if (p.requires_grad()) adapters += p.numel();
  const int64_t all = lora_model(m)->parameter_count();
  CHECK(adapters == 2 * (2 * 16 + 48 * 2));
  CHECK(all > 20 * adapters);
  for (const int stage : {-1, 1, 2, 3}) {  // -1: DDP
    on_ranks(2, [&](int rank) {
      const auto model = lora_model(m);
      const auto optimizer_bytes = [] { return memory_report().category[int(Memory::optimizer)].current; };
      const int64_t before = optimizer_bytes();
      optim::AdamW adamw(model->parameters(), {.lr = 1e-2});
      std::optional<parallel::DistributedDataParallel> ddp;
      std::optional<zero::Zero> zero;
      if (stage < 0) ddp.emplace(*model);
      else zero.emplace(*model, adamw, zero::ZeroOptions{.stage = stage});
      manual_seed(20 + uint64_t(rank));
      const Tensor tokens = randint(0, lora_vocab, {2, lora_context});
      int64_t sent = 0, forward = 0;
      for (int step = 0; step < 2; ++step) {
        const dist::Traffic at = dist::world().traffic();
        Variable loss = ddp ? ddp->call([&] { return model->loss(tokens, tokens); }) : model->loss(tokens, tokens);
        forward = dist::world().traffic().sent - at.sent;
        loss.backward();
        if (zero) zero->step({.grad_scale = 0.5});
        else adamw.step(), adamw.zero_grad();
        sent = dist::world().traffic().sent - at.sent;
      }
      const int64_t held = optimizer_bytes() - before, bytes = 4 * adapters;
      LOCKSTEP_CHECK(held > 0 && held <= 3 * bytes + 1024, "expected at most ", 3 * bytes, " bytes held, got ", held);
      // Gradients are sent to their owners, and parameters back; stage 3 also gathers frozen parameters before each
      // use, in forward and in backward.
      const int64_t limit = stage == 3 ? 2 * forward + 2 * bytes : 2 * bytes;
      LOCKSTEP_CHECK(sent > 0 && sent <= limit + 512, "expected at most ", limit, " bytes sent, got ", sent);
    });
  }
}

TEST_CASE("lora: a Linear that a rule cuts and its model does not is refused") {
  const OnCpu on_cpu;
  struct Plain : nn::Layer<Plain> {
    nn::Linear up = linear(4, 8), down = linear(8, 4);
    Variable forward(const Variable& x) { return down(relu(up(x))); }
    void fields(nn::Fields& f) override { f("up", up)("down", down); }
  };
  for (const std::string target : {"up", "down"}) {
    on_ranks(2, [&](int) {
      Plain net;
      nn::add_lora(net, {.targets = {target}});
      tensor_parallel::apply(net, dist::world(), {.rules = {{"up", nn::cut::columns}, {"down", nn::cut::rows}}});
      const std::string text = message([&] { net(ones({2, 4})); });
      LOCKSTEP_CHECK(contains(text, "was the layer sharded by a rule other than the model's own cut?"), target, ": ",
                     text);
    });
  }
}

TEST_CASE("lora: merging needs whole parameters, and adapters come before slices") {
  const OnCpu on_cpu;
  on_ranks(2, [&](int) {
    nn::GPT model(lora_sizes(true));
    nn::Lora lora = nn::add_lora(model);
    const auto cut = tensor_parallel::apply(model, dist::world());
    CHECK_ERROR(lora.merge(), "empty or sharded; merge in one process");
    nn::GPT tp_model(lora_sizes(true));
    const auto first = tensor_parallel::apply(tp_model, dist::world());
    CHECK_ERROR(nn::add_lora(tp_model), "is sharded already; add adapters before");
    nn::GPT sharded(lora_sizes(true));
    nn::Lora parts = nn::add_lora(sharded);
    optim::AdamW adamw(sharded.parameters(), {.lr = 1e-2});
    const zero::Zero zero(sharded, adamw, {.stage = 3, .param_persistence_threshold = 0});
    CHECK_ERROR(parts.merge(), "empty or sharded; merge in one process");
  });
}
