#pragma once
// A program of one's own: its options, its ranks, and what it makes of them.
//
//   int main(int argc, char** argv) {
//     return train::run(argc, argv, "a network for digits", [](train::Job& job) {      // on every rank
//       Net net;
//       train::Trainer(job, net, {.loss = loss, .data = digits}).fit();
//     });
//   }
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "data/json.h"
#include "engine/engine.h"
#include "parallel/mesh.h"
#include "train/auto.h"
#include "train/options.h"
#include "train/team.h"

namespace CLI {
class App;
}

namespace lockstep::train {

/// What a rank knows of the run before it has a model.
class Job {
 public:
  /// Collective. Error for a plan that does not fit the ranks, or that contradicts the other options.
  Job(const Options& options, const Team& team);
  Job(const Job&) = delete;
  const Options& options() const { return options_; }
  const Team& team() const { return team_; }
  Device device() const { return device_; }
  /// Of --parallel dp:N, from the first on.
  std::vector<Device> devices() const;
  const parallel::Plan& plan() const { return mesh_->plan(); }
  /// Who shares the model and how: for models that need a group when they are made (moe::Layer).
  const parallel::Mesh& mesh() const { return *mesh_; }
  /// Whether this rank prints.
  bool talks() const { return team_.leads() && !options_.json; }
  /// The engine's configuration: --config, then --set, then the other options, where the file does not say the same
  /// key. `own`: what the program would have for keys that neither names; "auto" stands for it too, and for `values`.
  /// One Error lists all that contradicts.
  engine::Config config(const data::Json& own = data::Json::Object(), const AutoValues& values = {}) const;
  /// As a file would say it.
  data::Json config_json(const data::Json& own = data::Json::Object(), const AutoValues& values = {}) const;
  /// What forwards run under by --precision: f16 or bf16; nothing where a file's fp16.enabled or bf16.enabled is
  /// "auto", and takes it.
  std::optional<DType> autocast() const;
  /// The file and --set, as they are, and what messages call them.
  const data::Json& file() const { return json_; }
  std::string origin() const;

 private:
  std::string precision() const;  // --precision, but "f32" where the file takes it
  Options options_;
  const Team& team_;
  Device device_;
  data::Json json_;
  struct OwnWorld {  // of one
    ~OwnWorld();
    bool made = false;
  } world_;
  std::unique_ptr<parallel::Mesh> mesh_;
};

using Body = std::function<void(Job& job)>;
/// main() of a program without options of its own. Gives back the exit code: 0 done, 1 an error, 2 wrong usage, 128 +
/// signal for a run that a signal stopped.
int run(int argc, char** argv, const std::string& about, const Body& body, Options defaults = {});
/// The same for a program that has some: `app` has add_options(app, options).
int run(CLI::App& app, int argc, char** argv, Options& options, const Body& body);
/// Its middle, for a subcommand: runs `body` on every rank. `identity`: what must be equal on all ranks.
void start(const Options& options, const std::string& identity, const Body& body);

/// Where `lockstep plan` or `simulate` only ask what this program trains: says it, and throws.
void describe_if_asked(Job& job, nn::Module& model, const optim::Optimizer& optimizer,
                       const data::DatasetPtr<data::Example>& data, const data::Json& own = data::Json::Object(),
                       const AutoValues& values = {});
/// What prepare() may be told besides.
struct PrepareOptions {
  double warmup_steps = 0;                   ///< of a schedule that the file has with "auto"
  data::Json config = data::Json::Object();  ///< of the engine, for keys that neither file nor options name
  optim::GradScaler* grad_scaler = nullptr;  ///< for --precision f16; must outlive the engine
};
/// What the engine is told, with "auto" filled in from what is here. values: what else is known.
engine::InitializeArgs prepare_args(Job& job, nn::Module& model, optim::Optimizer& optimizer,
                                    data::DatasetPtr<data::Example> data, optim::Schedule* schedule,
                                    const PrepareOptions& options = {}, AutoValues values = {});
/// For a loop of one's own: model, optimizer, data and schedule under the job's configuration. The loop stays as it is:
///
///   auto [model, optimizer, loader, schedule] = train::prepare(job, net, adam, digits);
///   for (auto& [x, y] : *loader) {
///     model.backward(cross_entropy(model(x), y));
///     model.step();
///   }
///
/// What is given must outlive it. Error for a plan of stages or slices: these need a Trainer, which knows what a step
/// is; and for a file that says of the optimizer what it is not ("auto" takes its values).
template <class M>
engine::Initialized<M> prepare(Job& job, M& model, optim::Optimizer& optimizer,
                               data::DatasetPtr<data::Example> data = nullptr, optim::Schedule* schedule = nullptr,
                               const PrepareOptions& options = {}) {
  return engine::initialize(model, prepare_args(job, model, optimizer, std::move(data), schedule, options));
}

}  // namespace lockstep::train
