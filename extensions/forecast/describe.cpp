// Describes a program's model and configuration, without training, for `lockstep plan -- PROGRAM` and `lockstep
// simulate -- PROGRAM`. These commands set LOCKSTEP_DESCRIBE to the name of the file to write.

#include <algorithm>
#include <optional>

#include "base/environment.h"
#include "data/files.h"
#include "data/to_device.h"
#include "extensions/forecast/plan.h"
#include "train/action.h"
#include "train/job.h"

namespace lockstep::train {

using data::Example, data::Json;

namespace {

/// Times the layers on every rank, and writes the times of the slowest rank to the file. Collective.
void describe(const Training& about) {
  TrainJob& job = about.job;
  nn::Module& model = about.model;
  model.to(job.device());
  Json config = job.config_json(about.own, about.values);
  if (about.optimizer && !config.find("optimizer"))
    if (engine::NamedConfig found = engine::named(*about.optimizer); !found.type.empty())
      config["optimizer"] = Json::Object{{"type", found.type}, {"params", std::move(found.params)}};
  const engine::Config resolved =
      engine::resolve(engine::config_from_json(config.dump(), "the program"), job.plan().dp);
  engine::ModelShape shape = engine::shape_of(model, 0, int64_t(about.per_sample), 0);
  shape.unit = about.unit;
  for (const auto& p : shape.parameters)
    if (p.is_table) shape.vocab = p.shape[0];
  if (about.batch) {
    const nn::LayerList list = model.layers();
    data::ToDevice to_device(job.device());
    const Example batch = to_device(about.batch(*resolved.train_micro_batch_size_per_gpu));
    const DType parameters = engine::parameter_dtype(resolved);
    std::optional<Autocast> low;  // autocast, as in the engine
    if (parameters != f32) model.to(parameters), low.emplace(parameters);
    else if (const auto dtype = job.autocast()) low.emplace(*dtype);
    job.team().wait();  // start together: ranks on one host share its cores, as in training
    const std::vector<Tensor> inputs = batch.inputs(), targets = batch.targets();
    engine::measure(shape, model, list, {inputs.begin(), inputs.end()}, [&](const Variable& output) {
      return about.loss ? about.loss(output, targets) : list.loss ? list.loss(output, targets) : Variable();
    });
    std::vector<double> mine;
    for (const auto& layer : shape.list) mine.push_back(layer.forward), mine.push_back(layer.backward);
    const std::vector<double> all = job.team().gather(mine, "seconds of layers");
    for (size_t i = 0; i < all.size(); ++i) {
      auto& layer = shape.list[i % mine.size() / 2];
      double& slowest = i % 2 == 0 ? layer.forward : layer.backward;
      slowest = std::max(slowest, all[i]);
    }
  }
  if (!job.team().leads()) return;
  const Json answer = Json::Object{{"model", engine::to_json(shape)}, {"config", config}, {"plan", job.options().plan}};
  data::write_atomically(*environment("LOCKSTEP_DESCRIBE"), answer.dump() + "\n");
}

}  // namespace

std::vector<CommandAction> forecast_actions() {
  return {{.variable = "LOCKSTEP_DESCRIBE", .what = "describe what it trains", .perform = describe}};
}

}  // namespace lockstep::train
