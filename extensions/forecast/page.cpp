// Writes the report page: see page.h. charts.cpp draws the charts.
#include "extensions/forecast/page.h"

#include "base/check.h"
#include "base/suggest.h"
#include "extensions/figures/quantity.h"
#include "extensions/figures/svg.h"

namespace lockstep::report {
namespace {

using data::Json;

constexpr const char* style =
#include "extensions/forecast/page_style.inc"
    ;
constexpr const char* script =
#include "extensions/forecast/page_script.inc"
    ;
constexpr size_t max_ranks = 32;  // most ranks shown in charts
constexpr size_t max_rows = 15;   // most rows of tables

std::string tile(const std::string& value, const std::string& words) {
  return "<div class=\"tile\"><b>" + escaped(value) + "</b><span>" + escaped(words) + "</span></div>\n";
}

std::string row(const std::vector<std::string>& cells, const char* kind = "td") {
  std::string out = "<tr>";
  for (const std::string& cell : cells) out += str("<", kind, ">", escaped(cell), "</", kind, ">");
  return out + "</tr>\n";
}

std::string soft(const std::string& words) { return "<p class=\"soft\">" + words + "</p>\n"; }

std::string table(const std::vector<std::string>& head, const std::string& rows) {
  return "<div class=\"scroll\"><table>" + (head.empty() ? "" : row(head, "th")) + rows + "</table></div>\n";
}

std::string keys(const std::vector<std::pair<std::string, std::string>>& all) {
  std::string out = "<div class=\"keys\">";
  for (const auto& [color, words] : all)
    out += "<span><i style=\"background:var(--" + color + ")\"></i>" + escaped(words) + "</span>";
  return out + "</div>\n";
}

std::string part_keys() {
  std::vector<std::pair<std::string, std::string>> all;
  for (int p = 0; p < parts; ++p) all.emplace_back(color_of(StepPhase(p)), name_of(StepPhase(p)));
  return keys(all);
}

std::string percent(double part) { return format("%.1f %%", 100 * part); }

std::string section(const std::string& title, const std::string& body) {
  return body.empty() ? "" : "<section>\n<h2>" + escaped(title) + "</h2>\n" + body + "</section>\n";
}

std::string pipeline_table(const PipelineFigures& p) {
  const bool known = !p.formula.empty();
  return table({"pipeline", "stages", "micro-batches", "idle, measured", "idle, formula", "idle, simulated", "forward",
                "backward"},
               row({p.schedule + (p.chunks > 1 ? str(", ", p.chunks, " chunks") : "") +
                        (p.replicas > 1 ? str(", ", p.replicas, " replicas") : ""),
                    str(p.stages), str(p.micro_batches), percent(p.measured),
                    known ? percent(p.expected) + " = " + p.formula : "-", known ? percent(p.simulated) : "-",
                    seconds_text(p.forward), seconds_text(p.input + p.weight)})) +
         soft(
             "Idle is the fraction of time, between a batch's first and last computation, in which ranks do not "
             "compute. The formula assumes equal stages and messages that take no time; forward and backward are means "
             "of one micro-batch on one rank.");
}

std::string timeline(const Analysis& a) {
  if (a.timeline.empty()) return "";
  return timeline_chart(a, max_ranks) + part_keys() +
         "<div id=\"zoom\" hidden><button id=\"in\">zoom in</button> <button id=\"out\">zoom out</button> <button "
         "id=\"all\">whole step</button> <span class=\"soft\">or drag, and Ctrl or Shift with the "
         "wheel</span></div>\n" +
         soft(str("Step ", a.timeline_step,
                  ", which took the median time. The upper bar of a rank is its main thread, the lower one its "
                  "collectives and messages, which run beside it.",
                  a.timeline.size() > max_ranks ? str(" The first ", max_ranks, " of ", a.timeline.size(), " ranks.")
                                                : "")) +
         (a.pipeline ? pipeline_table(*a.pipeline) : "");
}

std::string waits(const Analysis& a) {
  if (a.waits.empty()) return "";
  std::string rows;
  for (const auto& [name, seconds] : a.waits) {
    const double part = a.median_step > 0 ? seconds / a.median_step : 0;
    rows += row({name, seconds_text(seconds), percent(part)});
  }
  return table({"of a rank in a step", "time", "of a step"}, rows) +
         soft(
             "Reads and writes are of offloaded state, gathers of parameters by ZeRO. Collectives are the other "
             "waits.");
}

std::string traffic(const Analysis& a) {
  if (a.traffic.empty()) return "";
  std::string rows;
  for (size_t i = 0; i < std::min(a.traffic.size(), max_rows); ++i) {
    const CollectiveTraffic& t = a.traffic[i];
    rows += row({t.collective, format("%.4g", t.calls), bytes_text(t.bytes), bytes_text(t.sent),
                 seconds_text(t.seconds), t.sent > 0 ? bytes_text(t.sent / std::max(t.seconds, 1e-12)) + "/s" : "-"});
  }
  rows += row({"together", "", "", bytes_text(a.sent), "", ""});
  if (a.sent_formula)
    rows += row({"formula: " + a.sent_formula->text, "", "", bytes_text(a.sent_formula->bytes), "", ""});
  return table({"of a rank in a step", "calls", "bytes given", "bytes sent", "time", "sent per second"}, rows) +
         soft("Besides gradients and parameters, ranks exchange small data: losses, norms, checks.");
}

std::string memory(const Analysis& a) {
  if (a.memory.empty()) return "";
  std::string formulas;
  for (const MemoryRow& m : a.memory)
    if (m.formula) formulas += (formulas.empty() ? "" : ", ") + escaped(m.category + " " + m.formula->text);
  formulas += formulas.empty() ? "none for this run" : str(" bytes, Ψ = ", a.parameters, " parameters");
  return memory_chart(a) + keys({{"accent", "measured: the most that was held, of a rank (frame: the formula)"}}) +
         soft("Formulas: " + formulas + ". Activations have none that holds for every model.");
}

std::string operations(const Analysis& a) {
  if (a.operations.empty()) return "";
  double all = 0;
  for (const auto& [name, total] : a.operations) all += total.seconds;
  std::string rows;
  for (size_t i = 0; i < std::min(a.operations.size(), max_rows); ++i) {
    const auto& [name, total] = a.operations[i];
    rows += row({name, str(total.calls), seconds_text(total.seconds), percent(total.seconds / all),
                 seconds_text(total.seconds / double(total.calls))});
  }
  return table({"operation", "calls", "time", "of all operations", "mean"}, rows) +
         (a.operations.size() > max_rows ? soft(str("The longest ", max_rows, " of ", a.operations.size(), ".")) : "");
}

std::string settings(const RunFiles& run) {
  std::string rows;
  const auto add = [&](const Json& all, const Json& but) {
    for (const auto& [key, value] : all.as_object())
      if (!but.find(key))
        rows += "<tr><td>" + escaped(key) + "</td><td class=\"words\">" +
                escaped(value.is_string() ? value.as_string() : value.dump()) + "</td></tr>\n";
  };
  if (run.settings.is_object()) add(run.settings, Json());
  if (const Json* parallel = run.note("parallel")) add(*parallel, run.settings);
  std::string out = rows.empty() ? "" : table({}, rows);
  const Json* facts = run.note("run");
  if (const std::string command = facts ? text_of(*facts, "command") : ""; !command.empty())
    out +=
        "<details><summary>every option of the command line</summary><pre>" + escaped(command) + "</pre></details>\n";
  return out;
}

}  // namespace

std::vector<Headline> headlines(const Analysis& a) {
  std::vector<Headline> lines;
  const auto formula = [](bool known, const std::string& text) { return known ? ", formula " + text : ""; };
  if (!a.loss.empty())
    lines.push_back({"loss", format("%.4g", a.loss.back().second), format(" after step %.0f", a.loss.back().first)});
  if (a.median_step > 0) lines.push_back({"step", seconds_text(a.median_step), str(", median of ", a.steps.size())});
  if (a.pipeline)
    lines.push_back({"idle", percent(a.pipeline->measured),
                     " in the pipeline" + formula(!a.pipeline->formula.empty(), percent(a.pipeline->expected))});
  if (!a.traffic.empty())
    lines.push_back({"sent", bytes_text(a.sent),
                     " by a rank in a step" +
                         formula(a.sent_formula.has_value(), bytes_text(a.sent_formula ? a.sent_formula->bytes : 0))});
  return lines;
}

std::string make_page(const RunFiles& run, const Analysis& a) {
  const std::string program = text_of(run.settings, "program"), name = program.empty() ? "run" : program;
  const int ranks = run.traces.empty() ? 0 : run.traces[0].ranks;
  std::string head = ranks > 0 ? counted(ranks, "rank") : "";
  if (a.parameters > 0) head += str(head.empty() ? "" : ", ", a.parameters, " parameters");
  if (ranks > 1) {
    double error = 0;
    for (const RankTrace& t : run.traces) error = std::max(error, t.clock_error);
    head += error > 0 ? ", clocks of the ranks agree to " + seconds_text(error) : ", on one clock";
  }
  std::string out =
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\">\n<title>" +
      escaped(name + ": report") + "</title>\n<style>" + style + "</style>\n</head>\n<body>\n<main>\n<h1>" +
      escaped(name) + "</h1>\n<p class=\"soft\">" + escaped(head) + "</p>\n<div class=\"tiles\">\n";
  for (const Headline& line : headlines(a)) out += tile(line.value, line.name + line.about);
  if (!a.validation.empty()) out += tile(format("%.4g", a.validation.back().second), "validation loss");
  double held = 0;
  for (const MemoryRow& m : a.memory) held += m.measured;
  if (held > 0) out += tile(bytes_text(held), "memory of a rank, all categories");
  out += "</div>\n";
  if (!run.warnings.empty()) {
    out += "<section class=\"warning\">\n<h2>Incomplete</h2>\n<ul>";
    for (const std::string& warning : run.warnings) out += "<li>" + escaped(warning) + "</li>";
    out += "</ul>\n</section>\n";
  }
  std::string loss = loss_chart(a);
  if (!loss.empty()) {
    std::vector<std::pair<std::string, std::string>> of_loss{
        {"accent", a.loss.size() > 40 ? "training loss, and its running mean" : "training loss"}};
    if (!a.validation.empty()) of_loss.emplace_back("communication", "validation");
    loss += keys(of_loss);
  }
  out += section("Loss", loss);
  out += section("Timeline", timeline(a));
  std::string split = split_chart(a, max_ranks);
  if (!split.empty())
    split += part_keys() + soft(
                               "Mean of the steps after the first. Communication is what the main thread waits for; "
                               "what overlaps with computation is not included.");
  out += section("Where the time goes", split + waits(a));
  out += section("Memory", memory(a));
  out += section("Traffic", traffic(a));
  out += section("Operations", operations(a));
  if (run.traces.empty())
    out +=
        section("No trace", "<p>Timeline, memory and traffic come from a trace: run the program with <code>--trace " +
                                escaped(run.folder) + "/trace</code>.</p>\n");
  out += section("Settings", settings(run));
  return out + "</main>\n<script>" + script + "</script>\n</body>\n</html>\n";
}

std::string timeline_svg(const Analysis& a, const std::string& title) {
  std::string chart = timeline_chart(a, max_ranks);
  if (chart.empty()) return "";
  const size_t open = chart.find("<svg "), close = chart.find(">\n", open);
  chart.insert(open + 5, "xmlns=\"http://www.w3.org/2000/svg\" ");
  const size_t at = chart.find(">\n", close) + 2;
  return chart.insert(
      at,
      "<title>" + escaped(title) +
          "</title>\n<style>text{font:12px Helvetica,Arial,sans-serif;fill:#59636e}text.in{fill:#fff;font-size:10px}"
          ".ink{fill:#1f2328}.grid{stroke:#e8ebef}.idle{fill:#eef1f4}.forward{fill:#4c8dd6}.backward{fill:#3aa675}"
          ".weights{fill:#d9a441}.optimizer{fill:#8e6bc4}.data{fill:#c76b98}.communication{fill:#e0694f}"
          ".other{fill:#b6bec8}</style>\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n");
}

}  // namespace lockstep::report
