// 50 training steps under tensor, sequence and data parallelism against one process, with a sliding window in the last
// layer.
#include <doctest/doctest.h>

#include "autograd/autocast.h"
#include "optim/optim.h"
#include "optim/optimizer.h"
#include "parallel/ddp.h"
#include "parallel/gradient_sum.h"
#include "parallel/tensor_parallel/apply.h"
#include "tensor/ops.h"
#include "tests/parallel/tensor_parallel/util.h"

using namespace lockstep;
using namespace testing;
namespace tp = lockstep::tensor_parallel;

namespace {

constexpr int64_t training_vocab = 19, training_tokens = 8, training_batch = 2;
constexpr int steps = 50, replicas = 2;

std::unique_ptr<nn::GPT> make() {
  manual_seed(5);
  return std::make_unique<nn::GPT>(nn::GPT::Options{.vocab = training_vocab,
                                                    .context = training_tokens,
                                                    .layers = 2,
                                                    .width = 16,
                                                    .heads = 4,
                                                    .dropout = 0.1,
                                                    .window = 5,
                                                    .window_from = 1});
}

/// A text that can be learned: each token determines the next.
Tensor text(int step, int64_t micro) {
  const std::vector<int64_t> starts =
      ids(uint64_t(1000 * step + micro), {training_batch}, training_vocab).to_vector<int64_t>();
  std::vector<int64_t> all;
  for (int64_t b = 0; b < training_batch; ++b)
    for (int64_t t = 0, now = starts[size_t(b)]; t <= training_tokens; ++t, now = (now * 3 + 1) % training_vocab)
      all.push_back(now);
  return Tensor::from(all, {training_batch, training_tokens + 1});
}
Variable loss_of(nn::GPT& m, int step, int64_t micro) {
  const Tensor all = text(step, micro);
  set_random_step(uint64_t(step), uint64_t(micro));
  return m.loss(all.narrow(1, 0, training_tokens).contiguous(), all.narrow(1, 1, training_tokens).contiguous());
}

}  // namespace

TEST_CASE("50 steps with dropout, clipping and copies: the losses of one process to 1e-5") {
  std::vector<double> expected;
  {
    const auto model = make();
    optim::AdamW adamw(model->parameters(), {.lr = 1e-2, .weight_decay = 0.1});
    parallel::GradientSum sum(model->parameters());
    for (int step = 0; step < steps; ++step) {
      double total = 0;
      for (int64_t micro = 0; micro < replicas; ++micro) {
        const Variable loss = loss_of(*model, step, micro);
        total += loss.item() / replicas;
        loss.backward();
        sum.add();
      }
      sum.finish();
      for (const Variable& p : model->parameters()) mul_scalar_(p.grad(), 1.0 / replicas);
      optim::clip_grad_norm(model->parameters(), 1);
      adamw.step();
      adamw.zero_grad();
      expected.push_back(total);
    }
    CHECK(expected.back() < expected.front() / 2);
  }
  for (const bool sequence : {false, true}) {
    for (const int n : {2, 4}) {
      on_ranks(n * replicas, [&](dist::ProcessGroup& world) {
        const dist::GroupMesh mesh(world, {{"dp", replicas}, {"tp", n}});
        const auto model = make();
        const auto cut = tp::apply(*model, mesh.group("tp"), {.sequence = sequence});
        optim::AdamW adamw(model->parameters(), {.lr = 1e-2, .weight_decay = 0.1});
        parallel::DistributedDataParallel ddp(*model, {}, &mesh.group("dp"));
        for (int step = 0; step < steps; ++step) {
          const Variable loss = ddp.call([&] { return loss_of(*model, step, mesh.coordinate("dp")); });
          loss.backward();
          const Tensor mean = loss.tensor().clone();
          mesh.group("dp").all_reduce(mean, {.op = dist::ReduceOp::mean});
          const double off = std::abs(mean.item() - expected[size_t(step)]) / expected[size_t(step)];
          LOCKSTEP_CHECK(off <= 1e-5, "tp ", n, sequence ? " sequence" : "", ", step ", step, ": loss ", mean.item(),
                         ", one process has ", expected[size_t(step)]);
          cut.clip_grad_norm(1);
          adamw.step();
          adamw.zero_grad();
        }
      });
    }
  }
}

TEST_CASE("16-bit gradients are sent in 16 bits, and training converges alike") {
  const Variable loss = [] {
    const auto model = make();
    const Autocast autocast(bf16);
    return loss_of(*model, 0, 0);
  }();
  on_ranks(2, [&](dist::ProcessGroup& g) {
    int64_t sent[2];
    for (const bool low : {false, true}) {
      const auto model = make();
      const auto cut = tp::apply(*model, g, {.sequence = true});
      const int64_t before = g.traffic().sent;
      const Autocast autocast(bf16, low);
      const Variable mine = loss_of(*model, 0, 0);
      sent[low] = g.traffic().sent - before;
      if (!low) continue;
      LOCKSTEP_CHECK(std::abs(mine.item() - loss.item()) < 1e-2, "loss ", mine.item(), ", one process has ",
                     loss.item());
      mine.backward();
      for (auto& p : model->named_parameters())
        LOCKSTEP_CHECK(p.variable.grad().defined() && all_finite(p.variable.grad()), "gradient of ", p.name);
    }
    LOCKSTEP_CHECK(sent[1] < sent[0] * 7 / 10, "sent ", sent[1], " bytes, in f32 ", sent[0]);
  });
}
