#pragma once
// A training program: its options and its ranks.
//
//   int main(int argc, char** argv) {
//     return train::run(argc, argv, "a network for digits", [](train::TrainJob& job) {  // runs on every rank
//       Net net;
//       train::Trainer(job, net, {.loss = loss, .data = digits}).fit();
//     });
//   }
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/json.h"
#include "engine/engine.h"
#include "parallel/mesh.h"
#include "train/options.h"
#include "train/team.h"

namespace CLI {
class App;
}

namespace lockstep::train {

struct ProgramValues;

/// A rank's view of the run before there is a model: options, devices, plan, configuration.
class TrainJob {
 public:
  /// Collective. Error for a plan that does not fit the ranks or contradicts other options.
  TrainJob(const TrainOptions& options, const Team& team);
  TrainJob(const TrainJob&) = delete;
  const TrainOptions& options() const { return options_; }  ///< the options; --precision auto is already replaced
  const Team& team() const { return team_; }
  Device device() const { return device_; }
  /// The devices of --parallel dp:N, starting with the first.
  std::vector<Device> devices() const;
  const parallel::Plan& plan() const { return mesh_->plan(); }  ///< how the ranks share the work
  /// The process groups of the plan, for models that need one when they are constructed (moe::MoeLayer).
  const parallel::Mesh& mesh() const { return *mesh_; }
  /// True if this rank prints.
  bool talks() const { return team_.leads() && !options_.json; }
  /// The engine's configuration. Keys that the file (--config) and --set lack come from the other options, then from
  /// `own`, the program's defaults, which also replace "auto". Extensions complete the rest from `values`
  /// (program_values.h). One Error lists all contradictions.
  engine::Config config(const data::Json& own, const ProgramValues& values) const;
  engine::Config config(const data::Json& own = data::Json::Object()) const;
  /// The configuration of config() as JSON, before it is parsed.
  data::Json config_json(const data::Json& own, const ProgramValues& values) const;
  /// The autocast dtype of --precision: f16 or none. There is none if the parameters themselves have 16 bits: with
  /// bf16, with the precisions of extensions, and with f16 if fp16.enabled is "auto" in the file.
  std::optional<DType> autocast() const;
  /// Prints the precision if it is bf16 because --precision is auto and the device has tensor cores for bf16.
  void print_precision() const;
  /// The configuration file merged with --set, unchanged otherwise.
  const data::Json& file() const { return json_; }
  std::string origin() const;  ///< the file's name for messages, or "the options"

 private:
  void choose_precision();   // replaces "auto"
  std::string half() const;  // the file's section that gives the parameters 16 bits: "fp16", "bf16", or ""
  TrainOptions options_;
  bool by_device_ = false;  // true: the device decided the precision
  const Team& team_;
  Device device_;
  data::Json json_;
  struct OwnWorld {  // a group of one rank, made if the process trains alone
    ~OwnWorld();
    bool made = false;
  } world_;
  std::unique_ptr<parallel::Mesh> mesh_;
};

/// The work of one rank.
using Body = std::function<void(TrainJob& job)>;
/// main() of a program without options of its own. Returns the exit code: 0 success, 1 an error, 2 wrong usage, 128 +
/// signal if a signal stopped the run.
int run(int argc, char** argv, const std::string& about, const Body& body, TrainOptions defaults = {});
/// run() for a program with options of its own. It needs no header of CLI11, which takes long to compile.
int program(int argc, char** argv, const std::string& about, const std::vector<ProgramOption>& options,
            const Body& body, TrainOptions defaults = {});
/// program() for a program that has a CLI::App. Call add_options(app, options) before.
int run(CLI::App& app, int argc, char** argv, TrainOptions& options, const Body& body);
/// run() for a subcommand: runs `body` on every rank. identity: text about build and options, equal on all ranks.
void start(const TrainOptions& options, const std::string& identity, const Body& body);

/// Further options of prepare().
struct PrepareOptions {
  double warmup_steps = 0;                   ///< steps of warmup, for a schedule in the file
  data::Json config = data::Json::Object();  ///< the program's defaults for the engine's configuration
  optim::GradScaler* grad_scaler = nullptr;  ///< required for --precision f16; must outlive the engine
};
/// Returns the engine's arguments. Extensions complete the configuration from the model, the optimizer, the data and
/// `values`.
engine::InitializeArgs prepare_args(TrainJob& job, nn::Module& model, optim::Optimizer& optimizer,
                                    data::DatasetPtr<data::Example> data, optim::Schedule* schedule,
                                    const PrepareOptions& options, ProgramValues values);
engine::InitializeArgs prepare_args(TrainJob& job, nn::Module& model, optim::Optimizer& optimizer,
                                    data::DatasetPtr<data::Example> data, optim::Schedule* schedule,
                                    const PrepareOptions& options = {});
/// Puts model, optimizer, data and schedule under the job's configuration, for a training loop of your own:
///
///   auto [model, optimizer, loader, schedule] = train::prepare(job, net, adam, digits);
///   for (auto& [x, y] : *loader) {
///     model.backward(cross_entropy(model(x), y));
///     model.step();
///   }
///
/// The arguments must outlive the result. Error for a plan with pipeline or tensor parallelism, which needs a Trainer.
template <class M>
engine::Initialized<M> prepare(TrainJob& job, M& model, optim::Optimizer& optimizer,
                               data::DatasetPtr<data::Example> data = nullptr, optim::Schedule* schedule = nullptr,
                               const PrepareOptions& options = {}) {
  return engine::initialize(model, prepare_args(job, model, optimizer, std::move(data), schedule, options));
}

}  // namespace lockstep::train
