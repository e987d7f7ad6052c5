// The table of `lockstep roofline`.
#include <fmt/format.h>

#include "report/roofline.h"

namespace lockstep::report {
namespace {

std::string line(const std::string& kind, int64_t calls, int64_t launches, double flops, double bytes, double seconds,
                 const std::string& bound, const std::string& efficiency) {
  std::string text =
      fmt::format("{:<32}{:>6}{:>9}{:>9}{:>9}{:>9}  {:<11}{}", kind, calls, launches,
                  flops > 0 ? fmt::format("{:.3f}", flops / 1e12) : "", fmt::format("{:.3f}", bytes / 1e9),
                  fmt::format("{:.3f}", seconds * 1e3), bound, efficiency);
  return text.substr(0, text.find_last_not_of(' ') + 1) + "\n";
}

}  // namespace

std::string text_of(const Roofline& found, const DryStep& step, const Card& card, const std::string& model,
                    const std::string& precision) {
  std::string text = fmt::format("{}: {} parameters, {} tokens a step in {}, on one {}\n\n", model, step.parameters,
                                 step.tokens, precision, card.name);
  text += fmt::format("{:<32}{:>6}{:>9}{:>9}{:>9}{:>9}  {:<11}{}\n", "kernels", "calls", "launches", "TFLOP", "GB",
                      "ms", "bound by", "of peak [source]");
  int64_t calls = 0;
  for (const RooflineRow& row : found.rows) {
    const Efficiency& e = row.cost.efficiency;
    const std::string bound = row.bound;
    calls += row.calls;
    text += line(row.cost.kind, row.calls, row.cost.launches, row.cost.flops, row.cost.bytes, row.seconds, bound,
                 bound == "launches"     ? ""
                 : bound == "operations" ? fmt::format("{:.2f} [{}]", e.flops, e.source)
                                         : fmt::format("{:.2f} [{}]", e.bandwidth, memory_source));
  }
  text += line("together", calls, found.launches, found.flops, found.bytes, found.seconds, "", "");
  text += fmt::format("\nspeed  {:.0f} tokens/s, {:.2f} ms a step\n", found.tokens, found.seconds * 1e3);
  text += fmt::format("MFU    {:.1f} %: {:.2f} TFLOP of the model in that time, of {:.0f} TFLOP/s\n", found.mfu * 100,
                      step.model_flops / 1e12, card.flops16 / 1e12);
  const auto host = [&](const char* how, double seconds) {
    return fmt::format("host   {:.2f} ms when kernels are started {}: {:.1f} % of the step{}\n", seconds * 1e3, how,
                       100 * seconds / found.seconds, seconds > found.seconds ? ", which waits for it" : "");
  };
  text += host("one by one", found.host) + host("as one graph", found.graph);
  text += fmt::format(
      "       ({:.2f} ms are our own code, as measured here; assumed: {:.0f} us for a launch in the "
      "driver, {:.0f} us for a graph,\n       and at least {:.0f} us for a kernel on the card)\n",
      step.host * 1e3, launch_seconds * 1e6, graph_seconds * 1e6, least_seconds * 1e6);
  text += "\nNo card has run this. Efficiencies were measured elsewhere:\n";
  for (size_t i = 0; i < sources().size(); ++i) text += fmt::format("  [{}] {}\n", i + 1, sources()[i]);
  return text;
}

}  // namespace lockstep::report
