// `lockstep verify`: runs a program under several parallel plans, and compares all parameters' bits after every step.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <optional>

#include "base/check.h"
#include "base/classic_text.h"
#include "base/clock.h"
#include "base/suggest.h"
#include "data/json.h"
#include "extensions/launcher/process.h"
#include "extensions/launcher/programs/launcher_commands.h"
#include "extensions/launcher/scratch.h"
#include "parallel/mesh.h"
#include "train/cli.h"
#include "train/interrupt.h"
#include "train/option_group.h"

namespace apps {
namespace {

using namespace lockstep;
using namespace lockstep::train;
using data::Json;
namespace fs = std::filesystem;

/// A training plan: STRATEGY[@OPTION=VALUE,...]:RANKSxACCUMULATION. All plans compute the same micro-batches.
struct Variant {
  std::string strategy;  ///< "ddp", "zero0" to "zero3", "zero1-cpu", "zero3-nvme", ..., "none", "dp2+pp2+tp2+zero1"
  /// Pairs of option and value: bucket=MIB, overlap=on|off, transport=auto|threads|shm|tcp.
  std::vector<std::pair<std::string, std::string>> options;
  int ranks = 1;
  int64_t accumulate = 1;
  std::optional<parallel::Plan> parts;  ///< for plans such as "dp2+pp2" (gpt train --plan)
  /// True if the plan has tensor, context or expert parallelism. Such plans sum in another order, so only their losses
  /// are compared with other plans.
  bool is_close_only() const { return parts && parts->tp * parts->cp * parts->ep > 1; }
  int64_t micro_batches() const { return int64_t(parts ? parts->dp : ranks) * accumulate; }
  std::string text() const {
    std::string all = strategy;
    for (size_t i = 0; i < options.size(); ++i) all += (i ? "," : "@") + options[i].first + "=" + options[i].second;
    return fmt::format("{}:{}x{}", all, ranks, accumulate);
  }
  /// The value of an option, or "".
  std::string option(const std::string& name) const {
    for (const auto& [key, value] : options)
      if (key == name) return value;
    return "";
  }
};

struct VerifyOptions {
  std::string plans = "none:1x4,ddp:1x4,ddp:2x2,ddp:4x1";
  std::vector<std::string> vary;
  int64_t steps = 0;      ///< number of steps; 0: as many as the command says
  double tolerance = 0;   ///< largest relative difference of losses; 0: depends on the dtype of products
  double timeout = 3600;  ///< seconds for one plan
  std::vector<std::string> command;
};

int64_t positive(const std::string& text, const std::string& where) {
  LOCKSTEP_CHECK(integer(1, 999'999)(text).empty(), where,
                 ": expected STRATEGY:RANKSxACCUMULATION such as ddp:2x4, with numbers from 1 to 999999, got '", text,
                 "'");
  return std::stoll(text);
}

void check_option(const std::string& name, const std::string& value, const std::string& where) {
  if (name == "overlap")
    LOCKSTEP_CHECK(value == "on" || value == "off", where, ": expected overlap=on or overlap=off, got '", value, "'");
  else if (name == "transport")
    LOCKSTEP_CHECK(value == "auto" || value == "threads" || value == "shm" || value == "tcp", where,
                   ": expected transport=auto, threads, shm or tcp, got '", value, "'");
  else if (name == "bucket") {
    const auto mib = read_number<double>(value);
    LOCKSTEP_CHECK(mib && *mib > 0, where, ": expected bucket=MIB, a number > 0, got '", value, "'");
  } else fail(str(where, ": expected an option among bucket, overlap and transport, got '", name, "'"));
}

std::pair<std::string, std::string> key_value(const std::string& text, const std::string& where) {
  const size_t equals = text.find('=');
  LOCKSTEP_CHECK(equals != std::string::npos, where, ": expected OPTION=VALUE, got '", text, "'");
  return {text.substr(0, equals), text.substr(equals + 1)};
}

/// Known strategies. Plans such as dp2+pp2 are accepted, too.
const std::vector<std::string> strategies = {"none",      "ddp",        "zero0",      "zero1",
                                             "zero2",     "zero3",      "zero1-cpu",  "zero2-cpu",
                                             "zero3-cpu", "zero1-nvme", "zero2-nvme", "zero3-nvme"};

Variant parse_plan(const std::string& text) {
  Variant plan;
  const std::string where = "plan '" + text + "'";
  const size_t colon = text.rfind(':');
  LOCKSTEP_CHECK(colon != std::string::npos, where, ": expected STRATEGY:RANKSxACCUMULATION such as ddp:2x4");
  const std::string head = text.substr(0, colon), sizes = text.substr(colon + 1);
  const size_t x = sizes.find('x'), at = head.find('@');
  LOCKSTEP_CHECK(x != std::string::npos, where, ": expected RANKSxACCUMULATION such as 2x4 after the colon, got '",
                 sizes, "'");
  plan.strategy = head.substr(0, at);
  plan.ranks = int(positive(sizes.substr(0, x), where));
  plan.accumulate = positive(sizes.substr(x + 1), where);
  const bool by_axes =
      plan.strategy.size() > 2 && (is_digit(plan.strategy[2]) || plan.strategy.find('+') != std::string::npos);
  if (by_axes) {
    try {
      plan.parts = parallel::parse_plan(plan.strategy);
    } catch (const Error& error) { fail(str(where, ": ", error.what())); }
    check_plan(*plan.parts, {.ranks = plan.ranks});
  }
  LOCKSTEP_CHECK(plan.parts || std::count(strategies.begin(), strategies.end(), plan.strategy), where,
                 ": expected a strategy among ddp, zero0 to zero3 (from zero1 on also with -cpu or -nvme), axes such "
                 "as pp4 and dp2+pp2+tp2+zero1, and none, got '",
                 plan.strategy, "'");
  LOCKSTEP_CHECK(plan.strategy != "none" || plan.ranks == 1, where, ": none trains on one rank; expected none:1x",
                 plan.ranks * plan.accumulate);
  if (at == std::string::npos) return plan;
  LOCKSTEP_CHECK(plan.strategy != "none", where, ": none takes no options; leave them out");
  for (const std::string& item : split(head.substr(at + 1), ',')) {
    plan.options.push_back(key_value(item, where));
    check_option(plan.options.back().first, plan.options.back().second, where);
    LOCKSTEP_CHECK(!plan.parts || plan.options.back().first == "transport", where,
                   ": plans of axes take the option transport only, got ", plan.options.back().first, "; leave it out");
  }
  return plan;
}

/// The output of a run: its trace, one line per step.
struct Trace {
  std::vector<Json> steps;
  double seconds = 0;
};

Trace read_trace(const fs::path& file, const Variant& plan) {
  std::ifstream in(file);
  LOCKSTEP_CHECK(in, plan.text(),
                 ": the program succeeded but wrote no trace; verify needs one that knows --trace-bits, such as any "
                 "that trains with train::run");
  Trace trace;
  for (std::string line; std::getline(in, line);)
    trace.steps.push_back(data::parse_json(line, plan.text() + ": trace"));
  LOCKSTEP_CHECK(!trace.steps.empty(), plan.text(), ": the run did no steps; give --steps 1 or more");
  return trace;
}

Trace run_plan(const Variant& plan, const VerifyOptions& o, const fs::path& folder) {
  const std::string transport = plan.option("transport");
  std::vector<std::string> command;
  std::vector<std::pair<std::string, std::string>> environment;
  if (plan.strategy != "none" && transport != "threads") {
    command = {fs::read_symlink("/proc/self/exe").string(), "run", "--nproc-per-node", std::to_string(plan.ranks),
               "--"};
    if (!transport.empty()) environment.emplace_back("LOCKSTEP_TRANSPORT", transport);
  }
  const fs::path trace_file = folder / "trace.jsonl";
  fs::remove(trace_file);
  command.insert(command.end(), o.command.begin(), o.command.end());
  const auto add = [&](const char* option, const std::string& value) {
    command.insert(command.end(), {option, value});
  };
  add("--parallel", plan.strategy == "none" ? "none" : "ddp");
  if (plan.parts) add("--plan", plan.strategy);
  else if (plan.strategy.starts_with("zero")) add("--plan", plan.strategy.substr(0, 5));
  if (plan.strategy.ends_with("-cpu")) add("--offload", "cpu");
  if (plan.strategy.ends_with("-nvme")) add("--offload", "nvme:" + folder.string());
  add("--accumulate", std::to_string(plan.accumulate));
  add("--trace-bits", trace_file.string());
  if (transport == "threads") add("--ranks", std::to_string(plan.ranks));
  if (o.steps > 0) add("--steps", std::to_string(o.steps));
  if (const std::string bucket = plan.option("bucket"); !bucket.empty())
    add("--set", fmt::format("zero_optimization.reduce_bucket_size={}",
                             std::max<int64_t>(1, int64_t(*read_number<double>(bucket) * (1 << 18)))));
  if (const std::string overlap = plan.option("overlap"); !overlap.empty())
    add("--set", fmt::format("zero_optimization.overlap_comm={}", overlap == "on"));
  const double start = steady_seconds();
  dist::run_program(plan.text() + ": the run", command, environment, folder, o.timeout, Interrupt::requested);
  Trace trace = read_trace(trace_file, plan);
  trace.seconds = steady_seconds() - start;
  return trace;
}

double loss_of(const Json& step) {
  return std::bit_cast<double>(std::stoull(step.at("loss").as_string(), nullptr, 16));
}

/// The allowed relative difference of losses whose sums are taken in another order (docs/mesh.md). Losses drift apart
/// in longer runs and at higher learning rates.
double tolerance_of(const Json& step) {
  const Json* const dtype = step.find("dtype");
  return !dtype || dtype->as_string() == "f32" ? 1e-4 : 2e-2;
}

/// Describes how the losses of a step differ; "" if they are close enough. Updates `max_difference`, the largest
/// relative difference.
std::string loss_difference(const Json& a, const Json& b, double tolerance, double& max_difference) {
  const double x = loss_of(a), y = loss_of(b), part = std::abs(x - y) / std::max(std::abs(x), 1e-30);
  max_difference = std::max(max_difference, part);
  if (part <= (tolerance > 0 ? tolerance : std::max(tolerance_of(a), tolerance_of(b)))) return "";
  return fmt::format("step {}, the loss: {} and {}, {:.1e} apart", a.at("step").dump(), x, y, part);
}

/// Compares the same step of two runs bit for bit: names the first parameter that differs. Returns "" if all are equal.
std::string bit_difference(const Json& a, const Json& b) {
  if (a == b) return "";
  const std::string step = a.at("step").dump();
  if (!(a.at("step") == b.at("step")))
    return "step " + step + " stands where the other has step " + b.at("step").dump();
  const auto &left = a.at("parameters").as_object(), &right = b.at("parameters").as_object();
  if (left.size() != right.size()) return fmt::format("step {}: {} parameters and {}", step, left.size(), right.size());
  int64_t different = 0;
  std::string first;
  for (size_t p = 0; p < left.size(); ++p) {
    if (left[p] == right[p]) continue;
    if (different++ == 0)
      first = left[p].first == right[p].first ? left[p].first : left[p].first + " (there " + right[p].first + ")";
  }
  if (different == 0) return "step " + step + ", the loss (no parameter yet)";
  return fmt::format("step {}, {} ({} of {} parameters)", step, first, different, left.size());
}

/// Describes the first step in which two runs differ, by their losses or by the bits of their parameters; "" if none.
std::string difference_of(const Trace& a, const Trace& b, bool by_loss, double tolerance, double& max_difference) {
  for (size_t s = 0; s < std::min(a.steps.size(), b.steps.size()); ++s) {
    const std::string found = by_loss ? loss_difference(a.steps[s], b.steps[s], tolerance, max_difference)
                                      : bit_difference(a.steps[s], b.steps[s]);
    if (!found.empty()) return found;
  }
  if (a.steps.size() != b.steps.size()) return fmt::format("the end: {} steps and {}", a.steps.size(), b.steps.size());
  return "";
}

/// Parses plans separated by commas. Error for an unknown strategy or option (listing the known ones), an invalid size,
/// or plans with different numbers of micro-batches per step.
std::vector<Variant> parse_plans(const std::string& text) {
  LOCKSTEP_CHECK(!text.empty(), "--plans: expected at least one plan such as ddp:2x4");
  std::vector<Variant> plans;
  std::string item;
  for (const std::string& part : split(text, ',')) {  // a comma may also separate the options of one plan
    item += (item.empty() ? "" : ",") + part;
    if (part.find(':') == std::string::npos && item.find('@') != std::string::npos) continue;
    plans.push_back(parse_plan(item));
    item.clear();
  }
  if (!item.empty()) parse_plan(item);             // an incomplete plan: raises the Error
  const int64_t count = plans[0].micro_batches();  // pp, tp and cp ranks share micro-batches
  for (const Variant& plan : plans) {
    LOCKSTEP_CHECK(plan.micro_batches() == count,
                   "--plans: expected plans of the same number of micro-batches a step, got ", plans[0].text(), " = ",
                   count, " and ", plan.text(), " = ", plan.micro_batches(), "; change the ACCUMULATION of one");
  }
  return plans;
}

/// Combines every plan with each value of "OPTION=VALUE,VALUE,...". Plans that do not take the option, or that set it
/// already, stay as they are.
std::vector<Variant> vary(const std::vector<Variant>& plans, const std::vector<std::string>& variations) {
  std::vector<Variant> all = plans;
  for (const std::string& variation : variations) {
    const auto [name, values] = key_value(variation, "--vary " + variation);
    std::vector<Variant> next;
    for (const std::string& value : split(values, ',')) check_option(name, value, "--vary " + variation);
    for (const Variant& plan : all) {
      if (plan.strategy == "none" || (plan.parts && name != "transport") || !plan.option(name).empty()) {
        next.push_back(plan);
        continue;
      }
      for (const std::string& value : split(values, ',')) {
        next.push_back(plan);
        next.back().options.emplace_back(name, value);
      }
    }
    all = std::move(next);
  }
  return all;
}

/// Runs the training under every plan, and compares each run with the first. Returns true if there are several plans
/// and none differs.
bool verify(const VerifyOptions& o) {
  const std::vector<Variant> plans = as_usage([&] { return vary(parse_plans(o.plans), o.vary); });
  as_usage([&] {
    for (const std::string& word : o.command) {
      const std::string option = word.substr(0, word.find('='));
      for (const char* ours :
           {"--parallel", "--offload", "--plan", "--accumulate", "--ranks", "--trace-bits", "--out", "--resume"})
        LOCKSTEP_CHECK(
            option != ours, ours,
            " in the command: leave it out, because verify runs the command once for every plan and sets this option");
      LOCKSTEP_CHECK(o.steps == 0 || option != "--steps",
                     "--steps was given twice, to verify and in the command; leave one out");
    }
  });
  const Interrupt interrupt;
  const dist::ScratchFolder scratch;
  size_t width = 0;
  for (const Variant& plan : plans) width = std::max(width, plan.text().size());
  std::optional<Trace> reference;
  std::string verdict = "identical";
  for (const Variant& plan : plans) {
    const Trace trace = run_plan(plan, o, scratch.path());
    const bool by_loss = plan.is_close_only() || plans[0].is_close_only();
    double apart = 0;
    std::string difference = reference ? difference_of(*reference, trace, by_loss, o.tolerance, apart) : "";
    if (!difference.empty() && plan.parts && plan.parts->cp > 1)
      difference += "; ranks of cp draw numbers of their own for dropout: compare without it";
    const std::string same = by_loss ? fmt::format("  losses within {:.1e}", apart) : "  same bits",
                      end = !reference           ? ""
                            : difference.empty() ? same
                                                 : "  differs: " + difference;
    fmt::print("{:<{}}  {} steps, {} parameters, last loss {:.6f}, {:.1f} s{}\n", plan.text(), width,
               trace.steps.size(), trace.steps.back().at("parameters").as_object().size(), loss_of(trace.steps.back()),
               trace.seconds, end);
    std::fflush(stdout);
    if (!difference.empty() && verdict == "identical")
      verdict = fmt::format("{} differs from {} first at {}; docs/verify.md says what to check", plan.text(),
                            plans[0].text(), difference);
    if (!reference) reference = trace;
  }
  if (plans.size() == 1) verdict = "one plan only: nothing to compare; give --plans two or more";
  fmt::print("{}\n", verdict);
  std::fflush(stdout);
  return verdict == "identical";
}

}  // namespace

void add_verify_command(CLI::App& app, Shared& shared) {
  shared.with_program.push_back("verify");
  const auto options = std::make_shared<VerifyOptions>();
  VerifyOptions& o = *options;
  CLI::App& sub =
      *app.add_subcommand("verify", "train by several plans, and compare the bits of every parameter after every step");
  sub.footer("usage: lockstep verify [OPTIONS] -- PROGRAM [ARGUMENTS...]");
  const OptionGroup add(sub);
  add("--plans", o.plans,
      "STRATEGY:RANKSxACCUMULATION, ...; strategies: ddp, zero0 to zero3, zero1-cpu to zero3-nvme (offload), axes "
      "as of gpt train --plan (dp2+pp2+tp2+zero1; losses with tp, cp and ep are compared, not bits), none; with "
      "options: ddp@bucket=0.1,overlap=off,transport=tcp:2x2");
  add("--vary", o.vary,
      "run every ddp and zero plan with each value: bucket=0.1,1,25, overlap=on,off or "
      "transport=threads,shm,tcp (may be repeated)")
      ->take_all();
  add("--steps", o.steps, "optimizer steps (default: as the command says)", CLI::PositiveNumber);
  add("--tolerance", o.tolerance,
      "allowed relative difference of losses for plans with tp, cp or ep (default: 1e-4, with products in 16 bits "
      "2e-2)",
      CLI::PositiveNumber);
  add("--timeout", o.timeout, "seconds that one plan may take", CLI::PositiveNumber);
  sub.callback([options, &program = shared.program] {
    options->command = program;
    as_usage([&] {
      LOCKSTEP_CHECK(
          !program.empty(),
          "verify: expected a program after --, such as lockstep verify -- build/apps/gpt train --dropout 0.1");
    });
    if (!verify(*options)) throw CLI::RuntimeError(1);
  });
}

}  // namespace apps
