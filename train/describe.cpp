// Describes what a program trains, for `lockstep plan` and `lockstep simulate`. See describe.h.
#include "train/describe.h"

#include <algorithm>
#include <optional>

#include "autograd/autocast.h"
#include "data/files.h"
#include "data/to_device.h"
#include "engine/model_shape.h"
#include "engine/params.h"
#include "tensor/environment.h"

namespace lockstep::train {

using data::Example, data::Json;

namespace {

/// Returns the optimizer as a configuration names it, or an empty object for a type that configurations do not know.
Json named(const optim::Optimizer& optimizer) {
  Json found(Json::Object{});
  for (const auto& type : engine::optimizer_types()) {
    if (engine::lower(type.name) != engine::lower(optimizer.name())) continue;
    found["type"] = type.name;
    if (optimizer.has("momentum")) found["params"] = Json::Object{{"momentum", optimizer.get(0, "momentum")}};
  }
  return found;
}

}  // namespace

Example first_of(const data::Dataset<Example>& data, int64_t samples) {
  std::vector<Example> all;
  for (int64_t i = 0; i < samples; ++i) all.push_back(data.get(i % data.size()));
  return data::collate(all);
}

void describe(Job& job, const Description& about) {
  nn::Module& model = about.model;
  model.to(job.device());
  Json config = job.config_json(about.own, about.values);
  if (about.optimizer && !config.find("optimizer"))
    if (Json found = named(*about.optimizer); found.find("type")) config["optimizer"] = std::move(found);
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
    std::optional<Autocast> low;  // as the engine computes
    if (parameters != f32) model.to(parameters), low.emplace(parameters);
    else if (const auto dtype = job.autocast()) low.emplace(*dtype);
    job.team().wait();  // start together: ranks on one host share its cores, as in training
    engine::measure(shape, model, list, batch.input, [&](const Variable& output) {
      return about.loss ? about.loss(output, batch.target) : list.loss ? list.loss(output, {batch.target}) : Variable();
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
  if (job.team().leads()) {
    const Json answer =
        Json::Object{{"model", engine::to_json(shape)}, {"config", config}, {"plan", job.options().plan}};
    data::write_atomically(*environment("LOCKSTEP_DESCRIBE"), answer.dump() + "\n");
  }
  throw Described();
}

void describe_if_asked(Job& job, nn::Module& model, const optim::Optimizer& optimizer,
                       const data::DatasetPtr<Example>& data, const Json& own, const AutoValues& values) {
  if (!environment("LOCKSTEP_DESCRIBE")) return;
  Description about{.model = model, .own = own, .values = values, .optimizer = &optimizer};
  if (data) about.batch = [&](int64_t samples) { return first_of(*data, samples); };
  describe(job, about);
}

}  // namespace lockstep::train
