#pragma once
// The command-line options of training programs. A program adds all of them in one line:
//
//   train::Options options;
//   train::add_options(app, options);  // app: a CLI::App
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/classic_text.h"

namespace lockstep::train {

/// A check of an option's text, before any rank starts: returns "" if the text is valid, else an error message.
/// (CLI11's own checks accept numbers beyond 64 bits, and NaN.)
using OptionCheck = std::function<std::string(const std::string&)>;
/// Returns a check that the text is an integer from `least` to `most`.
OptionCheck whole(int64_t least, int64_t most);
/// Returns a check that the text is a number from `least` to `most`.
OptionCheck number(double least, double most);
/// Returns a check that the text is one of these words.
OptionCheck one_of(std::vector<std::string> words);
OptionCheck strategy(bool devices);  ///< returns a check of --parallel. devices: allow dp
/// These words and the precisions of extensions.
std::vector<std::string> with_precisions(std::vector<std::string> words);
/// What --help says about them.
std::string precisions_help();
inline constexpr int64_t most_steps = 1'000'000'000'000, most_size = 1 << 20;  ///< limits of options

/// Options for training on several ranks.
struct ParallelOptions {
  std::string strategy = "auto";  ///< ddp, dp or none; auto: ddp if there are ranks
  int devices = 0;                ///< dp: number of devices of the model's type (on the CPU, virtual ones); 0: all
  int ranks = 0;                  ///< ranks as threads of this process; 0: the ranks of the job, or one process alone
  int64_t accumulate = 1;         ///< micro-batches per step on each rank
  std::string offload = "none";   ///< for ZeRO: cpu, or nvme:FOLDER
  std::string trace_bits;         ///< file for a line of hashes per step, for `lockstep verify`
  std::string trace;              ///< folder for the ranks' timelines; of one rank also a file
  std::string identity;           ///< text about build and options, which must be equal on all ranks
  void read_strategy(const std::string& text);  ///< parses "ddp", "dp:2"
};

/// Options of all training programs.
struct CommonOptions {
  std::string out;      ///< folder for metrics.jsonl, config.json and checkpoints
  bool resume = false;  ///< true: continue from the checkpoint in `out`
  bool ema = false;     ///< true, in programs that use a run: evaluate with averaged parameters
  bool json = false;    ///< true: print the final figures as JSON
  int threads = 0;      ///< threads of operations; 0: all cores
  uint64_t seed = 1;
  std::string device = "cpu";  ///< cpu, cuda, cuda:N
  /// Other names for options in Errors, if the caller has no command line: {{"--out", "output_dir"}}.
  std::vector<std::pair<std::string, std::string>> names;
  /// The name by which Errors call an option: that in `names`, else the option itself.
  std::string name_of(const std::string& option) const;
  ParallelOptions parallel;
};

/// Options of programs that train with a Trainer.
struct Options : CommonOptions {
  std::string config;            ///< the engine's configuration: a file or JSON text
  std::vector<std::string> set;  ///< keys of the configuration, "zero_optimization.stage=2"
  std::string plan;              ///< how ranks share the work: "dp2+pp2+tp2+zero1"
  bool no_graph = false;         ///< CUDA: true: run steps directly instead of recording and replaying graphs
  /// "f32", "tf32" (on devices that have it), "bf16" (parameters, with f32 master weights), "f16" (autocast), and those
  /// of extensions (engine/section.h); "auto": bf16 on CUDA devices with tensor cores for bf16, else f32.
  std::string precision = "auto";
  int64_t batch = 16;                      ///< samples of a micro-batch
  int64_t epochs = 1, steps = 0;           ///< passes over the data; steps of the run, 0: of all epochs
  int64_t eval_every = 0, save_every = 0;  ///< in steps; 0: at the end of each epoch, or of the run
  std::vector<std::string> given;          ///< options that are on the command line, without "--"
  /// True if the option is on the command line.
  bool is_given(std::string_view option) const { return std::find(given.begin(), given.end(), option) != given.end(); }
};

/// Sets `resume` if a launcher has restarted the process, so that a restarted run continues from its checkpoint.
void go_on_after_restart(CommonOptions& options);

/// Adds options to a group of a command's help ("": the first group). A bool becomes a flag. The help shows defaults
/// other than 0 and "".
template <class App> class OptionGroup {
 public:
  explicit OptionGroup(App& app, std::string group = "") : app_(app), group_(std::move(group)) {}
  template <class T>
  auto* operator()(const std::string& names, T& to, const std::string& what, const auto&... checks) const {
    if constexpr (std::is_same_v<T, bool>) {
      return in_group(app_.add_flag(names, to, what));
    } else if constexpr (std::is_floating_point_v<T>) {  // CLI11's own conversion depends on the locale
      auto* option = app_.template add_option_function<std::string>(
          names, [&to](const std::string& text) { to = T(*read_number<double>(text)); }, what);
      in_group(option)->type_name("FLOAT");
      (option->check(checks), ...);
      option->check(number(-HUGE_VAL, HUGE_VAL));
      return to == T() ? option : option->default_str(str(to));
    } else {
      auto* option = in_group(app_.add_option(names, to, what));
      (option->check(checks), ...);
      if constexpr (std::is_integral_v<T>) return to == T() ? option : option->default_str(str(to));
      else return to == T() ? option : option->capture_default_str();
    }
  }
  /// Moves an option of CLI11 to this group of the help.
  auto* in_group(auto* option) const { return group_.empty() ? option : option->group(group_); }

 private:
  App& app_;
  std::string group_;
};

/// Adds the options of ParallelOptions. devices: true allows --parallel dp.
template <class App> void add_parallel_options(App& app, ParallelOptions& o, bool devices = true) {
  const OptionGroup add(app, "Parallel");
  add.in_group(app.template add_option_function<std::string>(
                   "--parallel", [&o](const std::string& text) { o.read_strategy(text); },
                   devices ? "how ranks train together: ddp; dp or dp:N: one process, several devices; none "
                             "(default: ddp when there are ranks)"
                           : "how ranks train together: ddp; none (default: ddp when there are ranks)"))
      ->check(strategy(devices));
  add("--ranks", o.ranks, "ranks as threads of this process (processes: lockstep run -n N -- ...)", whole(1, 64));
  add("--accumulate", o.accumulate, "micro-batches of a step at each rank", whole(1, most_size));
  add("--offload", o.offload,
      "with ZeRO: optimizer state, and stage 3's parameters, in host memory (cpu) or in a file (nvme:FOLDER). Same "
      "bits");
  add("--trace", o.trace,
      "folder for a timeline of every rank, rank-N.json, for https://ui.perfetto.dev and lockstep report; of one rank "
      "also a file that ends in .json");
  add("--trace-bits", o.trace_bits, "file for hashes of all parameters after every step (see lockstep verify)");
}

/// Adds the common options, then those of training, or --ema if `training` is false. devices: true allows dp.
template <class App> void add_common_options(App& app, CommonOptions& o, bool training, bool devices = true) {
  const OptionGroup add(app);
  add("--seed", o.seed, "seed of everything random", whole(0, INT64_MAX));
  add("--threads", o.threads, "threads of operations (default: all cores given to the process)", whole(1, 4096));
  add("--device", o.device, "cpu; cuda (ranks of a machine take its devices in turn); cuda:N");
  add("--json", o.json, "print all final figures as one line of JSON");
  if (!training) {
    add("--ema", o.ema, "use the averaged parameters of a run with --set ema.decay=0.999");
    return;
  }
  add("--out", o.out, "folder for config.json, metrics.jsonl and checkpoints");
  add("--resume", o.resume, "continue from the checkpoint in --out, or start if there is none");
  app.parse_complete_callback([&o] { go_on_after_restart(o); });
  add_parallel_options(app, o.parallel, devices);
}

/// Adds all of Options. devices: true allows --parallel dp, for programs that set TrainerOptions::forward.
template <class App> void add_options(App& app, Options& o, bool devices = false) {
  add_common_options(app, o, true, devices);
  const OptionGroup add(app), engine(app, "Engine");
  add("--batch", o.batch, "samples of a micro-batch", whole(1, most_size));
  add("--epochs", o.epochs, "passes over the training data", whole(1, most_steps));
  add("--steps", o.steps, "end after this many steps (0: all epochs)", whole(0, most_steps))->capture_default_str();
  add("--eval-every", o.eval_every, "steps between evaluations (0: at the end of each epoch)", whole(0, most_steps))
      ->capture_default_str();
  add("--save-every", o.save_every, "steps between checkpoints (0: at the end of each epoch)", whole(0, most_steps))
      ->capture_default_str();
  add("--precision", o.precision,
      "f32; tf32 on devices that have it; bf16: parameters and activations, with f32 master weights; f16: matrix "
      "products (autocast); " +
          precisions_help() + "auto: bf16 on CUDA devices from compute capability 8.0 on, else f32",
      one_of(with_precisions({"auto", "f32", "tf32", "bf16", "f16"})));
  add("--no-graph", o.no_graph, "on CUDA: run steps directly instead of recording and replaying graphs (same bits)");
  engine("--config", o.config,
         "DeepSpeed's configuration file for the engine (lockstep config says what a file means)");
  engine("--set", o.set, "set one key of the configuration: zero_optimization.stage=2; may be repeated")
      ->allow_extra_args(false);
  engine("--plan", o.plan,
         "how ranks share the work: dp2+pp2+tp2+zero1 (replicas, pipeline stages, tensor parallelism, ZeRO; cp: "
         "context, ep: expert parallelism)");
  app.parse_complete_callback([&o, &app] {
    go_on_after_restart(o);
    for (const auto* option : app.get_options())
      if (option->count() > 0) o.given.push_back(option->get_single_name());
  });
}

/// Applies threads and seed. UsageError for an invalid --out or --device, and for --resume without --out.
void apply_common_options(const CommonOptions& options);

}  // namespace lockstep::train
