// `lockstep report` and `lockstep trace merge`: what a run left.
#include <fmt/format.h>

#include <iostream>
#include <memory>

#include "apps/commands.h"
#include "data/files.h"
#include "report/page.h"
#include "tensor/check.h"

namespace apps {

using namespace lockstep;
using data::Json;

namespace {

struct ReportAsked {
  std::string folder, out, svg;
  bool json = false;
};

Json to_json(const report::Analysis& a, const std::string& page) {
  Json j(Json::Object{});
  j["page"] = page;
  if (!a.loss.empty()) j["loss"] = a.loss.back().second;
  j["steps"] = int64_t(a.steps.size());
  j["step_seconds"] = a.median_step;
  if (a.pipeline) {
    j["pipeline"] =
        Json::Object{{"schedule", a.pipeline->schedule},           {"stages", a.pipeline->stages},
                     {"micro_batches", a.pipeline->micro_batches}, {"idle_measured", a.pipeline->measured},
                     {"idle_formula", a.pipeline->expected},       {"idle_simulated", a.pipeline->simulated}};
  }
  j["sent"] = a.sent;
  if (a.sent_formula) j["sent_formula"] = a.sent_formula->bytes;
  Json memory(Json::Object{});
  for (const auto& m : a.memory)
    memory[m.category] = m.formula ? Json(Json::Object{{"measured", m.measured}, {"formula", m.formula->bytes}})
                                   : Json(Json::Object{{"measured", m.measured}});
  j["memory"] = memory;
  Json warnings(Json::Array{});
  for (const std::string& warning : a.warnings) warnings.push_back(warning);
  j["warnings"] = warnings;
  return j;
}

void report(const ReportAsked& o) {
  const report::RunFiles run = report::read_run(o.folder);
  const report::Analysis a = report::analyze(run);
  const std::string page = o.out.empty() ? o.folder + "/report.html" : o.out;
  data::write_atomically(page, report::make_page(run, a));
  if (!o.svg.empty()) {
    const std::string picture = report::timeline_svg(a, "timeline of " + o.folder);
    LOCKSTEP_CHECK(!picture.empty(), o.folder, ": --svg draws the timeline of a step, but there is no trace with one");
    data::write_atomically(o.svg, picture);
  }
  for (const std::string& warning : a.warnings) std::cerr << "warning: " << warning << "\n";
  if (o.json) {
    std::cout << to_json(a, page).dump() << std::endl;
    return;
  }
  fmt::print("page      {}\n", page);
  if (!a.loss.empty()) fmt::print("loss      {:.4g} after step {:.0f}\n", a.loss.back().second, a.loss.back().first);
  if (a.median_step > 0)
    fmt::print("step      {}, median of {}\n", report::seconds_text(a.median_step), a.steps.size());
  if (a.pipeline)
    fmt::print("idle      {:.1f} % of the pipeline{}\n", 100 * a.pipeline->measured,
               a.pipeline->formula.empty() ? "" : fmt::format(", formula {:.1f} %", 100 * a.pipeline->expected));
  if (!a.traffic.empty())
    fmt::print("sent      {} by a rank in a step{}\n", report::bytes_text(a.sent),
               a.sent_formula ? ", formula " + report::bytes_text(a.sent_formula->bytes) : "");
  std::fflush(stdout);
}

}  // namespace

void add_report_command(CLI::App& app) {
  auto o = std::make_shared<ReportAsked>();
  CLI::App& command = *app.add_subcommand(
      "report", "one HTML page about a run: loss, timeline, memory and traffic beside their formulas, settings");
  command
      .add_option("folder", o->folder,
                  "what --out and --trace of a training program filled (traces may lie one folder below)")
      ->required();
  command.add_option("--out", o->out, "the page (default: report.html in the folder)");
  command.add_option("--svg", o->svg, "the timeline as a picture too");
  command.add_flag("--json", o->json, "its figures as one line, a JSON object");
  command.callback([o] { report(*o); });
}

void add_trace_command(CLI::App& app) {
  struct Asked {
    std::string folder, out;
  };
  auto o = std::make_shared<Asked>();
  CLI::App& command = *app.add_subcommand("trace", "timelines that --trace wrote");
  command.require_subcommand(1);
  CLI::App& merge = *command.add_subcommand("merge", "one file of those of all ranks, for https://ui.perfetto.dev");
  merge.add_option("folder", o->folder, "folder with rank-N.json")->required();
  merge.add_option("--out", o->out, "the file (default: trace.json in the folder)");
  merge.callback([o] {
    std::vector<std::string> warnings;
    const std::string out = o->out.empty() ? o->folder + "/trace.json" : o->out;
    const auto ranks = report::merge_traces(o->folder, out, warnings);
    for (const std::string& warning : warnings) std::cerr << "warning: " << warning << "\n";
    fmt::print("{}: {} rank{}; open it at https://ui.perfetto.dev\n", out, ranks.size(), ranks.size() == 1 ? "" : "s");
    std::fflush(stdout);
  });
}

}  // namespace apps
