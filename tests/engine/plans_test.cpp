// Models trained under every plan must be bit-identical to one process, or nearly its numbers if the plan splits sums.
// So must runs that start from another plan's checkpoint. A row is a model, a plan, a dtype, and other settings.
#include "data/safetensors.h"
#include "parallel/moe/expert_parallel.h"
#include "tests/engine/training.h"

using namespace lockstep;
using namespace testing;

namespace {

using sequence::ContextOptions, sequence::ContextKind, sequence::TokenOrder;
using Change = std::function<void(Config&)>;

const ContextOptions ring{}, contiguous{ContextKind::ring, TokenOrder::contiguous}, ulysses{ContextKind::ulysses};

/// Four experts in every second block of a GPT.
Subject experts_subject(const char* name, const moe::MoeOptions& experts, double dropout = 0) {
  Subject s{.name = name, .loss = loss_of_words};
  s.make = [=](const parallel::Mesh& mesh) {
    manual_seed(3);
    auto model = std::make_shared<nn::GPT>(nn::GPT::Options{
        .vocab = subject_vocab, .context = 6, .layers = 4, .width = 8, .heads = 2, .dropout = dropout});
    std::shared_ptr<dist::ProcessGroup> group;
    if (mesh.plan().ep > 1) group = {std::shared_ptr<void>(), &mesh.ep()};
    moe::add_experts(*model, experts, 2, group);
    return engine::PipelineModule{.model = model};
  };
  s.sample = [](int64_t step, int64_t micro) {
    std::vector<int64_t> tokens;
    for (int64_t i = 0; i < 24; ++i) tokens.push_back((i * i * 3 + step * 5 + micro * 7 + i / 5) % subject_vocab);
    const Tensor all = Tensor::from(tokens, {2, 12});
    return pipeline::Sample{{all.narrow(1, 0, 6).contiguous()}, {all.narrow(1, 1, 6).contiguous()}};
  };
  return s;
}
const moe::MoeOptions exact_experts{.experts = 4,
                                    .top_k = 2,
                                    .drop_tokens = false,
                                    .second_expert_sampling = false,
                                    .balance_coef = 0.05,
                                    .z_coef = 0.01};
const moe::MoeOptions sampled_experts{.experts = 4, .top_k = 2, .noise = moe::Noise::rsample, .balance_coef = 0.05};

const Subject net = net_subject(), blocks = blocks_subject(), gpt = gpt_subject(0), gpt_with_dropout = gpt_subject(0.2),
              experts = experts_subject("experts", exact_experts),
              experts_with_dropout = experts_subject("experts with dropout", exact_experts, 0.1),
              sampled = experts_subject("drawn experts", sampled_experts, 0.1);

/// The same training in one process, for comparison.
Training single_process(Training t) {
  t.plan = "dp1";
  t.recompute = t.empty = false;
  t.bounds = {};
  return t;
}

/// Sets the first loss scale to 2 to this power. Scales above 2^16 overflow.
Change scale_of(int power, int window) {
  return [=](Config& c) {
    c.fp16.initial_scale_power = power;
    c.fp16.loss_scale_window = window;
  };
}

struct Row {
  Subject subject;
  Training training;
};

/// Trains each row, and compares it with the same training in one process.
void check_rows(const std::vector<Row>& rows, const Closeness& near = {}) {
  std::map<std::string, Tensors> full;
  for (const Row& row : rows) {
    const Training one = single_process(row.training);
    Tensors& expected = full[text_of(row.subject, one)];
    if (expected.empty()) expected = train(row.subject, one);
    check_same(expected, train(row.subject, row.training), near, text_of(row.subject, row.training));
  }
}

}  // namespace

TEST_CASE("plans: an engine in one process trains as a loop written by hand") {
  struct By {
    Subject subject;
    DType dtype;
    double clip;
  };
  for (const By& row :
       {By{net, f32, 0}, By{net, f32, 0.05}, By{net, bf16, 0}, By{net, f16, 0}, By{gpt, f32, 0},
        By{gpt_with_dropout, f32, 0}, By{experts, f32, 0}, By{experts_with_dropout, f32, 0}, By{sampled, f32, 0}}) {
    for (const bool loop : {false, true}) {
      if (loop && row.subject.loss) continue;  // these loops compute the loss from whole scores
      const Training t{.dtype = row.dtype, .loop = loop, .clip = row.clip};
      Tensors found = train(row.subject, t);
      if (row.clip == 0) found["report"].view({-1, numbers_of_step}).narrow(1, 1, 1).fill_(-1);
      check_same(train_by_hand(row.subject, t), found, {}, text_of(row.subject, t));
    }
  }
}

TEST_CASE("plans: any replicas, stage of ZeRO, accumulation and dtype are bit-identical to one process") {
  std::vector<Row> rows;
  for (const DType dtype : {f32, bf16, f16})
    for (const int64_t micros : {4, 8})
      for (const int dp : {1, 2, 4})
        for (int stage = 0; stage <= 3; ++stage)
          for (const double clip : {0., 0.05})
            rows.push_back({net,
                            {.plan = str("dp", dp, "+zero", stage),
                             .dtype = dtype,
                             .micros = micros,
                             .loop = true,
                             .clip = clip}});
  check_rows(rows);
}

TEST_CASE(
    "plans: stages under any schedule are bit-identical to one process, with a warm-up and scales that overflow") {
  const auto with = [](const char* schedule, int64_t interval = 0) {
    return [=](Config& c) {
      scale_of(22, 2)(c);
      c.scheduler = {.type = "WarmupLR",
                     .params = data::parse_json(
                         R"({"warmup_max_lr": 0.02, "warmup_num_steps": 8, "warmup_type": "linear"})", "params")};
      c.pipeline.schedule = schedule;
      c.pipeline.activation_checkpoint_interval = interval;
    };
  };
  for (const DType dtype : {f32, f16, bf16}) {
    const Training full{.dtype = dtype, .micros = 8, .steps = 6, .loop = true, .change = with("1f1b")};
    const Tensors one = train(net, full);
    if (dtype == f16) CHECK(one.at("report").data<double>()[numbers_of_step * 6 - 1] > 0);  // some steps were skipped
    for (Training t : std::vector<Training>{{},
                                            {.plan = "pp2"},
                                            {.plan = "pp3", .bounds = {0, 2, 4, 5}},  // the last has no parameters
                                            {.plan = "dp2+pp2+zero1"},
                                            {.plan = "dp4+zero1"},
                                            {.plan = "dp4+zero3"},
                                            {.plan = "dp2+pp3+zero1", .bounds = {0, 2, 4, 5}},
                                            {.plan = "pp4", .change = with("zb-h1")},
                                            {.plan = "dp2+pp2+zero1", .change = with("interleaved", 1)},
                                            {.plan = "pp2", .change = with("dualpipe-v")}}) {
      t.dtype = dtype, t.micros = 8, t.steps = 6;
      if (!t.change) t.change = with("1f1b");
      check_same(one, train(net, t), {}, text_of(net, t));
    }
  }
  std::vector<Row> rows;
  for (const Subject& subject : {gpt_with_dropout, experts_with_dropout, sampled})
    for (const bool again : {false, true})
      for (const char* plan : {"dp1", "pp2", "dp2+pp2+zero1"})
        rows.push_back({subject, {.plan = plan, .recompute = again}});
  for (const char* plan : {"dp4", "dp2+zero2", "dp2+zero3"}) rows.push_back({gpt_with_dropout, {.plan = plan}});
  check_rows(rows);
}

TEST_CASE("plans: blocks computed again, models built empty and other ways of sending have the same bits") {
  const Change all_again = [](Config& c) {
    c.activation_checkpointing = {.enabled = true,
                                  .partition_activations = true,
                                  .cpu_checkpointing = true,
                                  .contiguous_memory_optimization = true,
                                  .number_checkpoints = 2,
                                  .synchronize_checkpoint_boundary = true,
                                  .profile = true};
  };
  for (const std::string stage : {"zero1", "zero3"}) {
    const std::string plan = "dp2+" + stage, expert_plan = "dp2+ep2+" + stage;
    const Tensors kept = train(gpt_with_dropout, {.plan = plan, .loop = true});
    check_same(kept, train(gpt_with_dropout, {.plan = plan, .loop = true, .recompute = true}), {}, plan);
    check_same(kept, train(gpt_with_dropout, {.plan = plan, .loop = true, .change = all_again}), {}, plan);
    const Tensors shared = train(experts, {.plan = expert_plan, .loop = true});
    check_same(shared, train(experts, {.plan = expert_plan, .loop = true, .recompute = true}), {}, expert_plan);
  }
  for (const DType dtype : {f32, bf16})
    check_rows({{net, {.plan = "dp2+zero3", .dtype = dtype, .loop = true, .empty = true}}});

  const Training plain{.plan = "dp2+zero1", .loop = true};
  const Tensors after = train(net, plain);
  const auto sent = [&](const Change& change) {
    Training t = plain;
    t.change = change;
    return train(net, t);
  };
  check_same(after, sent([](Config& c) { c.prescale_gradients = true; }), {}, "divided before the sum");
  check_same(after, sent([](Config& c) { c.gradient_predivide_factor = 8; }), {}, "divided by 8 before the sum");
  check_same(after, sent([](Config& c) { c.gradient_predivide_factor = 3; }), {0.05, 0.05, 0.05}, "divided by 3");
  std::vector<Row> wide;
  for (int stage = 0; stage <= 3; ++stage)
    wide.push_back({net, {.plan = str("dp2+zero", stage), .dtype = bf16, .loop = true, .change = [](Config& c) {
                            c.communication_data_type = "fp32";
                          }}});
  check_rows(wide);
  CHECK(differing(train(net, wide[0].training), train(net, {.plan = "dp2", .dtype = bf16, .loop = true})) != "");
}

TEST_CASE("plans: what shares sequences is near one process, in any mix") {
  std::vector<Row> rows;
  for (int stage = 0; stage <= 3; ++stage)
    for (const auto& [plan, context] : {std::pair{"cp2", ring},
                                        {"cp2", ulysses},
                                        {"dp2+cp2", ring},
                                        {"dp2+cp2", ulysses},
                                        {"cp4", stage % 2 ? contiguous : ulysses}})
      rows.push_back({gpt, {.plan = str(plan, "+zero", stage), .steps = 3, .loop = true, .context = context}});
  const auto by = [](const char* schedule) { return [=](Config& c) { c.pipeline.schedule = schedule; }; };
  for (const auto& [plan, context, schedule] : {std::tuple{"pp2+cp2", ring, "1f1b"},
                                                {"pp2+cp2", ulysses, "gpipe"},
                                                {"cp2+tp2", ring, "1f1b"},
                                                {"cp2+tp2", ulysses, "1f1b"},
                                                {"dp2+cp2+zero1", contiguous, "1f1b"},
                                                {"cp4", ring, "1f1b"},
                                                {"dp2+pp2+cp2+zero1", ring, "1f1b"},
                                                {"pp2+cp2+tp2", ulysses, "1f1b"},
                                                {"pp4+cp2", ring, "zb-h1"}})
    rows.push_back({gpt, {.plan = plan, .steps = 3, .evaluates = true, .context = context, .change = by(schedule)}});
  check_rows(rows, {1e-12, 1e-12, 1e-12});

  // Dropout depends on the part of a sequence, not on stages or replicas.
  for (const ContextOptions& context : {ring, ulysses}) {
    const auto run = [&](const char* plan, bool loop) {
      Tensors model = train(gpt_with_dropout, {.plan = plan, .steps = 3, .loop = loop, .context = context});
      model.erase("report");  // the losses are summed in another order
      return model;
    };
    const Tensors full = run("cp2", true);
    for (const char* plan : {"cp2", "pp2+cp2"}) CHECK_MESSAGE(differing(full, run(plan, false)) == "", plan);
    CHECK(distance(full, run("dp2+cp2", true)) < 1e-12);
    CHECK(distance(full, run("dp1", true)) > 1e-3);
  }
}

TEST_CASE("plans: what shares experts is near one process, in any mix, and skips the same steps") {
  const Closeness near{2e-5, 1e-4, 2e-4};
  std::vector<Row> rows;
  for (const char* plan : {"dp2+ep2", "dp4+ep2", "dp4+ep4", "dp2"})
    for (int stage = 0; stage <= 3; ++stage)
      rows.push_back({experts, {.plan = str(plan, "+zero", stage), .loop = true}});
  for (const std::string plan :
       {"dp2+ep2", "dp2+ep2+zero1", "dp2+pp2+ep2+zero1", "dp4+ep2+zero1", "tp2", "dp2+tp2+ep2", "dp2+tp2+ep2+zero1"}) {
    rows.push_back({experts, {.plan = plan, .recompute = true}});
    rows.push_back({experts, {.plan = plan}});
    if (contains(plan, "pp") || contains(plan, "tp"))
      rows.back().training.change = [](Config& c) { c.pipeline.activation_checkpoint_interval = 2; };
  }
  check_rows(rows, near);
  check_rows({{sampled, {.plan = "tp2"}}}, {1e-3, INFINITY, INFINITY});  // uses the same random numbers
  Tensors low = train(experts, {.plan = "dp2+pp2+ep2", .dtype = f16});
  low["report"].view({-1, numbers_of_step}).narrow(1, 2, 1).fill_(1);  // the loss scale
  check_same(train(experts, {}), low, {1e-2, INFINITY, INFINITY}, "in f16");

  const Training skips{.dtype = f16, .steps = 8, .loop = true, .change = scale_of(24, 1000)};
  const Tensors one = train(experts, skips);
  const double skipped = one.at("report").data<double>()[numbers_of_step * 8 - 1];
  CHECK((skipped > 0 && skipped < 8));
  for (const char* plan : {"dp4+ep2", "dp4+ep2+zero2", "dp4+ep2+zero3"}) {
    Training t = skips;
    t.plan = plan;
    check_same(one, train(experts, t), {1e-2, INFINITY, INFINITY}, text_of(experts, t));
  }
}

TEST_CASE("plans: slices are near one process, in any mix, with scales that overflow") {
  std::vector<Row> rows;
  for (const char* plan : {"tp2", "tp4", "pp2+tp2", "dp2+tp2+zero1", "dp2+pp2+tp2+zero1", "dp2+pp4"})
    rows.push_back({blocks, {.plan = plan, .steps = 6}});
  check_rows(rows, {1e-5, 1e-5, INFINITY});
  const Training half{.dtype = f16, .steps = 6, .change = scale_of(17, 3)};
  const std::vector<double> report = train(blocks, half).at("report").to_vector<double>();
  CHECK(std::find(report.begin(), report.end(), -1) != report.end());  // one step overflowed
  Training t = half;
  t.plan = "dp2+pp2+tp2+zero1";
  check_rows({{blocks, t}}, {2e-2, 2e-2, INFINITY});
}

TEST_CASE("plans: a checkpoint of any plan goes on under any other") {
  struct From {
    Subject subject;
    Training from, to;
    Closeness near = {};
  };
  const Closeness context{1e-12, 1e-12, 1e-12}, sharded{1e-5, 1e-5, INFINITY}, shared{2e-5, 1e-4, 2e-4};
  const auto stages = [](const char* schedule) {
    return [=](Config& c) {
      scale_of(22, 2)(c);
      c.pipeline.schedule = schedule;
    };
  };
  std::vector<From> rows{
      {gpt, {.plan = "pp2+cp2+zero1"}, {.plan = "dp1"}, context},
      {gpt, {.plan = "dp1"}, {.plan = "dp2+pp2+cp2+zero1"}, context},
      {gpt, {.plan = "cp2+tp2", .context = ulysses}, {.plan = "pp2+cp2"}, context},
      {gpt, {.plan = "cp2+zero3", .loop = true}, {.plan = "dp2+zero2", .loop = true}, context},
      {gpt, {.plan = "dp2+cp2+zero1", .loop = true}, {.plan = "dp1", .loop = true}, context},
      {gpt, {.plan = "dp1", .loop = true}, {.plan = "cp4+zero2", .loop = true}, context},
      {blocks, {.plan = "dp2+pp2+tp2+zero1"}, {.plan = "dp1"}, sharded},
      {blocks, {.plan = "pp2"}, {.plan = "tp4"}, sharded},
      {blocks, {.plan = "tp2"}, {.plan = "dp2+pp2+tp2+zero1"}, sharded},
      {blocks, {.plan = "dp2+tp2+zero1"}, {.plan = "pp4"}, sharded},
      {experts, {.plan = "dp2+ep2+zero2", .loop = true}, {.plan = "dp1+zero1", .loop = true}, shared},
      {experts, {.plan = "dp2+ep2+zero2", .loop = true}, {.plan = "dp2+ep2+zero3", .loop = true}, shared},
      {experts, {.plan = "dp2+ep2+zero2", .loop = true}, {.plan = "dp4+ep4", .loop = true}, shared},
      {experts, {.plan = "dp2+ep2+zero2", .loop = true}, {.plan = "dp4+ep2+zero1", .loop = true}, shared},
      {experts, {.plan = "dp1", .loop = true}, {.plan = "dp4+ep2+zero3", .loop = true}, shared},
      {experts, {.plan = "dp1", .loop = true}, {.plan = "dp2+pp2+ep2+zero1"}, shared},
  };
  for (const DType dtype : {f32, f16}) {
    for (From row : std::vector<From>{
             {net, {.plan = "pp2"}, {.plan = "pp4"}},
             {net, {.plan = "dp2+pp2+zero1"}, {.plan = "dp2+zero3", .loop = true}},
             {net, {.plan = "pp3", .bounds = {0, 2, 4, 5}}, {.loop = true}},
             {net, {.plan = "dp2+zero2", .loop = true}, {.plan = "dp2+pp3+zero1", .bounds = {0, 2, 4, 5}}},
             {net, {.loop = true}, {.plan = "pp2", .change = stages("interleaved")}}}) {
      for (Training* t : {&row.from, &row.to}) {
        t->dtype = dtype, t->micros = 8;
        if (!t->change) t->change = stages("1f1b");
      }
      rows.push_back(row);
    }
  }
  std::map<std::string, Tensors> full;
  for (From& row : rows) {
    const std::string where = text_of(row.subject, row.from) + " to " + text_of(row.subject, row.to);
    row.to.steps = 6;
    Training all = single_process(row.to);
    all.context = {};
    if (row.to.change) all.change = stages("1f1b");
    Tensors& expected = full[text_of(row.subject, all)];
    if (expected.empty()) expected = train(row.subject, all);
    const TempDir folder;
    row.from.steps = 3;
    row.from.save = row.to.load = folder.path;
    train(row.subject, row.from);
    check_same(expected, train(row.subject, row.to), row.near, where);
  }
}

TEST_CASE("plans: experts over ranks are exported whole, and lose nothing when the number of ranks changes") {
  const TempDir dir;
  on_ranks(2, [&](int rank) {
    const parallel::Mesh mesh({.dp = 2, .ep = 2}, dist::world());
    engine::EngineBase e(experts.make(mesh),
                         {.optimizer = make_adamw, .config = config_of(2, 2), .mesh = &mesh, .log = quiet});
    e.train_batch([](int64_t micro) { return experts.sample(0, micro); });
    e.save_checkpoint(dir / "run");
    e.wait_for_checkpoint();
    CHECK(e.save_16bit_model(dir / "whole"));
    const auto state = e.full_state();
    if (rank == 0) CHECK(state.optimizer.tensors.size() == 2 * state.model.size());
  });
  const auto loaded = [&](const char* plan) {
    return train(experts, {.plan = plan, .steps = 1, .loop = true, .load = dir / "run"});
  };
  const Tensors two = loaded("dp2+ep2+zero3");
  CHECK(differing(two, loaded("dp4+ep4")) == "");
  const auto file = data::SafeTensors::open(dir / "whole/model.safetensors");
  for (const auto& [name, tensor] : two)
    if (name != "report") CHECK_MESSAGE((file.contains(name) && file.tensor(name).shape() == tensor.shape()), name);
}

TEST_CASE("plans: experts over ranks need a mesh of their plan") {
  const auto make = [](const parallel::Plan& plan, bool with_mesh) {
    dist::spawn(2, [&](int) {
      const parallel::Mesh mesh({.dp = 2, .ep = 2}, dist::world()), other(plan, dist::world());
      Config c = config_of(0, 1);
      c.optimizer.type = "AdamW";
      engine::EngineBase e(experts.make(mesh), {.config = c, .mesh = with_mesh ? &other : nullptr, .log = quiet});
    });
  };
  CHECK_ERROR(make({.dp = 2, .ep = 2}, false),
              "the model's experts are shared by 2 ranks: expected .mesh of a plan with ep2, got none");
  CHECK_ERROR(make({.dp = 2}, true), "expected .mesh of a plan with ep2, got dp2");
  CHECK_ERROR(make({.pp = 2}, true), "expected .mesh of a plan with ep2, got pp2");
}
