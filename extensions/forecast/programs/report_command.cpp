// `lockstep report` and `lockstep trace merge`: evaluate the files of a run.
#include <fmt/format.h>

#include <iostream>

#include "base/printable.h"
#include "base/suggest.h"
#include "data/files.h"
#include "extensions/forecast/page.h"
#include "extensions/forecast/programs/forecast_commands.h"
#include "train/option_group.h"

namespace apps {

using namespace lockstep;
using data::Json;
using train::OptionGroup;

namespace {

struct ReportAsked {
  std::string folder, out, svg;
  bool json = false;
};

Json to_json(const report::RunFiles& run, const report::Analysis& a, const std::string& page) {
  Json j = Json::Object{{"page", page}, {"program", run.program()}};
  if (const report::Curve* loss = a.curve("loss")) j["loss"] = loss->last();
  Json& metrics = j["metrics"] = Json::Object();
  for (const report::CurveChart& chart : a.charts)
    for (const report::Curve& curve : chart.curves) metrics[curve.name] = curve.last();
  j["steps"] = int64_t(a.steps.size());
  j["step_seconds"] = a.median_step;
  j["evaluations"] = Json::Object{{"count", a.evaluations.count}, {"seconds", a.evaluations.seconds}};
  if (a.pipeline) {
    j["pipeline"] =
        Json::Object{{"schedule", a.pipeline->schedule},           {"stages", a.pipeline->stages},
                     {"micro_batches", a.pipeline->micro_batches}, {"idle_measured", a.pipeline->measured},
                     {"idle_formula", a.pipeline->expected},       {"idle_simulated", a.pipeline->simulated}};
  }
  j["sent"] = a.sent;
  if (a.sent_formula) j["sent_formula"] = a.sent_formula->bytes;
  Json& memory = j["memory"] = Json::Object();
  for (const auto& m : a.memory) {
    Json& row = memory[m.category] = Json::Object{{"measured", m.measured}};
    if (m.formula) row["formula"] = m.formula->bytes;
  }
  j["warnings"] = Json::Array(run.warnings.begin(), run.warnings.end());
  return j;
}

void report(const ReportAsked& o) {
  const report::RunFiles run = report::read_run(o.folder);
  const report::Analysis a = report::analyze(run);
  const std::string page = o.out.empty() ? o.folder + "/report.html" : o.out;
  data::write_atomically(page, report::make_page(run, a));
  if (!o.svg.empty()) {
    const std::string picture = report::timeline_svg(a, "timeline of " + o.folder);
    LOCKSTEP_CHECK(
        !picture.empty(), o.folder,
        ": --svg draws the timeline of a step, but there is no trace with one; trace the run, and report again");
    data::write_atomically(o.svg, picture);
  }
  for (const std::string& warning : run.warnings) std::cerr << "warning: " << printable(warning) << "\n";
  if (o.json) return void(std::cout << to_json(run, a, page).dump() << std::endl);
  fmt::print("{:<10}{}\n", "page", page);
  for (const report::Headline& line : report::headlines(a))
    fmt::print("{:<10}{}{}\n", line.name, printable(line.value), printable(line.about));
}

}  // namespace

void add_report_command(CLI::App& app) {
  auto o = std::make_shared<ReportAsked>();
  CLI::App& command = *app.add_subcommand(
      "report", "one HTML page about a run: metrics, timeline, memory and traffic beside their formulas, settings");
  const OptionGroup add(command);
  add("folder", o->folder, "folder given to --out or --trace (traces may be one folder below)")->required();
  add("--out", o->out, "the page (default: report.html in the folder)");
  add("--svg", o->svg, "the timeline as a picture too");
  add("--json", o->json, "print the figures as one line, a JSON object");
  command.callback([o] { report(*o); });
}

void add_trace_command(CLI::App& app) {
  auto o = std::make_shared<ReportAsked>();
  CLI::App& command = *app.add_subcommand("trace", "timelines that --trace wrote");
  command.require_subcommand(1);
  CLI::App& merge = *command.add_subcommand("merge", "one file of those of all ranks, for https://ui.perfetto.dev");
  merge.add_option("folder", o->folder, "folder with rank-N.json")->required();
  merge.add_option("--out", o->out, "the file (default: trace.json in the folder)");
  merge.callback([o] {
    std::vector<std::string> warnings;
    const std::string out = o->out.empty() ? o->folder + "/trace.json" : o->out;
    const auto ranks = report::merge_traces(o->folder, out, warnings);
    for (const std::string& warning : warnings) std::cerr << "warning: " << printable(warning) << "\n";
    fmt::print("{}: {}; open it at https://ui.perfetto.dev\n", out, counted(int64_t(ranks.size()), "rank"));
  });
}

}  // namespace apps
