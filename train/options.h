#pragma once
// The command-line options of training programs. A program adds all of them in one line:
//
//   train::TrainOptions options;
//   train::add_options(app, options);  // app: a CLI::App
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace CLI {
class App;
}

namespace lockstep::train {

inline constexpr int64_t steps_limit = 1'000'000'000'000, max_size = 1 << 20;  ///< limits of options

/// Options for training on several ranks.
struct ParallelOptions {
  std::string strategy = "auto";  ///< ddp, dp or none; auto: ddp if there are ranks
  int devices = 0;                ///< dp: number of devices of --device's type (on the CPU, virtual ones); 0: all
  int ranks = 0;                  ///< ranks as threads of this process; 0: the ranks of the job, or one process alone
  int64_t accumulate = 1;         ///< micro-batches per step on each rank
  std::string offload = "none";   ///< for ZeRO: cpu, or nvme:FOLDER
  std::string trace_bits = {};    ///< file for a line of hashes per step, for `lockstep verify`
  std::string trace = {};         ///< folder for the ranks' timelines; of one rank also a file
  std::string identity = {};      ///< text about build and options, which must be equal on all ranks
  void read_strategy(const std::string& text);  ///< parses "ddp", "dp:2"
};

/// Options of all training programs.
struct CommonOptions {
  std::string out = {};  ///< folder for metrics.jsonl, config.json and checkpoints
  bool resume = false;   ///< true: continue from the checkpoint in `out`
  bool ema = false;      ///< true, in programs that use a run: evaluate with averaged parameters
  bool json = false;     ///< true: print the final figures as JSON
  int threads = 0;       ///< threads of operations; 0: all cores
  uint64_t seed = 1;
  std::string device = "cpu";  ///< cpu, cuda, cuda:N
  /// Other names for options in Errors, if the caller has no command line: {{"--out", "output_dir"}}.
  std::vector<std::pair<std::string, std::string>> names = {};
  /// The name by which Errors call an option: that in `names`, else the option itself.
  std::string name_of(const std::string& option) const;
  ParallelOptions parallel = {};
};

/// Options of programs that train with a Trainer.
struct TrainOptions : CommonOptions {
  std::string config = {};            ///< the engine's configuration: a file or JSON text
  std::vector<std::string> set = {};  ///< keys of the configuration, "zero_optimization.stage=2"
  std::string plan = {};              ///< how ranks share the work: "dp2+pp2+tp2+zero1"
  bool no_graph = false;              ///< CUDA: true: run steps directly instead of recording and replaying graphs
  /// "f32", "tf32" (on devices that have it), "bf16" (parameters, with f32 master weights), "f16" (autocast), and those
  /// of extensions (engine/section.h); "auto": bf16 on CUDA devices with tensor cores for bf16, else f32.
  std::string precision = "auto";
  int64_t batch = 16;                      ///< samples of a micro-batch
  int64_t epochs = 1, steps = 0;           ///< passes over the data; steps of the run (0: those of all epochs)
  int64_t eval_every = 0, save_every = 0;  ///< in steps; 0: at the end of each epoch, or of the run
  std::vector<std::string> given = {};     ///< options that are on the command line, without "--"
  /// True if the option is on the command line.
  bool is_given(std::string_view option) const;
};

/// A check of an option's text, before any rank starts: returns "" if the text is valid, else an error message.
/// (CLI11's own checks accept numbers beyond 64 bits, and NaN.)
using OptionCheck = std::function<std::string(const std::string&)>;
/// Returns a check that the text is an integer from `least` to `greatest`.
OptionCheck integer(int64_t least, int64_t greatest);
/// Returns a check that the text is a number from `least` to `greatest`.
OptionCheck number(double least, double greatest);
/// Returns a check that the text is one of these words.
OptionCheck one_of(std::vector<std::string> words);
/// An option of a program, beside those above.
struct ProgramOption {
  std::string names;  ///< "--depth", "-d,--depth", or "file" for a word without a name
  /// The variable that it sets, and whose value is the default. A bool makes a flag.
  std::variant<bool*, int*, int64_t*, uint64_t*, float*, double*, std::string*, std::vector<std::string>*> to;
  std::string help = {};   ///< for --help
  OptionCheck check = {};  ///< default: any value of the type
  bool required = false;   ///< true: the command line must give it
};

/// Sets `resume` if a launcher has restarted the process, so that a restarted run continues from its checkpoint.
void go_on_after_restart(CommonOptions& options);

/// Adds the options of ParallelOptions. devices: true allows --parallel dp.
void add_parallel_options(CLI::App& app, ParallelOptions& o, bool devices = true);
/// Adds the common options, then those of training, or --ema if `training` is false. devices: true allows dp.
void add_common_options(CLI::App& app, CommonOptions& o, bool training, bool devices = true);
/// Adds all of Options. devices: true allows --parallel dp, for programs that set TrainerOptions::forward.
void add_options(CLI::App& app, TrainOptions& o, bool devices = false);

/// Applies threads and seed. UsageError for an invalid --out or --device, and for --resume without --out.
void apply_common_options(const CommonOptions& options);

}  // namespace lockstep::train
