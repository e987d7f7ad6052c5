// The reports of a run: curves, collectives, flops.
#include <cstring>
#include <locale>
#include <sstream>

#include "dist/fingerprint.h"
#include "engine/check_plan.h"
#include "extensions/deepspeed/reports.h"
#include "tests/engine/util.h"
#include "tests/file_limit.h"

using namespace lockstep;
using namespace testing;
using engine::initialize;

namespace {

/// The masked CRC-32C of TensorBoard's files.
uint32_t masked_crc32c(std::string_view bytes) {
  const uint32_t crc = dist::crc32c(bytes.data(), bytes.size());
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

std::unique_ptr<engine::Monitor> csv_monitor(const std::string& folder, const std::string& job,
                                             const std::function<void(const std::string&)>& warn) {
  engine::Config config;
  config.section<engine::CsvMonitorConfig>() = {{.enabled = true, .output_path = folder, .job_name = job}};
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
  on_ranks(2, [&](int rank) {
    const auto net = make_net();
    optim::SGD optimizer(net->parameters(), {.lr = 0.5});
    optim::LambdaLR schedule(optimizer, [](int64_t t) { return std::pow(0.5, double(t)); });
    Config c = config_of(1, 2, f16);
    c.wall_clock_breakdown = true;
    c.steps_per_print = 100;
    c.section<engine::TensorBoardConfig>() = {{.enabled = true, .output_path = folder / "tb", .job_name = "job"}};
    c.section<engine::CsvMonitorConfig>() = {{.enabled = true, .output_path = folder / "csv", .job_name = "job"}};
    auto [e, o, loader, s] = initialize(*net, {.optimizer = &optimizer,
                                               .training_data = data::share(samples()),
                                               .lr_scheduler = &schedule,
                                               .config = c,
                                               .log = quiet});
    for (int k = 0; k < 3; ++k) {
      train_steps(e, 1);
      if (rank == 0) losses.push_back(e.train_loss()), rates.push_back(e.get_lr()[0]);
      // While the engine lives, everything is already in the file, as after a kill.
      if (rank == 0)
        CHECK(read_events(folder.read(std::filesystem::directory_iterator(folder / "tb/job")->path())).size() ==
              size_t(1 + (k + 1) * 12));
    }
  });
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "tb/job")) {
    ++files;
    CHECK(entry.path().filename().string().starts_with("events.out.tfevents."));
    const auto records = read_events(folder.read(entry.path()));
    CHECK(records.at(0).version == "brain.Event:2");
    std::map<std::string, std::vector<Record>> by_tag;
    for (const Record& r : records)
      if (!r.tag.empty()) by_tag[r.tag].push_back(r);
    for (const char* tag : {"train_loss", "lr", "loss_scale", "elapsed_time_ms_forward", "elapsed_time_ms_backward",
                            "elapsed_time_ms_backward_inner", "elapsed_time_ms_backward_allreduce",
                            "elapsed_time_ms_step", "elapsed_time_ms_read", "elapsed_time_ms_wait"}) {
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
  CHECK(folder.read("csv/job/Train_Samples_lr.csv") == expected.str());
  csv_monitor(folder / "csv", "job", quiet)->write({{"Train/Samples/lr", 0.5, 32}});  // a resumed run appends
  CHECK(folder.read("csv/job/Train_Samples_lr.csv") == expected.str() + "32,0.5\n");
  CHECK_ERROR(csv_monitor(folder.write("file", "x"), "below", {}), "cannot make this folder");
}

TEST_CASE("engine: monitor() adds points of one's own, at rank 0") {
  const TempDir folder;
  on_ranks(2, [&](int rank) {
    Config c = with_optimizer(config_of(0, 1), "SGD");
    c.section<engine::TensorBoardConfig>() = {{.enabled = true, .output_path = folder.str(), .job_name = "tb"}};
    c.section<engine::CsvMonitorConfig>() = {{.enabled = true, .output_path = folder.str(), .job_name = "csv"}};
    NetTrainer t(c);
    monitor(t.e).write({{"Eval/accuracy", rank == 0 ? 0.5 : 0.25, 64}});
  });
  CHECK(folder.read("csv/Eval_accuracy.csv") == "step,accuracy\n64,0.5\n");
  const auto records = read_events(folder.read(std::filesystem::directory_iterator(folder / "tb")->path()));
  REQUIRE(records.size() == 2);
  CHECK((records[1].tag == "Eval/accuracy" && records[1].value == 0.5f && records[1].step == 64));
  on_ranks(1, [&](int) {
    CHECK_ERROR(monitor(NetTrainer(with_optimizer(config_of(0, 1), "SGD")).e), "expected tensorboard.enabled or");
  });
}

TEST_CASE("engine: a full disk ends the curves, not the run") {
  const TempDir folder;
  constexpr rlim_t limit = 1 << 20;  // the largest size of a file; the curve of lr has it, so writing to it fails
  folder.write("Train_Samples_lr.csv", std::string(limit, '\n'));
  int warnings = 0;
  const auto monitor = csv_monitor(
      folder.str(), "", [&](const std::string& text) { warnings += contains(text, "writing failed: File too large"); });
  {
    const testing::FileLimit full(limit);
    for (int i = 0; i < 3; ++i) monitor->write({{"Train/Samples/lr", 1, i}, {"Train/Samples/train_loss", 2, i}});
  }
  CHECK(warnings == 1);
  CHECK(folder.read("Train_Samples_train_loss.csv") == "step,train_loss\n0,2\n1,2\n2,2\n");
}

TEST_CASE("engine: the comms_logger counts the bytes that ZeRO sends") {
  const std::pair<const char*, double> factors[] = {
      {"all_reduce", 1.5}, {"all_gather", 0.75}, {"reduce_scatter", 0.75}, {"broadcast", 1}};
  for (const auto& [op, factor] : factors) CHECK(engine::CommsLogger::bus_factor(op, 4) == factor);
  for (const bool all : {true, false}) {
    const auto texts = on_ranks<std::string>(2, [&](int) {
      Config c = with_optimizer(config_of(2, 1), "SGD");
      c.section<engine::CommsLoggerConfig>() = {
          .enabled = true,
          .prof_all = all,
          .prof_ops = all ? std::vector<std::string>{} : std::vector<std::string>{"reduce_scatter"}};
      NetTrainer t(c);
      train_steps(t.e, 3);
      return comms_summary(t.e);
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
      auto& observed = calls[op];
      if (bytes > observed.second) observed = {times, bytes};
    }
    CHECK(calls["reduce_scatter"].first == 3);
    CHECK(calls["reduce_scatter"].second >= make_net()->parameter_count() * 4);
    CHECK((calls.count("all_gather") > 0) == all);
  }
  on_ranks(1, [&](int) {
    CHECK_ERROR(comms_summary(NetTrainer(with_optimizer(config_of(0, 1), "SGD")).e), "expected comms_logger.enabled");
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
    if (row.name == "b") CHECK((row.macs == 5 * 130 * 97 && row.parameters == 130 * 97 + 97));
    if (row.name == "norm") CHECK(row.macs == 0);
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

TEST_CASE("engine: the flops_profiler needs a whole model") {
  Config c = config_of(0, 1);
  c.section<engine::FlopsProfilerConfig>().enabled = true;
  CHECK_ERROR(engine::check_plan(c, {.pp = 2}, {.ranks = 2, .layers = 5}), "flops_profiler.enabled");
}

TEST_CASE("engine: the flops_profiler reports one step, once") {
  const TempDir folder;
  for (const bool to_file : {false, true}) {
    const auto said = on_ranks<std::vector<std::string>>(2, [&](int) {
      Config c = with_optimizer(config_of(3, 2), "SGD");
      auto& profiler = c.section<engine::FlopsProfilerConfig>();
      profiler = {.enabled = true, .profile_step = 2, .top_modules = 2};
      if (to_file) profiler.output_file = folder / "flops.txt";
      NetTrainer t(c);
      train_steps(t.e, 4);
      return t.said;
    });
    CHECK(said[0].size() == (to_file ? 0 : 1));
    CHECK(said[1].empty());
    const std::string text = to_file ? folder.read("flops.txt") : said[0].empty() ? "" : said[0][0];
    CHECK(contains(text, "flops profiler: Net, one micro-batch at rank 0, step 2"));
    CHECK(contains(text, "fwd MACs                        27.36 KMACs") ==
          (2 * (6 * 130 + 130 * 97 + 97 * 3) == 27362));
    CHECK(contains(text, "depth 1: params {Linear: "));
    CHECK(contains(text, "(b) Linear: 12.71 K "));
    CHECK(contains(text, "bwd latency"));
    CHECK(contains(text, "[in 130, out 97]"));
  }
}
