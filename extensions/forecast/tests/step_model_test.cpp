// Predictions of a training step: properties that hold for any costs.
#include "extensions/forecast/step_model.h"

#include <chrono>
#include <numeric>

#include "extensions/forecast/tests/util.h"
#include "nn/models/gpt.h"
#include "pipeline/simulate.h"

using namespace testing;
using namespace lockstep;
using namespace lockstep::report;

namespace {

engine::ModelShape model(int64_t layers = 8) {
  return engine::shape_of<nn::GPT>({.vocab = 1000, .context = 128, .layers = layers, .width = 64, .heads = 4});
}

/// Seconds of a micro-batch's forward in a block and in the head, divided among layers by FLOPs; backward takes twice
/// as long.
struct Costs {
  double block = 1e-3, head = 0;
};
constexpr Costs even{}, uneven{.head = 5e-4};  // even: no head, so stages are equal; uneven: a head

StepPrediction predict(TrainingJob job, const Costs& costs = even, const Cluster& cluster = {}) {
  engine::ModelShape& m = job.model;
  double blocks = 0, rest = 0;
  for (const auto& layer : m.list) (layer.repeats ? blocks : rest) += m.flops(layer);
  for (auto& layer : m.list) {
    const double share = layer.repeats ? costs.block * double(m.layers) / blocks : costs.head / rest;
    layer.forward = share * m.flops(layer) / double(job.micro_batch), layer.backward = 2 * layer.forward;
  }
  return predict_step(job, 1e10, cluster);
}

double term(const StepPrediction& p, const std::string& name) {
  for (const Term& t : p.terms)
    if (t.name == name) return t.seconds;
  return 0;
}

double sum(const StepPrediction& p) {
  return std::accumulate(p.terms.begin(), p.terms.end(), 0., [](double all, const Term& t) { return all + t.seconds; });
}

}  // namespace

TEST_CASE("step model: one rank takes the sum of its parts") {
  for (const int micro_batches : {1, 7}) {
    const StepPrediction p =
        predict({.model = model(), .plan = {}, .micro_batch = 2, .micro_batches = micro_batches}, uneven);
    CHECK(p.terms.size() == 2);
    CHECK(term(p, "compute") == doctest::Approx(micro_batches * (8 * 3e-3 + 1.5e-3)));
    const double n = double(model().numel());
    // Bytes per parameter: 2 * 8 to read and write both moments, 8 for the parameter and its gradient.
    CHECK(term(p, "optimizer") == doctest::Approx((2 * 8 * n + 8 * n) / 1e10));
    CHECK(p.step == doctest::Approx(sum(p)));
    CHECK(p.gradient_bytes + p.parameter_bytes + p.tensor_bytes + p.message_bytes == 0);
    CHECK(p.tokens == doctest::Approx(micro_batches * 2 * 128 / p.step));
    CHECK(p.terms[p.bound].name == "compute");
  }
  // Give the layers measured times (here FLOPs over FLOP/s).
  TrainingJob job{.model = model(), .plan = {}, .micro_batch = 4};
  give_seconds(job.model, 1e9);
  const StepPrediction p = predict_step(job, 1e12, {});
  CHECK(term(p, "compute") == doctest::Approx(3 * model().forward_flops() * 4 * 128 / 1e9));
  CHECK(p.flops == doctest::Approx(3 * model().forward_flops() * 4 * 128));
}

TEST_CASE("step model: bytes match lockstep plan") {
  for (const int stage : {0, 1, 2, 3}) {
    for (const int dp : {1, 2, 3, 8, 64}) {
      for (const int passes : {1, 4}) {
        CAPTURE(stage);
        CAPTURE(dp);
        const StepPrediction p = predict(
            {.model = model(), .plan = {.dp = dp, .zero = stage}, .micro_batch = 2, .micro_batches = passes}, even, {});
        const engine::Forecast plan = engine::plan(
            engine::config_from_json(str("{\"train_micro_batch_size_per_gpu\":2,\"gradient_accumulation_steps\":",
                                         passes, ",\"zero_optimization\":{\"stage\":", stage, "}}")),
            model(), dp);
        CHECK(p.gradient_bytes == doctest::Approx(plan.gradient_traffic));
        CHECK(p.parameter_bytes == doctest::Approx(plan.parameter_traffic));
        int64_t max_bytes = 0;
        for (const auto& b : plan.bytes) max_bytes = std::max(max_bytes, b.total());
        CHECK(p.memory.total() == max_bytes);
      }
    }
  }
}

TEST_CASE("step model: pipelines of equal stages idle as the formula says") {
  using pipeline::ScheduleKind;
  for (const ScheduleKind kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::interleaved,
                                  ScheduleKind::zb_h1, ScheduleKind::dualpipe_v}) {
    for (const int p : {2, 4, 8}) {
      for (const int m : {8, 16, 64}) {
        if (kind == ScheduleKind::dualpipe_v && m < 2 * p) continue;
        CAPTURE(pipeline::name_of(kind));
        CAPTURE(p);
        CAPTURE(m);
        const Cluster fast{.network = {{.latency = 0, .bandwidth = 1e300}, {}}};
        const StepPrediction step =
            predict({.model = model(32), .plan = {.pp = p}, .micro_batches = m, .schedule = kind}, even, fast);
        const double full = 32. / p * 1e-3;
        CHECK(step.bubble ==
              doctest::Approx(pipeline::formula({kind, p, m}, {.forward = full, .input = full, .weight = full}).bubble)
                  .epsilon(1e-6));
        CHECK(term(step, "uneven stages") == doctest::Approx(0).epsilon(1e-9));
        CHECK(term(step, "messages") == doctest::Approx(0).epsilon(1e-9));
        const double busy = term(step, "compute"), idle = term(step, "idle (bubble)");
        CHECK(idle / (busy + idle) == doctest::Approx(step.bubble).epsilon(1e-6));
      }
    }
  }
  // Seven blocks on two stages: one has three blocks and an attention, the other an MLP and three blocks. The lighter
  // stage waits for the heavier.
  const TrainingJob job{.model = model(7), .plan = {.pp = 2}, .micro_batches = 4};
  const StepPrediction one = predict(job, even, {});
  const double attention = 4 * 64 * 64 + 129 * 64, mlp = 8 * 64 * 64,
               uneven = 0.5 * (mlp - attention) / (mlp + attention) * 3e-3;
  CHECK(term(one, "uneven stages") == doctest::Approx(4 * uneven));
  CHECK(term(one, "idle (bubble)") < (3.5 * 3e-3 + uneven) * (1 - 1e-6));
  CHECK(term(one, "idle (bubble)") >= (3.5 * 3e-3 - uneven) * (1 - 1e-6));
}

TEST_CASE(
    "step model: sums of slices go beside the next chunk's product, and in backward beside the weight's gradient") {
  // Seconds of a block's products, from their multiply-adds per token. Each of two ranks computes half of a product.
  const double attention = 4 * 64 * 64 + 129 * 64, mlp = 8 * 64 * 64, each = 1e-3 / 2 / (attention + mlp),
               output = 64 * 64 * each, down = 4 * 64 * 64 * each, queries = 3 * output, up = down;
  for (const double sum : {1e-7, 1e-5, 3e-4, 1e-2}) {
    const Cluster cluster{.network = {{.latency = 0, .bandwidth = 128 * 64 * 4 / sum}, {}}};
    double before = 1;
    for (const int64_t chunks : {1, 2, 8}) {
      for (const bool recompute : {false, true}) {
        CAPTURE(sum);
        CAPTURE(chunks);
        const StepPrediction p = predict(
            {.model = model(), .plan = {.tp = 2}, .micro_batches = 3, .recompute = recompute, .overlap_chunks = chunks},
            even, cluster);
        const auto waits = [&](double product) {
          double done = 0;  // each sum begins when its product is computed and the previous sum is over
          for (int64_t i = 0; i < chunks; ++i)
            done = std::max(done, product * double(i + 1) / double(chunks)) + sum / double(chunks);
          return done - product;
        };
        const double forward = waits(output) + waits(down),
                     backward = std::max(0., sum - queries) + std::max(0., sum - up);
        CHECK(term(p, "tensor parallel") ==
              doctest::Approx(3 * 8 * ((recompute ? 2 : 1) * forward + backward)).epsilon(1e-6));
        if (!recompute) CHECK(std::exchange(before, term(p, "tensor parallel")) >= term(p, "tensor parallel"));
      }
    }
  }
}

TEST_CASE("step model: faster is not slower") {
  for (const char* plan :
       {"dp8", "dp8+zero1", "dp4+zero2", "dp64+zero3", "pp4", "tp4", "dp2+pp2+tp2", "dp16+pp4+tp4+zero1"}) {
    CAPTURE(plan);
    const TrainingJob job{.model = model(), .plan = parallel::parse_plan(plan), .micro_batch = 2, .micro_batches = 8};
    const auto seconds = [](const TrainingJob& j, const dist::Network& network) {
      return predict(j, uneven, {.network = network, .ranks_per_host = 4}).step;
    };
    double before = 0;
    for (const double bandwidth : {1e11, 1e10, 1e9, 1e8, 1e7, 1e5}) {
      const double step = seconds(job, {{.latency = 1e-6, .bandwidth = bandwidth}, {}});
      CHECK(step >= before);
      before = step;
    }
    for (const double latency : {1e-6, 1e-4, 1e-2}) {
      const dist::NetworkLink far{.latency = latency, .bandwidth = 1e9}, near{latency / 10, 1e10};
      const double step = seconds(job, {far, {}});
      CHECK(step >= 0);
      CHECK(seconds(job, {far, near}) <= step * (1 + 1e-12));
    }
    const StepPrediction p = predict(job, uneven, {});
    CHECK(predict(job, {2e-3, 1e-3}, {}).step > p.step);
    TrainingJob apart = job, again = job;
    apart.overlap = false, again.recompute = true;
    CHECK(predict(apart, uneven, {}).step >= p.step);
    CHECK(predict(again, uneven, {}).step > p.step);
    CHECK(p.step == doctest::Approx(sum(p)));
    for (const Term& t : p.terms) CHECK(t.seconds >= 0);
  }
}

TEST_CASE("step model: collectives cost what the schedules cost") {
  const dist::NetworkLink far{.latency = 1e-5, .bandwidth = 1e9}, near{.latency = 1e-6, .bandwidth = 1e10};
  for (const int n : {1, 2, 3, 7, 8, 64}) {
    for (const auto collective :
         {dist::Collective::all_reduce, dist::Collective::reduce_scatter, dist::Collective::all_gather}) {
      const double seconds = collective_seconds(collective, n, 1, 6.4e7, {.network = {far, {}}, .ranks_per_host = 1});
      const auto formula = dist::formula(dist::Algorithm::ring, {collective, n}, 64'000'000, far);
      CHECK(seconds == doctest::Approx(n == 1 ? 0 : formula->seconds));
    }
  }
  for (const auto& [hosts, each] : {std::pair(2, 4), std::pair(4, 2), std::pair(8, 8)}) {
    std::vector<int> where;
    for (int i = 0; i < hosts * each; ++i) where.push_back(i / each);
    const dist::Network network{far, near};
    const double simulated =
        dist::simulate(dist::parse_algorithm("hierarchical"),
                       {dist::Collective::all_reduce, hosts * each, 0, false, where}, 16'000'000, 4, network)
            .seconds;
    CHECK(collective_seconds(dist::Collective::all_reduce, hosts * each, 1, 6.4e7,
                             {.network = network, .ranks_per_host = each}) == doctest::Approx(simulated).epsilon(0.02));
    // If the ranks of a group are on different hosts, only the slow link counts.
    CHECK(collective_seconds(dist::Collective::all_reduce, hosts, each, 6.4e7,
                             {.network = network, .ranks_per_host = each}) ==
          doctest::Approx(
              dist::formula(dist::Algorithm::ring, {dist::Collective::all_reduce, hosts}, 64'000'000, far)->seconds));
  }
}

TEST_CASE("step model: thousands of ranks") {
  const auto start = std::chrono::steady_clock::now();
  const auto large =
      engine::shape_of<nn::GPT>({.vocab = 50257, .context = 2048, .layers = 96, .width = 12288, .heads = 96});
  TrainingJob job{.model = large,
                  .plan = parallel::parse_plan("dp64+pp8+tp8+zero1"),
                  .micro_batches = 32,
                  .dtype = bf16,
                  .recompute = true};
  give_seconds(job.model, 150e12);
  const StepPrediction p =
      predict_step(job, 1.5e12, {.network = {{5e-6, 25e9}, dist::NetworkLink{2e-6, 300e9}}, .ranks_per_host = 8});
  CHECK(job.plan.ranks() == 4096);
  CHECK(p.terms[p.bound].name == "compute");
  CHECK(p.step > 3 * large.forward_flops() * 32 * 2048 / 64 / 150e12 * 64 / 64);
  // 175 billion parameters over 64 ranks: 2 bytes each, and the same for gradients.
  CHECK(double(p.memory.parameters) == doctest::Approx(2. * double(large.numel()) / 64).epsilon(0.2));
  // A generous limit, for loaded machines and sanitizers.
  CHECK(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < 60);
}

TEST_CASE("step model: impossible settings are rejected") {
  const struct {
    const char* plan;
    TrainingJob job;
    const char* error;
  } rows[] = {{"pp21", {.model = model(), .micro_batches = 4}, "21 stages need 21 layers, the model has 20"},
              {"tp3", {.model = model()}, "tp3 does not divide the 64 columns of the model (width)"},
              {"pp2+zero2",
               {.model = model()},
               "zero2 shards gradients after every micro-batch, but a pipeline sums all micro-batches first"},
              {"dp2", {.model = model(), .micro_batches = 0}, "expected 1 micro-batch or more"},
              {"dp2+cp2", {.model = model()}, "not modelled; leave them out"}};
  for (const auto& row : rows) {
    TrainingJob job = row.job;
    job.plan = parallel::parse_plan(row.plan);
    CHECK_ERROR(predict(job, even, {}), row.error);
  }
  engine::ModelShape some = model();
  CHECK_ERROR(give_seconds(some, 0), "expected a speed of more than 0 FLOP/s");
  CHECK_ERROR(predict_step({.model = model(), .plan = {}}, 0, {}), "to be more than 0 bytes/s");
  CHECK_ERROR(measure_run({}, some, 1, some), "whose settings are in them; found none");
  CHECK_ERROR(link_of_traces({}), "expected all-reduces of two sizes");
}

TEST_CASE("step model: costs of this machine, and of a trace") {
  const auto tiny = engine::shape_of<nn::GPT>({.vocab = 64, .context = 16, .layers = 2, .width = 16, .heads = 2});
  for (const int ranks : {1, 2}) {
    engine::ModelShape measured = tiny;
    measure_gpt(measured, 2, ranks);
    CHECK(measure_memory(ranks) > 0);
    for (const auto& layer : measured.list) {
      CHECK(layer.forward > 0);
      CHECK(layer.backward > 0);
    }
  }
  const TempDir folder;
  for (int rank = 0; rank < 2; ++rank) {
    const trace::Track group("group world", rank);
    traced(folder, rank, 2, [&] {
      trace::note(
          "settings",
          "{\"program\":\"gpt\",\"layers\":2,\"width\":16,\"heads\":2,\"context\":16,\"vocab\":64,\"batch\":2}");
      trace::note("parallel", "{\"ranks\":2,\"zero\":-1}");
      for (int i = 0; i < 5; ++i) {
        put("step", Category::step, i, i + 0.9, {{"step", i}});
        put("forward 0", Category::forward, i, i + 0.2);
        put("backward", Category::backward, i + 0.2, i + 0.7);
        put("wait for a collective", Category::wait, i + 0.5, i + 0.6);
        put("AdamW", Category::optimizer, i + 0.7, i + 0.8);
        for (const double bytes : {1e3, 1e6})
          put("all_reduce", Category::collective, i + 0.3, i + 0.3 + 2 * 1e-3 + bytes / 1e9 + 0.01 * rank,
              {{"bytes", bytes}, {"sent", bytes}, {"ranks", 2}}, &group);
      }
    });
  }
  const RunFiles run = read_run(folder.path);
  engine::ModelShape scaled = tiny;
  const double memory = measure_run(run, tiny, run.settings.at("batch").as_int(), scaled);
  double forward = 0, backward = 0;
  for (const auto& layer : scaled.list) forward += 2 * layer.forward, backward += 2 * layer.backward;
  CHECK(forward == doctest::Approx(0.2));
  CHECK(backward == doctest::Approx(0.4));  // without the time spent waiting
  CHECK(memory == doctest::Approx(double(tiny.numel()) * 24 / 0.1));
  const dist::NetworkLink link = link_of_traces(run.traces);
  CHECK(link.latency == doctest::Approx(1e-3).epsilon(1e-3));
  CHECK(link.bandwidth == doctest::Approx(1e9).epsilon(1e-3));
}
