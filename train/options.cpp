// Command-line options of training programs: their checks, and the options that take effect at once. See options.h.
#include "train/options.h"

#include <algorithm>
#include <cstdlib>

#include "base/check.h"
#include "base/classic_text.h"
#include "base/suggest.h"
#include "base/threads.h"
#include "data/json.h"
#include "engine/section.h"
#include "tensor/device.h"
#include "tensor/random.h"
#include "train/cli.h"
#include "train/option_group.h"

namespace lockstep::train {

namespace {

/// The text of --help about the precisions of extensions.
std::string precisions_help() {
  std::string text;
  for (const engine::Precision& added : engine::precisions())
    text += added.word + ": as bf16, with " + added.help + "; ";
  return text;
}

/// Returns a check of --parallel. devices: allow dp.
OptionCheck strategy(bool devices) {
  return [devices](const std::string& text) {
    if (devices && text.starts_with("dp:")) {
      const std::string wrong = integer(1, 64)(text.substr(3));
      return wrong.empty() ? wrong : "dp:N: " + wrong;
    }
    return one_of(devices ? std::vector<std::string>{"auto", "ddp", "dp", "none"}
                          : std::vector<std::string>{"auto", "ddp", "none"})(text);
  };
}

}  // namespace

std::vector<std::string> with_precisions(std::vector<std::string> words) {
  for (const engine::Precision& added : engine::precisions()) words.push_back(added.word);
  return words;
}

OptionCheck integer(int64_t least, int64_t greatest) {
  return [=](const std::string& text) {
    const auto value = read_number<int64_t>(text);
    if (value && *value >= least && *value <= greatest) return std::string();
    return str("expected a whole number from ", least, " to ", greatest, ", got '", text, "'");
  };
}

OptionCheck number(double least, double greatest) {
  return [=](const std::string& text) {
    const auto value = read_number<double>(text);
    if (value && *value >= least && *value <= greatest) return std::string();
    return str("expected a number from ", least, " to ", greatest, ", got '", text, "'");
  };
}

OptionCheck one_of(std::vector<std::string> words) {
  return [words = std::move(words)](const std::string& text) {
    return std::ranges::count(words, text) ? ""
                                           : text + " not in {" + list_names(words, words.size()) + "}; choose one";
  };
}

void add_parallel_options(CLI::App& app, ParallelOptions& o, bool devices) {
  const OptionGroup add(app, "Parallel");
  add.in_group(app.add_option_function<std::string>(
                   "--parallel", [&o](const std::string& text) { o.read_strategy(text); },
                   devices ? "how ranks train together: ddp; dp or dp:N: one process, several devices; none "
                             "(default: ddp when there are ranks)"
                           : "how ranks train together: ddp; none (default: ddp when there are ranks)"))
      ->check(strategy(devices));
  add("--ranks", o.ranks, "ranks as threads of this process (processes: lockstep run -n N -- ...)", integer(1, 64));
  add("--accumulate", o.accumulate, "micro-batches of a step at each rank", integer(1, max_size));
  add("--offload", o.offload,
      "with ZeRO: keep optimizer state, and stage 3's parameters, in host memory (cpu) or in a file (nvme:FOLDER). "
      "Same bits");
  add("--trace", o.trace,
      "folder for a timeline of every rank, rank-N.json, for https://ui.perfetto.dev and lockstep report; of one rank "
      "also a file that ends in .json");
  add("--trace-bits", o.trace_bits, "file for hashes of all parameters after every step (see lockstep verify)");
}

void add_common_options(CLI::App& app, CommonOptions& o, bool training, bool devices) {
  const OptionGroup add(app);
  add("--seed", o.seed, "seed of everything random", integer(0, INT64_MAX));
  add("--threads", o.threads, "threads of operations (default: all cores given to the process)", integer(1, 4096));
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

void add_options(CLI::App& app, TrainOptions& o, bool devices) {
  add_common_options(app, o, true, devices);
  const OptionGroup add(app), engine(app, "Engine");
  add("--batch", o.batch, "samples of a micro-batch", integer(1, max_size));
  add("--epochs", o.epochs, "passes over the training data", integer(1, steps_limit));
  add("--steps", o.steps, "end after this many steps (0: all epochs)", integer(0, steps_limit))->capture_default_str();
  add("--eval-every", o.eval_every, "steps between evaluations (0: at the end of each epoch)", integer(0, steps_limit))
      ->capture_default_str();
  add("--save-every", o.save_every, "steps between checkpoints (0: at the end of each epoch)", integer(0, steps_limit))
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

void ParallelOptions::read_strategy(const std::string& text) {
  const size_t colon = std::min(text.find(':'), text.size());
  strategy = text.substr(0, colon);
  devices = colon < text.size() ? std::stoi(text.substr(colon + 1)) : 0;
}

void go_on_after_restart(CommonOptions& o) {
  const char* restarts = std::getenv("TORCHELASTIC_RESTART_COUNT");
  if (restarts && std::atoi(restarts) > 0 && !o.out.empty()) o.resume = true;
}

bool TrainOptions::is_given(std::string_view option) const { return std::ranges::count(given, option) > 0; }

std::string CommonOptions::name_of(const std::string& option) const {
  for (const auto& [ours, theirs] : names)
    if (ours == option) return theirs;
  return option;
}

void apply_common_options(const CommonOptions& o) {
  as_usage([&] {
    LOCKSTEP_CHECK(!o.resume || !o.out.empty(), o.name_of("--resume"), " needs ", o.name_of("--out"),
                   " DIR, the folder of the run to continue");
    LOCKSTEP_CHECK(!data::not_utf8(data::Json(o.out)), o.name_of("--out"), " ", o.out,
                   ": expected a path in UTF-8, because files of the run store it; rename it");
    parse_device(o.device);
  });
  if (o.threads > 0) set_threads(o.threads);
  manual_seed(o.seed);
}

}  // namespace lockstep::train
