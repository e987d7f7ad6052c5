// Loss scaling, schedules by name, and what a run reports: monitors, times, memory, collectives, flops.
#include <cstring>
#include <fstream>
#include <sstream>

#include "data/safetensors.h"
#include "dist/fingerprint.h"
#include "engine/reports.h"
#include "tests/engine/util.h"
#include "tests/file_limit.h"
#include "tests/golden_folder.h"

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

std::string read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

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
  int seen = 0;
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
    ++seen;
    on_ranks<int>(2, [&](int rank) {
      One net;
      optim::SGD optimizer(net.parameters(), {.lr = 1e-3});
      optim::StepLR schedule(optimizer, {.step_size = 1, .gamma = 0.5});
      auto [e, o, l, s] = initialize(
          net,
          {.optimizer = &optimizer, .lr_scheduler = &schedule, .config = config, .log = [](const std::string&) {}});
      int64_t skipped = 0;
      std::string error;
      for (size_t k = 0; k + 1 < scales.size(); ++k) {
        CHECK(e.loss_scale() == scales[k]);
        const Tensor before = net.w.tensor().clone();
        // A gradient of 1 / scale overflows at no scale; infinity always does.
        e.backward(e(full({3}, overflow[k] != 0 && rank == int(k % 2) ? INFINITY : 1 / e.loss_scale())));
        e.step();
        skipped += overflow[k] != 0;
        CHECK(e.skipped_steps() == skipped);
        CHECK(e.global_steps() == int64_t(k) + 1);
        CHECK(schedule.last_step() == int64_t(k) + 1 - skipped);
        if (overflow[k] != 0) CHECK(equal(before, net.w.tensor()));
        CHECK(std::isnan(e.get_global_grad_norm()) == (overflow[k] != 0));
      }
      CHECK(e.loss_scale() == scales.back());
      return 0;
    });
    if (const int64_t raised = c.at("raised_at").as_int(); raised >= 0) {
      const std::string error = message([&] {
        on_ranks<int>(2, [&](int rank) {
          One net;
          optim::SGD optimizer(net.parameters(), {.lr = 1e-3});
          auto [e, o, l, s] = initialize(
              net, {.optimizer = &optimizer, .config = f16_config(0, 5, 1), .log = [](const std::string&) {}});
          e.backward(e(full({3}, rank == 1 ? INFINITY : 1)));
          e.step();
          return 0;
        });
      });
      CHECK(contains(error, "already at its minimum 1"));
      CHECK(contains(error, "first in the gradient of w at rank 1, in step 1"));
    }
  }
  CHECK(seen >= 15);
}

TEST_CASE("engine: a static loss scale stays, and skips") {
  on_ranks<int>(2, [&](int rank) {
    One net;
    optim::SGD optimizer(net.parameters(), {.lr = 1e-3});
    Config c = f16_config(16, 2, 1);
    c.fp16.loss_scale = 128;
    std::vector<std::string> said;
    auto [e, o, l, s] = initialize(
        net, {.optimizer = &optimizer, .config = c, .log = [&](const std::string& text) { said.push_back(text); }});
    for (int k = 0; k < 8; ++k) {
      CHECK(e.loss_scale() == 128);
      e.backward(e(full({3}, k == 2 && rank == 0 ? INFINITY : 0.01)));
      e.step();
    }
    CHECK(e.skipped_steps() == 1);
    if (rank == 0)
      CHECK(std::any_of(said.begin(), said.end(), [](const std::string& text) {
        return contains(text, "step 3 is skipped: the gradient of w is not finite, first at rank 0");
      }));
    return 0;
  });
}

TEST_CASE("engine: schedules by name, against PyTorch's and DeepSpeed's own") {
  const auto file = data::SafeTensors::open(std::string(golden_folder()) + "/schedules.safetensors");
  const Json cases = data::parse_json(file.metadata().at("cases"), "cases");
  int seen = 0;
  for (const Json& c : cases.as_array()) {
    const Json* type = c.find("schedule");
    const Json* exact = c.find("lr_exact");
    if (!type || !exact) continue;
    const std::string name = c.at("name").as_string();
    CAPTURE(name);
    ++seen;
    on_ranks<int>(1, [&](int) {
      One net;
      Mlp other;
      std::vector<optim::SGD::Group> groups;
      std::vector<std::vector<Variable>> members{{net.w}, other.parameters()};
      const auto& bases = c.at("base_lrs").as_array();
      for (size_t g = 0; g < bases.size(); ++g)
        groups.push_back({members[g], {.lr = bases[g].as_number(), .momentum = 0.9}});
      struct Both : nn::Layer<Both> {
        One* one;
        Mlp* mlp;
        bool two;
        Variable forward(const Tensor& x) { return two ? (*one)(x) + sum((*mlp)(ones({1, 6}))) * 1e-9 : (*one)(x); }
        void fields(nn::Fields& f) override {
          f("one", *one);
          if (two) f("mlp", *mlp);
        }
      } both;
      both.one = &net;
      both.mlp = &other;
      both.two = bases.size() > 1;
      optim::SGD optimizer(groups);
      Config config = config_of(0, 1);
      config.scheduler = {type->as_string(), c.at("args")};
      auto [e, o, l, s] =
          initialize(both, {.optimizer = &optimizer, .config = config, .log = [](const std::string&) {}});
      const bool plateau = type->as_string() == "ReduceLROnPlateau";
      const std::vector<double> metric =
          plateau ? file.tensor(name + "/metric").to_vector<double>() : std::vector<double>{};
      for (size_t k = 0; k < exact->as_array().size(); ++k) {
        if (k > 0) {
          e.backward(e(full({3}, 1e-6)));
          if (plateau && k == 1)
            CHECK(contains(message([&] { e.step(); }), "expected step(metric) after the step's last micro-batch"));
          plateau ? e.step(metric[k - 1]) : e.step();
        }
        for (size_t g = 0; g < bases.size(); ++g) {
          const double want = exact->as_array()[k].as_array()[g].as_number();
          CHECK(std::abs(e.get_lr()[g] - want) <= 1e-9 * std::max(std::abs(want), 1e-3));
        }
      }
      return 0;
    });
  }
  CHECK(seen >= 25);
}

namespace {

/// The masked CRC-32C of TensorBoard's files.
uint32_t masked_crc32c(std::string_view bytes) {
  const uint32_t crc = dist::crc32c(bytes.data(), bytes.size());
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

std::unique_ptr<engine::Monitor> csv_monitor(const std::string& folder, const std::string& job,
                                             const std::function<void(const std::string&)>& warn) {
  const engine::Config config{.csv_monitor = {.enabled = true, .output_path = folder, .job_name = job}};
  return std::move(engine::make_monitors(config, warn).at(0));
}

/// An independent reader of event files, written from the format's description.
struct Record {
  double wall = 0;
  int64_t step = 0;
  std::string version, tag;
  float value = 0;
};
struct Cursor {
  std::string_view in;
  template <class T> T fixed() {
    REQUIRE(in.size() >= sizeof(T));
    T v;
    std::memcpy(&v, in.data(), sizeof v);
    in.remove_prefix(sizeof v);
    return v;
  }
  uint64_t varint() {
    uint64_t v = 0;
    for (int shift = 0;; shift += 7) {
      const uint8_t b = fixed<uint8_t>();
      v |= uint64_t(b & 127) << shift;
      if (b < 128) return v;
    }
  }
  std::string_view bytes() {
    const size_t n = size_t(varint());
    REQUIRE(in.size() >= n);
    const auto got = in.substr(0, n);
    in.remove_prefix(n);
    return got;
  }
};
std::vector<Record> read_events(const std::string& file) {
  std::vector<Record> all;
  for (Cursor c{file}; !c.in.empty();) {
    const std::string_view length = c.in.substr(0, 8);
    const auto n = c.fixed<uint64_t>();
    CHECK(c.fixed<uint32_t>() == masked_crc32c(length));
    REQUIRE(c.in.size() >= n + 4);
    const std::string_view body = c.in.substr(0, n);
    c.in.remove_prefix(n);
    CHECK(c.fixed<uint32_t>() == masked_crc32c(body));
    Record r;
    for (Cursor e{body}; !e.in.empty();) {
      switch (e.varint()) {
        case 1 << 3 | 1: r.wall = e.fixed<double>(); break;
        case 2 << 3 | 0: r.step = int64_t(e.varint()); break;
        case 3 << 3 | 2: r.version = e.bytes(); break;
        case 5 << 3 | 2: {
          Cursor summary{e.bytes()};
          REQUIRE(summary.varint() == (1 << 3 | 2));
          for (Cursor v{summary.bytes()}; !v.in.empty();) {
            const uint64_t key = v.varint();
            if (key == (1 << 3 | 2)) r.tag = v.bytes();
            else if (key == (2 << 3 | 5)) r.value = v.fixed<float>();
            else FAIL("unknown field of a value");
          }
          break;
        }
        default: FAIL("unknown field of an event");
      }
    }
    all.push_back(r);
  }
  return all;
}

}  // namespace

TEST_CASE("engine: TensorBoard and CSV, by rank 0, at every boundary, with samples as x") {
  const TempDir folder;
  std::vector<double> losses, rates;
  on_ranks<int>(2, [&](int rank) {
    const auto net = make_net();
    optim::SGD optimizer(net->parameters(), {.lr = 0.5});
    optim::StepLR schedule(optimizer, {.step_size = 1, .gamma = 0.5});
    Config c = config_of(1, 2, f16);
    c.wall_clock_breakdown = true;
    c.steps_per_print = 100;
    c.tensorboard = {.enabled = true, .output_path = folder / "tb", .job_name = "job"};
    c.csv_monitor = {.enabled = true, .output_path = folder / "csv", .job_name = "job"};
    auto [e, o, loader, s] = initialize(*net, {.optimizer = &optimizer,
                                               .training_data = data::share(samples()),
                                               .lr_scheduler = &schedule,
                                               .config = c,
                                               .log = [](const std::string&) {}});
    for (int k = 0; k < 3; ++k) {
      train_steps(e, 1);
      if (rank == 0) losses.push_back(e.train_loss()), rates.push_back(e.get_lr()[0]);
      // While the engine lives, everything is already in the file, as after a kill.
      if (rank == 0)
        CHECK(read_events(read(std::filesystem::directory_iterator(folder / "tb/job")->path())).size() ==
              size_t(1 + (k + 1) * 8));
    }
    return 0;
  });
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "tb/job")) {
    ++files;
    CHECK(entry.path().filename().string().starts_with("events.out.tfevents."));
    const auto records = read_events(read(entry.path()));
    CHECK(records.at(0).version == "brain.Event:2");
    std::map<std::string, std::vector<Record>> by_tag;
    for (const Record& r : records)
      if (!r.tag.empty()) by_tag[r.tag].push_back(r);
    for (const char* tag :
         {"train_loss", "lr", "loss_scale", "elapsed_time_ms_forward", "elapsed_time_ms_backward",
          "elapsed_time_ms_backward_inner", "elapsed_time_ms_backward_allreduce", "elapsed_time_ms_step"}) {
      const auto& list = by_tag[std::string("Train/Samples/") + tag];
      CAPTURE(tag);
      REQUIRE(list.size() == 3);
      for (int k = 0; k < 3; ++k) CHECK(list[size_t(k)].step == 8 * (k + 1));
    }
    for (size_t k = 0; k < 3; ++k) {
      CHECK(by_tag["Train/Samples/train_loss"][k].value == float(losses[k]));
      CHECK(by_tag["Train/Samples/lr"][k].value == float(rates[k]));
      CHECK(by_tag["Train/Samples/loss_scale"][k].value == 256);
    }
    const auto at = [&](const char* tag) {
      return by_tag[std::string("Train/Samples/elapsed_time_ms_") + tag][1].value;
    };
    CHECK(at("forward") > 0);
    CHECK(at("step") > 0);
    CHECK(at("backward") == doctest::Approx(at("backward_inner") + at("backward_allreduce")).epsilon(1e-4));
  }
  CHECK(files == 1);
  std::ostringstream expected;
  expected.imbue(std::locale::classic());
  expected.precision(17);
  expected << "step,lr\n";
  for (size_t k = 0; k < 3; ++k) expected << 8 * (k + 1) << "," << rates[k] << "\n";
  CHECK(read(folder / "csv/job/Train_Samples_lr.csv") == expected.str());
  csv_monitor(folder / "csv", "job", [](const std::string&) {
  })->write({{"Train/Samples/lr", 0.5, 32}});  // a resumed run appends
  CHECK(read(folder / "csv/job/Train_Samples_lr.csv") == expected.str() + "32,0.5\n");
  std::ofstream(folder / "file") << "x";
  CHECK(contains(message([&] { csv_monitor(folder / "file", "below", {}); }), "cannot make this folder"));
}

TEST_CASE("engine: a full disk ends the curves, not the run") {
  const TempDir folder;
  constexpr rlim_t most = 1 << 20;  // limit of a file's bytes; the curve of lr is that long, so writing to it fails
  folder.write("Train_Samples_lr.csv", std::string(most, '\n'));
  int warnings = 0;
  const auto monitor = csv_monitor(
      folder.str(), "", [&](const std::string& text) { warnings += contains(text, "writing failed: File too large"); });
  {
    const testing::FileLimit full(most);
    for (int i = 0; i < 3; ++i) monitor->write({{"Train/Samples/lr", 1, i}, {"Train/Samples/train_loss", 2, i}});
  }
  CHECK(warnings == 1);
  CHECK(read(folder / "Train_Samples_train_loss.csv") == "step,train_loss\n0,2\n1,2\n2,2\n");
}

TEST_CASE("engine: printed lines, and when they appear") {
  std::vector<std::string> said;
  on_ranks<int>(2, [&](int rank) {
    const auto net = make_net();
    optim::AdamW optimizer(net->parameters(), {.lr = 0.5});
    Config c = config_of(2, 1, bf16);
    c.steps_per_print = 2;
    c.wall_clock_breakdown = c.memory_breakdown = c.dump_state = true;
    auto [e, o, loader, s] = initialize(*net, {.optimizer = &optimizer,
                                               .training_data = data::share(samples()),
                                               .config = c,
                                               .log = [&, rank](const std::string& text) {
                                                 CHECK(rank == 0);
                                                 said.push_back(text);
                                               }});
    train_steps(e, 5);
    return 0;
  });
  const auto count = [&](const std::string& part) {
    return std::count_if(said.begin(), said.end(), [&](const std::string& text) { return contains(text, part); });
  };
  CHECK(count("step=2, skipped=0, lr=[0.5], loss=") == 1);
  CHECK(count("step=4, skipped=0") == 1);
  CHECK(count("step=") == 2);
  CHECK(count("time (ms) | fwd: ") == 2);
  CHECK(count("| bwd_allreduce: ") == 2);
  CHECK(count("memory of this process after step") == 2);
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

TEST_CASE("engine: the comms_logger counts the bytes that ZeRO sends") {
  CHECK(engine::CommsLogger::bus_factor("all_reduce", 4) == 1.5);
  CHECK(engine::CommsLogger::bus_factor("all_gather", 4) == 0.75);
  CHECK(engine::CommsLogger::bus_factor("reduce_scatter", 4) == 0.75);
  CHECK(engine::CommsLogger::bus_factor("broadcast", 4) == 1);
  for (const bool all : {true, false}) {
    const auto texts = on_ranks<std::string>(2, [&](int) {
      const auto net = make_net();
      optim::SGD optimizer(net->parameters(), {.lr = 0.5});
      Config c = config_of(2, 1);
      c.comms_logger = {.enabled = true,
                        .prof_all = all,
                        .prof_ops = all ? std::vector<std::string>{} : std::vector<std::string>{"reduce_scatter"}};
      auto [e, o, loader, s] = initialize(*net, {.optimizer = &optimizer,
                                                 .training_data = data::share(samples()),
                                                 .config = c,
                                                 .log = [](const std::string&) {}});
      train_steps(e, 3);
      return e.comms_summary();
    });
    std::istringstream in(texts[0]);
    std::string line, op;
    std::getline(in, line);
    CHECK(contains(line, "busbw (GB/s)"));
    std::map<std::string, std::pair<int64_t, int64_t>> calls;  // count, and bytes of the largest call
    while (std::getline(in, line)) {
      std::istringstream row(line);
      row.imbue(std::locale::classic());
      int64_t bytes = 0, times = 0;
      double total = 0, mean = 0, algorithm = 0, bus = 0, waited = 0;
      CHECK(bool(row >> op >> bytes >> times >> total >> mean >> algorithm >> bus >> waited));
      CHECK(total >= 0);
      CHECK(waited >= 0);
      CHECK(bus == doctest::Approx(algorithm * engine::CommsLogger::bus_factor(op, 2)).epsilon(0.1));
      auto& seen = calls[op];
      if (bytes > seen.second) seen = {times, bytes};
    }
    CHECK(calls["reduce_scatter"].first == 3);
    CHECK(calls["reduce_scatter"].second >= make_net()->parameter_count() * 4);
    CHECK((calls.count("all_gather") > 0) == all);
  }
  on_ranks<int>(1, [&](int) {
    const auto net = make_net();
    optim::SGD optimizer(net->parameters(), {.lr = 0.5});
    auto e = initialize(*net, optimizer, config_of(0, 1));
    CHECK(contains(message([&] { e.comms_summary(); }), "expected comms_logger.enabled"));
    return 0;
  });
}

TEST_CASE("engine: flops of an MLP, a GPT and a convolution equal the closed form") {
  const auto profile = [](nn::Module& net, const std::function<void()>& forward) {
    engine::FlopsProfiler p(net, {.enabled = true});
    p.start();
    forward();
    p.stop(1);
    return p.modules();
  };
  const auto net = make_net();
  auto rows = profile(*net, [&] { (*net)(ones({5, 6})); });
  CHECK(rows[0].macs == 5 * (6 * 130 + 130 * 97 + 97 * 3));
  for (const auto& row : rows) {
    if (row.name == "b") CHECK(row.macs == 5 * 130 * 97);
    if (row.name == "norm") CHECK(row.macs == 0);
    if (row.name == "b") CHECK(row.parameters == 130 * 97 + 97);
  }
  constexpr int64_t B = 2, T = 16, C = 32, L = 3, V = 40;
  nn::GPT gpt({.vocab = V, .context = T, .layers = L, .width = C, .heads = 4});
  rows = profile(gpt, [&] { gpt(randint(0, V, {B, T})); });
  const int64_t block = 12 * C * C * T * B + 2 * B * C * T * (T + 1) / 2;
  CHECK(rows[0].macs == L * block + B * T * C * V);
  CHECK(rows[0].parameters == gpt.parameter_count());
  int blocks = 0;
  for (const auto& row : rows) {
    if (row.kind != "TransformerBlock") continue;
    CHECK(row.macs == block);
    ++blocks;
  }
  CHECK(blocks == L);
  nn::Conv2d conv({.in = 4, .out = 6, .kernel = {3, 3}});
  rows = profile(conv, [&] { conv(ones({2, 4, 10, 9})); });
  CHECK(rows[0].macs == 2 * 6 * 8 * 7 * 4 * 9);
}

TEST_CASE("engine: the flops_profiler reports one step, once") {
  const TempDir folder;
  std::vector<std::string> said;
  for (const bool to_file : {false, true}) {
    on_ranks<int>(2, [&](int) {
      const auto net = make_net();
      optim::SGD optimizer(net->parameters(), {.lr = 0.5});
      Config c = config_of(3, 2);
      c.flops_profiler = {.enabled = true, .profile_step = 2, .top_modules = 2};
      if (to_file) c.flops_profiler.output_file = folder / "flops.txt";
      auto [e, o, loader, s] = initialize(*net, {.optimizer = &optimizer,
                                                 .training_data = data::share(samples()),
                                                 .config = c,
                                                 .log = [&](const std::string& text) { said.push_back(text); }});
      train_steps(e, 4);
      return 0;
    });
    const std::string text = to_file ? read(folder / "flops.txt") : said.empty() ? "" : said[0];
    CHECK(said.size() == 1);
    CHECK(contains(text, "flops profiler: Net, one micro-batch at rank 0, step 2"));
    CHECK(contains(text, "fwd MACs                        27.36 KMACs") ==
          (2 * (6 * 130 + 130 * 97 + 97 * 3) == 27362));
    CHECK(contains(text, "depth 1: params {Linear: "));
    CHECK(contains(text, "(b) Linear: 12.71 K "));
    CHECK(contains(text, "bwd latency"));
    CHECK(contains(text, "[in 130, out 97]"));
  }
}
