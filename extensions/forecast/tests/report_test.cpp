// The figures of a report, from runs whose figures are known, and its HTML page.
#include <sys/stat.h>

#include "extensions/forecast/page.h"
#include "extensions/forecast/run.h"
#include "extensions/forecast/tests/util.h"

using namespace testing;
using namespace lockstep;
using namespace lockstep::report;

namespace {

/// The first HTML tag without its counterpart; "" if all match.
std::string first_mismatch(const std::string& page) {
  std::vector<std::string> open;
  for (size_t at = 0; (at = page.find('<', at)) != page.npos;) {
    const size_t end = page.find('>', at);
    std::string tag = page.substr(at + 1, end - at - 1);
    at = end;
    if (tag.starts_with("!") || tag.starts_with("meta") || tag.ends_with("/")) continue;
    const std::string name = tag.substr(0, tag.find_first_of(" \n"));
    if (!name.starts_with("/")) {
      open.push_back(name);
      if (name == "script" || name == "style") at = page.find("</" + name, at) - 1;
    } else if (open.empty() || open.back() != name.substr(1)) {
      return "</" + name + " in " + (open.empty() ? "nothing" : open.back());
    } else {
      open.pop_back();
    }
  }
  return open.empty() ? "" : "no end of " + open.back();
}

void check_page(const std::string& page) {
  CHECK(first_mismatch(page) == "");
  for (const char* outside : {"http:", "https:", "src=", "@import", "url("})
    CHECK_MESSAGE(!contains(page, outside), outside);
  CHECK(contains(page, "prefers-color-scheme: dark"));
}

}  // namespace

TEST_CASE("report: what main threads wait for in a step; waits inside of others are counted once") {
  const TempDir folder;
  for (int rank = 0; rank < 2; ++rank) {
    traced(folder, rank, 2, [&] {
      for (int i = 0; i < 3; ++i) {
        put("wait for a gather", Category::wait, i + 0.1, i + 0.3 + 0.1 * rank);
        put("wait for a collective", Category::wait, i + 0.15, i + 0.25);
        put("wait for a collective", Category::wait, i + 0.5, i + 0.6);
        if (i > 0) put("wait for a read", Category::wait, i + 0.7, i + 0.75);
        put("evaluate", Category::evaluation, i + 0.8, i + 0.9);
        put("wait for a collective", Category::wait, i + 0.82, i + 0.89);
        put("step " + std::to_string(i), Category::step, i, i + 1, {{"step", i}});
      }
    });
  }
  const Analysis a = analyze(read_run(folder.str()));
  const std::pair<std::string, double> expected[] = {
      {"wait for a gather", 0.25}, {"wait for a collective", 0.1}, {"wait for a read", 0.05}};
  REQUIRE(a.waits.size() == std::size(expected));
  for (size_t i = 0; i < a.waits.size(); ++i) {
    CHECK(a.waits[i].first == expected[i].first);
    CHECK(a.waits[i].second == doctest::Approx(expected[i].second));
  }
}

TEST_CASE("report: an evaluation is a phase of its own, whatever happens in it, also after the last step") {
  const TempDir folder;
  const trace::Track group("group world", 0);
  traced(folder, 0, 1, [&] {
    for (int i = 0; i < 3; ++i) {
      put("forward 0", Category::forward, i + 0.1, i + 0.3);
      put("all_reduce", Category::collective, i + 0.3, i + 0.4, {{"sent", 10}, {"group", "world"}}, &group);
      put("evaluate", Category::evaluation, i + 0.5, i + 0.9);
      put("eval_batches", Category::evaluation, i + 0.5, i + 0.8);
      put("forward 0", Category::pipeline, i + 0.6, i + 0.7);
      put("wait for a collective", Category::wait, i + 0.82, i + 0.85);
      put("all_reduce", Category::collective, i + 0.82, i + 0.85, {{"sent", 90}, {"group", "world"}}, &group);
      put("step " + std::to_string(i), Category::step, i, i + 1, {{"step", i}});
    }
    put("evaluate", Category::evaluation, 3, 3.6);
  });
  const Analysis a = analyze(read_run(folder.str()));
  const auto& seconds = a.split.at(0);
  CHECK(seconds[size_t(StepPhase::evaluation)] == doctest::Approx(0.4));
  CHECK(seconds[size_t(StepPhase::forward)] == doctest::Approx(0.2));
  CHECK(seconds[size_t(StepPhase::communication)] == 0);
  CHECK(seconds[size_t(StepPhase::other)] == doctest::Approx(0.4));
  CHECK(a.evaluations.count == 4);
  CHECK(a.evaluations.seconds == doctest::Approx(1.8));
  CHECK(a.sent == doctest::Approx(10));
  const std::string page = make_page(read_run(folder.str()), a);
  check_page(page);
  CHECK(contains(page, "4 evaluations took 1.8"));
  CHECK(contains(page, "class=\"evaluation\""));
}

TEST_CASE("report: nested spans of time are counted once") {
  const report::TraceEvent outer{Category::backward, "backward", 1, 4, 0, {}},
      wait{Category::wait, "wait", 2, 1, 0, {}}, nothing{Category::other, "a scope", 3.5, 0.5, 0, {}},
      late{Category::optimizer, "AdamW", 6, 5, 0, {}};
  const auto parts = flatten({&outer, &wait, &nothing, &late}, 0, 10);
  const struct {
    StepPhase part;
    double begin, end;
  } expected[] = {{StepPhase::other, 0, 1},    {StepPhase::backward, 1, 2}, {StepPhase::communication, 2, 3},
                  {StepPhase::backward, 3, 5}, {StepPhase::other, 5, 6},    {StepPhase::optimizer, 6, 10}};
  REQUIRE(parts.size() == std::size(expected));
  for (size_t i = 0; i < parts.size(); ++i) {
    CHECK(parts[i].part == expected[i].part);
    CHECK(parts[i].begin == doctest::Approx(expected[i].begin));
    CHECK(parts[i].end == doctest::Approx(expected[i].end));
  }
  CHECK(flatten({}, 0, 1).size() == 1);
}

TEST_CASE("report: the bubble of a pipeline matches its schedule") {
  using pipeline::ScheduleKind;
  const struct {
    pipeline::PipelineRequest request;
    pipeline::StageCosts costs;
  } rows[] = {{{ScheduleKind::one_f_one_b, 4, 8}, {}},
              {{ScheduleKind::one_f_one_b, 1, 3}, {}},
              {{ScheduleKind::gpipe, 3, 5}, {.forward = 1, .input = 2, .weight = 0.5}},
              {{ScheduleKind::interleaved, 4, 8, 2}, {}},
              {{ScheduleKind::zb_h1, 4, 8}, {.forward = 1.5, .input = 1.2, .weight = 1}},
              {{ScheduleKind::dualpipe_v, 2, 6}, {}},
              {{ScheduleKind::one_f_one_b, 7, 2}, {}}};
  for (const auto& row : rows) {
    CAPTURE(pipeline::name_of(row.request.kind));
    const TempDir folder;
    traced_pipeline(folder, row.request, row.costs, 3);
    const RunFiles run = read_run(folder.path);
    const auto figures = measure_pipeline(run.traces);
    REQUIRE(figures);
    const double expected = pipeline::simulate(pipeline::make_schedule(row.request), row.costs).bubble;
    CHECK(figures->measured == doctest::Approx(expected).epsilon(1e-6));
    CHECK(figures->expected == doctest::Approx(pipeline::formula(row.request, row.costs).bubble).epsilon(1e-6));
    CHECK(figures->forward == doctest::Approx(row.costs.forward).epsilon(1e-6));
    CHECK(figures->input + figures->weight == doctest::Approx(row.costs.input + row.costs.weight).epsilon(1e-6));
    const Analysis a = analyze(run);
    CHECK(a.steps.size() == 3);
    CHECK(a.timeline.size() == size_t(row.request.stages));
    const std::string page = make_page(run, a);
    check_page(page);
    CHECK(contains(page, "idle in the pipeline"));
    CHECK(contains(timeline_svg(a, "<t>"), "xmlns"));
  }
}

TEST_CASE("report: a pipeline with a rank missing says so and gives no bubble") {
  const TempDir folder;
  traced_pipeline(folder, {pipeline::ScheduleKind::one_f_one_b, 3, 4}, {}, 2);
  fs::remove(folder / "rank-1.json");
  const RunFiles run = read_run(folder.path);
  REQUIRE(run.warnings.size() == 1);
  const Analysis a = analyze(run);
  CHECK(!a.pipeline);
  const std::string page = make_page(run, a);
  check_page(page);
  CHECK(contains(page, "no trace of rank 1 (of 0 to 2)"));
}

TEST_CASE("report: traffic and memory beside the formulas") {
  constexpr double psi = 1000;
  const struct {
    int zero, ranks, passes;
    double times;
  } rows[] = {{-1, 2, 1, 2}, {0, 4, 3, 2}, {1, 4, 3, 2}, {2, 4, 3, 4}, {3, 4, 2, 6}, {3, 1, 2, 0}};
  for (const auto& row : rows) {
    CAPTURE(row.zero);
    const TempDir folder;
    for (int rank = 0; rank < row.ranks; ++rank) {
      const trace::Track group("group world", rank);
      traced(folder, rank, row.ranks, [&] {
        trace::note("parallel",
                    str("{\"parameters\":", psi, ",\"parameter_bytes\":", 4 * psi, ",\"ranks\":", row.ranks,
                        ",\"micro_batches\":", row.passes, ",\"zero\":", row.zero, ",\"optimizer\":\"AdamW\"}"));
        trace::note("run", "{\"ranks_in_process\":1}");
        for (int step = 0; step < 4; ++step) {
          put("step", Category::step, step, step + 0.9, {{"step", step}});
          put("all_reduce", Category::collective, step + 0.1, step + 0.2,
              {{"bytes", 4000}, {"sent", 100 * (step > 0)}, {"ranks", row.ranks}, {"group", "world"}}, &group);
          put("all_reduce", Category::collective, step + 0.3, step + 0.5,
              {{"bytes", 400}, {"sent", 20}, {"ranks", row.ranks}, {"group", "world"}}, &group);
          put("broadcast", Category::collective, step + 0.6, step + 0.7,
              {{"bytes", 8}, {"sent", 8}, {"ranks", row.ranks}, {"group", "<b>"}}, &group);
        }
        trace::counter("memory", {{"parameter", 4000}, {"gradient", 0}, {"optimizer", 8000}, {"activation", 1}});
        trace::counter("memory", {{"parameter", 4000}, {"gradient", 3000}, {"optimizer", 8000}, {"activation", 1}});
        trace::counter("memory, most so far",
                       {{"parameter", 9000}, {"gradient", 3000}, {"optimizer", 8000}, {"activation", 77}});
      });
    }
    const RunFiles run = read_run(folder.path);
    const Analysis a = analyze(run);
    CHECK(a.sent == doctest::Approx(128));  // the first step is warm-up and does not count
    REQUIRE(a.traffic.size() == 2);
    CHECK(a.traffic[0].collective == "all_reduce, world");
    CHECK(a.traffic[0].calls == doctest::Approx(2));
    CHECK(a.traffic[0].bytes == doctest::Approx(4400));
    CHECK(a.traffic[0].seconds == doctest::Approx(0.3));
    CHECK(a.sent_formula.has_value() == (row.ranks > 1));
    if (a.sent_formula)
      CHECK(a.sent_formula->bytes == doctest::Approx(row.times * 4 * psi * (row.ranks - 1) / row.ranks));
    for (const MemoryRow& m : a.memory) {
      const double n = row.ranks;
      if (m.category == "parameter") CHECK(m.formula->bytes == doctest::Approx(4 * psi / (row.zero == 3 ? n : 1)));
      if (m.category == "gradient") CHECK(m.formula->bytes == doctest::Approx(4 * psi / (row.zero >= 2 ? n : 1)));
      if (m.category == "optimizer") CHECK(m.formula->bytes == doctest::Approx(8 * psi / (row.zero >= 1 ? n : 1)));
      if (m.category == "gradient") CHECK(m.measured == 3000);
      if (m.category == "activation") CHECK((m.measured == 77 && !m.formula));
    }
    const std::string page = make_page(run, a);
    check_page(page);
    CHECK(contains(page, "broadcast, &lt;b&gt;"));
  }
}

TEST_CASE("report: a run without a trace, and folders that hold no run") {
  const TempDir folder;
  CHECK_ERROR(read_run(folder.path), "found an empty folder");
  CHECK_ERROR(read_run(folder / "none"), "which does not exist");
  folder.write("photo.jpg", "x");
  CHECK_ERROR(read_run(folder.path), "found photo.jpg");
  CHECK_ERROR(read_run(folder / "photo.jpg"), "a file");
  folder.write("config.json", "{\"program\": \"gpt <&>\", \"lr\": 0.001}");
  for (const int lines : {1, 2, 50, 3000}) {
    std::string text;
    for (int i = 1; i <= lines; ++i)
      text += str("{\"step\": ", i, ", \"loss\": ", 1. / i, i % 10 == 0 ? ", \"val_loss\": 2.5" : "", "}\n");
    for (const bool torn : {false, true}) {
      folder.write("metrics.jsonl", text + (torn ? "{\"step\": 9, \"lo" : ""));
      const RunFiles run = read_run(folder.path);
      CHECK(run.warnings.size() == torn);
      const Analysis a = analyze(run);
      const Curve *const loss = a.curve("loss"), *const validation = a.curve("val_loss");
      REQUIRE(loss);
      REQUIRE(loss->points.size() == size_t(lines));
      CHECK(loss->points.back().first == lines);
      CHECK(loss->last() == doctest::Approx(1. / lines));
      CHECK((validation ? validation->points.size() : 0) == size_t(lines / 10));
      const std::string page = make_page(run, a);
      check_page(page);
      CHECK(contains(page, "gpt &lt;&amp;&gt;"));
      CHECK(contains(page, "No trace"));
      CHECK(page.size() < 200'000);
    }
  }
  folder.write("metrics.jsonl", "{\"step\": 1, oops}\n{\"step\": 2}\n");
  CHECK_ERROR(read_run(folder.path), "metrics.jsonl:1");
  const std::pair<const char*, const char*> pipes[] = {
      {"metrics.jsonl", "expected a regular file, got a device or pipe"}, {"rank-0.json", "expected a run in"}};
  std::filesystem::remove(folder / "metrics.jsonl");
  for (const auto& [name, said] : pipes) {  // pipes are rejected without waiting for a writer
    REQUIRE(mkfifo((folder / name).c_str(), 0600) == 0);
    CHECK_ERROR(read_run(folder.path), said);
    std::filesystem::remove(folder / name);
  }
}

TEST_CASE("report: every metric has a curve, beside those of the same quantity") {
  const TempDir folder;
  std::string text;
  for (int i = 1; i <= 60; ++i)
    text += str(R"({"step": )", i, R"(, "epoch": 1, "<own>": 7, "loss": )", 2. / i, R"(, "lr": 1e-3, "grad_norm": )",
                i == 5 ? "null" : "0.5", R"(, "expert_tokens": [1, )", i, "], \"words\": \"none\"",
                i % 20 == 0 ? R"(, "val_loss": 3, "ema_val_loss": 2.5, "val_accuracy": 0.75)" : "", "}\n");
  folder.write("metrics.jsonl", text);
  const RunFiles run = read_run(folder.path);
  const Analysis a = analyze(run);
  const struct {
    const char* title;
    std::vector<const char*> curves;
    std::vector<size_t> points;
    bool evaluated;
  } expected[] = {{"loss", {"loss", "val_loss", "ema_val_loss"}, {60, 3, 3}, true},
                  {"accuracy", {"val_accuracy"}, {3}, true},
                  {"<own>", {"<own>"}, {60}, false},
                  {"lr", {"lr"}, {60}, false},
                  {"grad_norm", {"grad_norm"}, {59}, false},
                  {"expert_tokens", {"expert_tokens/0", "expert_tokens/1"}, {60, 60}, false}};
  REQUIRE(a.charts.size() == std::size(expected));
  for (size_t i = 0; i < a.charts.size(); ++i) {
    const CurveChart& chart = a.charts[i];
    CHECK(chart.title == expected[i].title);
    CHECK(chart.is_evaluated() == expected[i].evaluated);
    REQUIRE(chart.curves.size() == expected[i].curves.size());
    for (size_t k = 0; k < chart.curves.size(); ++k) {
      CHECK(chart.curves[k].name == expected[i].curves[k]);
      CHECK(chart.curves[k].points.size() == expected[i].points[k]);
    }
  }
  CHECK(a.curve("expert_tokens/1")->points[4] == std::pair<double, double>(5, 5));
  CHECK(!a.curve("words"));
  const std::string page = make_page(run, a);
  check_page(page);
  for (const char* said :
       {"<h2>Loss</h2>", "<h2>Metrics</h2>", "<h2>Rates and norms</h2>", "grad_norm, and its running",
        "ema_val_loss 2.5 after step 40", "<b>0.75</b><span>val_accuracy", "&lt;own&gt;"})
    CHECK_MESSAGE(contains(page, said), said);
}

TEST_CASE("report: folders of TrainingArguments, and what the page says about programs") {
  const char* const state = R"({"best_metric": 1.5, "best_global_step": 4, "log_history": [
    {"epoch": 1, "step": 2, "loss": 2, "learning_rate": 0.1, "grad_norm": NaN}, {"step": 4, "eval_loss": 1.5,
    "eval_runtime": 3}, {"step": 4, "loss": 1}, {"step": 4, "train_runtime": 9, "train_loss": 1.5}]})";
  const char* const settings = R"({"program": "own", "arguments": {"learning_rate": 0.1, "lr_scheduler_kwargs": {"a":
    1}}, "engine": {"fp16": {"enabled": false}}})";
  const char* const model = R"({"model_type": "llama", "limit": Infinity})";
  const struct {
    std::vector<std::pair<const char*, const char*>> files;
    const char *folder, *title;  // folder: below the run's
    std::vector<const char*> said;
  } rows[] = {
      {{{"run.json", settings}, {"trainer_state.json", state}, {"config.json", model}},
       "",
       "own",
       {"arguments.lr_scheduler_kwargs.a", "fp16.enabled", "<b>1.5</b><span>the best, after step 4", "parallel.trace"}},
      {{{"run.json", settings}, {"checkpoint-4/trainer_state.json", state}}, "", "own", {"arguments.learning_rate"}},
      {{{"run.json", settings}, {"checkpoint-4/trainer_state.json", state}}, "checkpoint-4/", "own", {"fp16.enabled"}},
      {{{"checkpoint-4/trainer_state.json", state}, {"checkpoint-4/config.json", model}},
       "checkpoint-4",
       "checkpoint-4",
       {"model_type", "which only a run of Lockstep can have"}},
      {{{"checkpoint-2/trainer_state.json", "{}"}, {"checkpoint-4~2/trainer_state.json", state}}, "", "", {}},
      {{{"config.json", R"({"program": "own", "trace_option": "--trace"})"},
        {"metrics.jsonl", "{\"step\": 2,\"loss\": 2}"}},
       "",
       "own",
       {"<code>--trace "}},
  };
  for (const auto& row : rows) {
    const TempDir folder;
    for (const auto& [name, text] : row.files) {
      fs::create_directories(fs::path(folder / name).parent_path());
      folder.write(name, text);
    }
    CAPTURE(row.files[0].first);
    const RunFiles run = read_run(folder / row.folder);
    const Analysis a = analyze(run);
    REQUIRE(a.curve("loss"));
    CHECK(a.curve("loss")->points[0] == std::pair<double, double>(2, 2));
    if (!run.state.is_null()) {
      CHECK(a.curve("eval_loss")->points.size() == 1);
      CHECK(a.curve("learning_rate")->last() == 0.1);
      CHECK(a.charts.size() == 2);  // no curve of times, nor of numbers that are none
    }
    if (*row.title) CHECK(run.program() == row.title);
    const std::string page = make_page(run, a);
    check_page(page);
    for (const char* said : row.said) CHECK_MESSAGE(contains(page, said), said);
    CHECK(contains(page, "--trace") == contains(row.said.empty() ? "" : row.said.back(), "--trace"));
  }
}

TEST_CASE("report: a trace names the program that a folder does not name") {
  const TempDir folder;
  traced(folder, 0, 1, [&] {
    trace::note("run", R"({"program": "own"})");
    put("step 0", Category::step, 0, 1, {{"step", 0}});
  });
  CHECK(read_run(folder.path).program() == "own");
}
