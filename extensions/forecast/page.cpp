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
constexpr size_t max_tiles = 6;   // most metrics of evaluations at the head of the page
constexpr size_t max_keys = 12;   // a chart with more curves has no key but its title

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

/// A chart with its key. A chart of one curve needs no key but its name.
std::string charted(const CurveChart& chart, const std::string& id, double width, double height) {
  std::vector<std::pair<std::string, std::string>> all;
  if (chart.curves.size() > max_keys)
    all.emplace_back("accent", str(chart.title, ", ", chart.curves.size(), " curves"));
  else
    for (size_t i = 0; i < chart.curves.size(); ++i)
      all.emplace_back(curve_color(i),
                       chart.curves[i].name + (has_mean(chart.curves[i]) ? ", and its running mean" : ""));
  return curve_chart(chart, id, width, height) + keys(all);
}

/// The charts of all metrics but the loss, side by side: those that evaluations measured, or the others.
std::string small_charts(const Analysis& a, bool evaluated) {
  std::string out;
  for (size_t i = 0; i < a.charts.size(); ++i)
    if (a.charts[i].title != "loss" && a.charts[i].is_evaluated() == evaluated)
      out += "<div>" + charted(a.charts[i], str("curves-", i), 400, 150) + "</div>\n";
  return out.empty() ? "" : "<div class=\"charts\">\n" + out + "</div>\n";
}

std::string time_split(const Analysis& a) {
  std::string out = split_chart(a, max_ranks);
  if (!out.empty())
    out += part_keys() + soft(
                             "Mean of the steps after the first. Communication is what the main thread waits for; what "
                             "overlaps with computation is not included.");
  if (const Evaluations& e = a.evaluations; e.count > 0)
    out += soft(counted(e.count, "evaluation") + " took " + seconds_text(e.seconds) + " in all, " +
                seconds_text(e.seconds / double(e.count)) +
                " each, also outside of steps. What they wait for and send is not in the tables.");
  return out + waits(a);
}

/// Rows of a table of settings, without the keys of `but`. Those of nested objects are named "rope.theta".
std::string setting_rows(const Json& all, const Json& but = Json(), const std::string& within = "") {
  std::string rows;
  for (const auto& [key, value] : all.as_object()) {
    if (but.find(key)) continue;
    if (value.is_object() && !value.as_object().empty()) rows += setting_rows(value, Json(), within + key + ".");
    else
      rows += "<tr><td>" + escaped(within + key) + "</td><td class=\"words\">" +
              escaped(value.is_string() ? value.as_string() : value.dump()) + "</td></tr>\n";
  }
  return rows;
}

std::string details(const std::string& summary, const std::string& body) {
  return "<details><summary>" + escaped(summary) + "</summary>" + body + "</details>\n";
}

std::string settings(const RunFiles& run) {
  std::string rows;
  // The engine's configuration has many keys, and trace_option is only for this page.
  static const Json apart = Json::Object{{"engine", true}, {"trace_option", true}};
  if (run.settings.is_object()) rows += setting_rows(run.settings, apart);
  if (const Json* parallel = run.note("parallel")) rows += setting_rows(*parallel, run.settings);
  std::string out = rows.empty() ? "" : table({}, rows);
  if (const Json* engine = run.settings.find("engine"); engine && engine->is_object())
    out += details("every key of the engine's configuration", table({}, setting_rows(*engine)));
  const Json* facts = run.note("run");
  if (const std::string command = facts ? text_of(*facts, "command") : ""; !command.empty())
    out += details("every option of the command line", "<pre>" + escaped(command) + "</pre>");
  return out;
}

/// Says how to write a trace by what the program has: an option, or else TrainOptions. Transformers' Trainer has none.
std::string no_trace(const RunFiles& run) {
  if (run.state.is_object() && !run.settings.find("engine"))
    return "<p>Timeline, memory and traffic come from a trace, which only a run of Lockstep can have.</p>\n";
  const std::string option = text_of(run.settings, "trace_option"), place = escaped(run.folder) + "/trace";
  const std::string advice = !option.empty()
                                 ? "run the program with <code>" + escaped(option) + " " + place + "</code>"
                                 : "set <code>parallel.trace</code> of the <code>train::TrainOptions</code> "
                                   "that the program starts with to <code>" +
                                       place + "</code>";
  return "<p>Timeline, memory and traffic come from a trace: " + advice + ".</p>\n";
}

}  // namespace

std::vector<Headline> headlines(const Analysis& a) {
  std::vector<Headline> lines;
  const auto formula = [](bool known, const std::string& text) { return known ? ", formula " + text : ""; };
  if (const Curve* loss = a.curve("loss"))
    lines.push_back({"loss", format("%.4g", loss->last()), format(" after step %.0f", loss->points.back().first)});
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
  const std::string name = run.program();
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
  size_t tiles = 0;
  for (const CurveChart& chart : a.charts)
    for (const Curve& curve : chart.curves)
      if (curve.evaluated && tiles++ < max_tiles) out += tile(format("%.4g", curve.last()), curve.name);
  if (const Json* best = run.state.find("best_metric"); best && best->is_number())
    out += tile(format("%.4g", best->as_number()),
                format("the best, after step %.0f", number_of(run.state, "best_global_step")));
  double held = 0;
  for (const MemoryRow& m : a.memory) held += m.measured;
  if (held > 0) out += tile(bytes_text(held), "memory of a rank, all categories");
  out += "</div>\n";
  if (!run.warnings.empty()) {
    out += "<section class=\"warning\">\n<h2>Incomplete</h2>\n<ul>";
    for (const std::string& warning : run.warnings) out += "<li>" + escaped(warning) + "</li>";
    out += "</ul>\n</section>\n";
  }
  const bool has_loss = !a.charts.empty() && a.charts[0].title == "loss";
  out += section("Loss", has_loss ? charted(a.charts[0], "loss", 960, 240) : "");
  out += section("Metrics", small_charts(a, true));
  out += section("Rates and norms", small_charts(a, false));
  out += section("Timeline", timeline(a));
  out += section("Where the time goes", time_split(a));
  out += section("Memory", memory(a));
  out += section("Traffic", traffic(a));
  out += section("Operations", operations(a));
  if (run.traces.empty()) out += section("No trace", no_trace(run));
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
          ".evaluation{fill:#8a9a3f}.other{fill:#b6bec8}</style>\n<rect width=\"100%\" height=\"100%\" "
          "fill=\"white\"/>\n");
}

}  // namespace lockstep::report
