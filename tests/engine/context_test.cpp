// Context parallelism under the engine: losses by tokens, a pipeline without an engine, the data loader. Models under
// every plan: plans_test.cpp.
#include "pipeline/layers.h"
#include "tests/engine/training.h"

using namespace lockstep;
using namespace testing;
using sequence::ContextKind;

namespace {

const Subject subject = gpt_subject(0);
std::shared_ptr<nn::GPT> make_gpt(const parallel::Mesh& mesh) {
  const auto model = std::static_pointer_cast<nn::GPT>(subject.make(mesh).model);
  if (mesh.plan().cp > 1) sequence::share_sequences(*model, {std::shared_ptr<void>(), &mesh.cp()});
  return model;
}

/// Targets of which some are ignored, more so towards the end of a sequence.
Tensor targets_of(int64_t step, int64_t micro) {
  const RandomScope own({.seed = 10, .step = uint64_t(step), .micro_batch = uint64_t(micro)});
  const Tensor targets = randint(0, subject_vocab, {2, 16}), chance = mul_scalar(rand({2, 16}), 16.);
  return masked_fill(targets, lt(chance, arange(0, 16.).to(f32).expand({2, 16})), -100);
}

}  // namespace

TEST_CASE("context: losses by tokens are near those of one process, at every stage of ZeRO") {
  Subject by_tokens = subject;
  by_tokens.sample = [](int64_t step, int64_t micro) {
    return pipeline::Sample{subject.sample(step, micro).inputs, {targets_of(step, micro)}};
  };
  by_tokens.loss = [](const pipeline::Values& out, const std::vector<Tensor>& y) {
    return cross_entropy(out[0].view({-1, subject_vocab}), y[0].reshape({-1}), {.reduction = Reduction::sum});
  };
  by_tokens.tokens = [](const Tensor& y) {
    return y.numel() - sum(eq(y, full({1}, -100, {.dtype = i64})).to(i64)).item<int64_t>();
  };
  const Tensors one = train(by_tokens, {.steps = 3, .loop = true});
  for (int stage = 0; stage <= 3; ++stage) {
    for (const auto& [plan, kind] : {std::pair{"cp2", ContextKind::ulysses}, {"dp2+cp2", ContextKind::ring}}) {
      const Training t{.plan = str(plan, "+zero", stage), .steps = 3, .loop = true, .context = {kind}};
      check_same(one, train(by_tokens, t), {4e-13, 4e-13, 1e-12}, text_of(by_tokens, t));
    }
  }
}

TEST_CASE("context: a PipelineEngine without an engine averages over replicas and parts") {
  const auto run = [](const std::string& plan) {
    return on_ranks<Tensors>(parallel::parse_plan(plan).ranks(), [&](int) {
      const parallel::Mesh mesh(parallel::parse_plan(plan), dist::world());
      const auto [layers, loss_of] = pipeline::layers_of(make_gpt(mesh));
      pipeline::PipelineEngine e(layers, {.stages = mesh.plan().pp, .micro_batches = 4 / mesh.plan().dp, .mesh = &mesh},
                                 loss_of);
      const double loss = e.train_batch([&](int64_t micro) {
        const Tensor tokens = sequence::slice(subject.sample(0, micro).inputs[0], 1, mesh.plan().cp, mesh.at().cp,
                                              sequence::TokenOrder::zigzag);
        return pipeline::Sample{{tokens}, {tokens}};
      });
      return Tensors{
          {"embedding", mesh.at().pp == 0 ? e.module().parameters()[0].grad().clone() : Tensor::from({0.}, {1})},
          {"report", Tensor::from({loss, e.clip_grad_norm(0.1)}, {2})}};
    })[0];
  };
  const Tensors one = run("dp1");
  for (const char* plan : {"cp2", "pp2+cp2", "dp2+pp2+cp2"}) CHECK_MESSAGE(distance(run(plan), one) < 1e-12, plan);
}

TEST_CASE("context: the engine's data loader, and rejected settings") {
  on_ranks(4, [](int rank) {
    const parallel::Mesh mesh(parallel::parse_plan("dp2+cp2"), dist::world());
    NetEngine n({.optimizer = sgd_of(0.3),
                 .training_data = data::share(samples()),
                 .config = config_of(0, 2),
                 .mesh = &mesh,
                 .log = quiet});
    auto& e = n.e;
    CHECK(e.train_batch_size() == 8);
    CHECK(e.micro_batch() == rank / 2 * 2);
    const Tensor mine = (*e.training_dataloader()->begin()).input, all = empty({4, mine.numel()});
    dist::world().all_gather(all, mine.reshape({-1}));
    CHECK((equal(all[0], all[1]) && equal(all[2], all[3]) && !equal(all[0], all[2])));
    const parallel::Mesh stages(parallel::parse_plan("pp2+cp2"), dist::world());
    const auto make = [&](nn::Module& model, dist::ProcessGroup* group, const parallel::Mesh& of) {
      engine::EngineBase({std::shared_ptr<void>(), &model},
                         {.optimizer = &e.optimizer(), .config = config_of(0, 2), .group = group, .mesh = &of});
    };
    Mlp layers_unknown;
    CHECK_ERROR(make(layers_unknown, &dist::world(), mesh), "expected a group or a mesh, got both");
    CHECK_ERROR(make(layers_unknown, nullptr, stages), "2 stages need 2 layers, the model has 1");
    CHECK_ERROR(make(*make_gpt(mesh), nullptr, stages),
                "expected a function that makes the optimizer of this rank's part, as pp2+cp2 cuts");
    CHECK_ERROR(e.train_batch(), "training_data gives whole sequences, and dp2+cp2 needs each rank's part");
  });
}
