// Loss scaling, schedules by name, and what a run prints: times and memory.

#include "data/safetensors.h"
#include "tests/engine/util.h"
#include "tests/golden_folder.h"
#include "tests/temp_dir.h"
#include "zero/waits.h"

using namespace lockstep;
using namespace testing;
using data::Json;
using engine::initialize;

namespace {

/// A model with one weight per input, whose loss the test chooses.
struct One : nn::Layer<One> {
  Variable w = parameter({3}, 1);
  Variable forward(const Tensor& x) {
    // In f32, because a loss in f16 times 2^16 would overflow.
    return sum(w.to(f32) * Variable(x.to(f32)));
  }
  void fields(nn::Fields& f) override { f("w", w); }
};

Config f16_config(double init_power, int64_t window, int64_t hysteresis, double least = 1, bool refill = false) {
  Config c = config_of(0, 1, f16);
  c.fp16 = {.enabled = true,
            .auto_cast = true,
            .initial_scale_power = int64_t(init_power),
            .loss_scale_window = window,
            .hysteresis = hysteresis,
            .consecutive_hysteresis = refill,
            .min_loss_scale = least};
  return c;
}

}  // namespace

TEST_CASE("engine: DeepSpeed's loss scales, step by step, overflowing at one rank only") {
  const auto file = data::SafeTensors::open(std::string(golden_folder()) + "/schedules.safetensors");
  const Json cases = data::parse_json(file.metadata().at("cases"), "cases");
  int observed = 0;
  for (const Json& c : cases.as_array()) {
    const std::string name = c.at("name").as_string();
    if (!name.starts_with("ds_scaler_") || c.at("args").find("raise_error_at_min_scale")) continue;
    const auto scales = file.tensor(name + "/scale").to_vector<double>(),
               overflow = file.tensor(name + "/overflow").to_vector<double>();
    const Json& args = c.at("args");
    const Config config = f16_config(std::log2(args.at("init_scale").as_number()), args.at("scale_window").as_int(),
                                     args.at("delayed_shift").as_int(), args.at("min_scale").as_number(),
                                     args.at("consecutive_hysteresis").as_bool());
    CAPTURE(name);
    ++observed;
    on_ranks(2, [&](int rank) {
      One net;
      const auto halved = [](int64_t t) { return std::pow(0.5, double(t)); };
      auto [e, o, l, schedule] = initialize(
          net, {.optimizer = sgd_of(1e-3),
                .lr_scheduler = [&](optim::Optimizer& sgd) { return std::make_unique<optim::LambdaLR>(sgd, halved); },
                .config = config,
                .log = quiet});
      int64_t skipped = 0;
      for (size_t k = 0; k + 1 < scales.size(); ++k) {
        CHECK(e.loss_scale() == scales[k]);
        const Tensor before = net.w.tensor().clone();
        // A gradient of 1 / scale overflows at no scale; infinity always does.
        e.backward(e(full({3}, overflow[k] != 0 && rank == int(k % 2) ? INFINITY : 1 / e.loss_scale())));
        e.step();
        skipped += overflow[k] != 0;
        CHECK(e.skipped_steps() == skipped);
        CHECK(e.global_steps() == int64_t(k) + 1);
        CHECK(schedule->last_step() == int64_t(k) + 1 - skipped);
        if (overflow[k] != 0) CHECK(equal(before, net.w.tensor()));
        CHECK(std::isnan(e.get_global_grad_norm()) == (overflow[k] != 0));
      }
      CHECK(e.loss_scale() == scales.back());
    });
    if (const int64_t raised = c.at("raised_at").as_int(); raised >= 0) {
      const std::string error = message([&] {
        on_ranks(2, [&](int rank) {
          One net;
          auto [e, o, l, s] = initialize(net, {.optimizer = sgd_of(1e-3), .config = f16_config(0, 5, 1), .log = quiet});
          e.backward(e(full({3}, rank == 1 ? INFINITY : 1)));
          e.step();
        });
      });
      CHECK(contains(error, "already at its minimum 1"));
      CHECK(contains(error, "first in the gradient of w at rank 1, in step 1"));
    }
  }
  CHECK(observed >= 15);
}

TEST_CASE("engine: a static loss scale stays, and skips") {
  on_ranks(2, [&](int rank) {
    One net;
    Config c = f16_config(16, 2, 1);
    c.fp16.loss_scale = 128;
    std::string said;
    auto [e, o, l, s] = initialize(
        net, {.optimizer = sgd_of(1e-3), .config = c, .log = [&](const std::string& text) { said += text; }});
    for (int k = 0; k < 8; ++k) {
      CHECK(e.loss_scale() == 128);
      e.backward(e(full({3}, k == 2 && rank == 0 ? INFINITY : 0.01)));
      e.step();
    }
    CHECK(e.skipped_steps() == 1);
    if (rank == 0) CHECK(contains(said, "step 3 is skipped: the gradient of w is not finite, first at rank 0"));
  });
}

TEST_CASE("engine: printed lines, and when they appear") {
  std::vector<std::string> said;
  on_ranks(2, [&](int rank) {
    Config c = config_of(2, 1, bf16);
    c.steps_per_print = 2;
    c.wall_clock_breakdown = c.memory_breakdown = c.dump_state = true;
    NetEngine n({.optimizer = optimizer_of<optim::AdamW>(optim::AdamWOptions{.lr = 0.5}),
                 .training_data = data::share(samples()),
                 .config = c,
                 .log = [&, rank](const std::string& text) {
                   CHECK(rank == 0);
                   said.push_back(text);
                 }});
    train_steps(n.e, 5);
  });
  const auto count = [&](const std::string& part) {
    return std::count_if(said.begin(), said.end(), [&](const std::string& text) { return contains(text, part); });
  };
  for (const auto& [part, lines] : {std::pair{"step=2, skipped=0, lr=[0.5], loss=", 1},
                                    {"step=4, skipped=0", 1},
                                    {"step=", 2},
                                    {"time (ms) | fwd: ", 2},
                                    {"| bwd_allreduce: ", 2},
                                    {" | read: 0.00 | write: 0.00 | gather: ", 2},
                                    {" | wait: ", 2},
                                    {"memory of this process after step", 2}})
    CHECK_MESSAGE(count(part) == lines, part);
  CHECK(count("stage") >= 1);
  CHECK(count("train_micro_batch_size_per_gpu") >= 1);  // dump_state prints the configuration
  for (const std::string& text : said) {
    if (!contains(text, "memory of this process")) continue;
    const int64_t psi = make_net()->parameter_count();
    for (const char* row : {"parameter", "gradient", "optimizer", "total"}) CHECK(contains(text, row));
    CHECK(contains(text, std::to_string(2 * psi)));  // parameters, which stage 2 does not partition
    CHECK(contains(text, std::to_string(6 * psi)));  // 12 bytes per parameter, sharded over two ranks
  }
}

TEST_CASE("engine: the time lost to files and to gathers is counted for the rank that waits") {
  const TempDir folder(disk());
  on_ranks(2, [&](int) {
    Config c = config_of(3, 1);
    c.zero_optimization.stage3_param_persistence_threshold = 0;
    c.zero_optimization.offload_optimizer = {.device = zero::Offload::nvme,
                                             .nvme_path = folder.str(),
                                             .buffer_count = 1,
                                             .pipeline_read = false,
                                             .pipeline_write = false};
    NetEngine n({.optimizer = optimizer_of<optim::AdamW>(optim::AdamWOptions{.lr = 0.5}),
                 .config = c,
                 .log = [](const std::string&) {}});
    const zero::Waited before = zero::waited;
    for (int step = 0; step < 3; ++step) n.train_once();
    CHECK(zero::waited.read > before.read);
    CHECK(zero::waited.write > before.write);
    CHECK(zero::waited.gather > before.gather);
  });
}
