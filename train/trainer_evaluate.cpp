// Evaluation by a Trainer: means of loss and metrics, predictions, the best checkpoint.
#include <algorithm>
#include <filesystem>
#include <numeric>

#include "autograd/ops.h"
#include "base/clock.h"
#include "trace/trace.h"
#include "train/averaged.h"
#include "train/trainer_impl.h"

namespace lockstep::train {

std::vector<double> means_of(const data::Dataset<Example>& samples, int64_t batch, Device device,
                             const std::function<std::vector<Variable>(const Example&)>& measures) {
  data::ToDevice to_device(device);
  const NoGrad no_grad;
  std::vector<double> means;
  for (int64_t first = 0; first < samples.size(); first += batch) {
    std::vector<int64_t> indices(size_t(std::min(batch, samples.size() - first)));
    std::iota(indices.begin(), indices.end(), first);
    const std::vector<Variable> found = measures(to_device(batch_of(samples, indices)));
    means.resize(found.size());
    for (size_t i = 0; i < found.size(); ++i) means[i] += found[i].item() * double(indices.size());
  }
  for (double& mean : means) mean /= double(samples.size());
  return means;
}

std::vector<std::pair<std::string, double>> Trainer::Impl::evaluate(int64_t max_batches) {
  if (!o.evaluate) return {};
  const trace::Scope scope("evaluate", trace::Category::evaluation);
  auto found = evaluate_once(max_batches);
  if (!engine->optimizer().keeps_average()) return found;
  const Averaged average(engine->zero());
  for (const auto& [name, value] : evaluate_once(max_batches)) found.emplace_back("ema_" + name, value);
  return found;
}

std::vector<std::pair<std::string, double>> Trainer::Impl::evaluate_once(int64_t max_batches) {
  return measure(*o.evaluate, max_batches, o.evaluated, bool(o.compute_metrics)).metrics;
}

Measure Trainer::Impl::loss_measure() const {
  if (o.loss) return o.loss;
  return model->layers().loss;
}

/// Distributes `max_batches` batches of `samples` (0: all) over the replicas, and averages their losses and metrics.
/// With keeps_outputs, every rank also gets the model's outputs for all batches.
Predictions Trainer::Impl::measure(const data::Dataset<Example>& samples, int64_t max_batches,
                                   const std::string& prefix, bool keeps_outputs) {
  const int64_t size = samples.size(),
                batch = std::min(o.batches ? engine->train_micro_batch_size_per_gpu() : o.evaluate_batch, size),
                used = max_batches > 0 ? std::min(max_batches * batch, size) : size;
  const int64_t needed = (used + batch - 1) / batch, dp = job.plan().dp, each = (needed + dp - 1) / dp;
  const auto count = [&](int64_t i) { return std::min(batch, used - i * batch); };
  const auto indices_of = [&](int64_t i) {
    std::vector<int64_t> indices;
    for (int64_t k = i * batch; k < i * batch + count(i); ++k) indices.push_back(k * size / used);
    return indices;
  };
  const auto data = [&](int64_t i) -> std::optional<pipeline::Sample> {
    // A replica with fewer batches computes the last batch again, without counting it.
    return sample(batch_of(samples, indices_of(std::min(i, needed - 1))));
  };
  const auto kept = [&](const pipeline::Values& out, const std::vector<Tensor>& targets) -> Variable {
    return o.preprocess_logits_for_metrics ? o.preprocess_logits_for_metrics(out.at(0), targets) : out.at(0);
  };
  std::vector<int64_t> shape;  // shape of what predictions keep of a whole batch
  if (keeps_outputs) {
    constexpr int max_dims = 6;
    const auto dims = [&](const pipeline::Values& out, const std::vector<Tensor>& targets) -> Variable {
      std::vector<double> all(max_dims + 1);
      const Shape own = kept(out, targets).shape();
      LOCKSTEP_CHECK(own.rank() >= 1 && own.rank() <= max_dims, "[predict] expected outputs of 1 to ", max_dims,
                     " dimensions, got ", own, "; reshape them in forward()");
      all[0] = own.rank();
      for (int d = 0; d < own.rank(); ++d) all[size_t(d) + 1] = double(own[d]);
      return Tensor::from(all, {max_dims + 1});
    };
    const std::vector<double> found = engine->eval_batches(data, 1, dims, max_dims + 1);
    for (int d = 0; d < int(found[0]); ++d) shape.push_back(int64_t(found[size_t(d) + 1]));
    LOCKSTEP_CHECK(shape[0] == count(0), "[predict] expected outputs with a row for each of ", count(0),
                   " samples, got ", Shape(shape), "; return one row per sample");
  }
  const int64_t of_batch = keeps_outputs ? numel_of(Shape(shape)) : 0, row = keeps_outputs ? of_batch / shape[0] : 0;
  const Measure loss = loss_measure();
  const auto all = [&](const pipeline::Values& out, const std::vector<Tensor>& targets) {
    std::vector<Variable> values{engine::sum_and_tokens(loss(out.at(0), targets), o.tokens ? o.tokens(targets) : -1)};
    for (const auto& [name, measure] : o.metrics) values.push_back(measure(out.at(0), targets).to(f32).reshape({1}));
    if (keeps_outputs) {
      const Variable own = kept(out, targets);
      values.push_back(own.to(f32).reshape({own.numel()}));
      if (const int64_t rest = of_batch - own.numel(); rest > 0)
        values.push_back(zeros({rest}, {.device = own.device()}));
    }
    return cat(values, 0);
  };
  const size_t figures = 2 + o.metrics.size(), n = figures + size_t(of_batch);
  const std::vector<double> found = engine->eval_batches(data, int(each), all, int(n));
  Predictions p;
  for (size_t v = 0; v < figures; ++v) {
    // v = 1 is no metric: it holds each loss's weight, the number of targets (or < 0: weigh by the number of samples).
    if (v == 1) continue;
    double sum = 0, weight = 0;
    for (int64_t i = 0; i < needed; ++i) {
      const double value = found[size_t(i) * n + v], tokens = v == 0 ? found[size_t(i) * n + 1] : -1;
      sum += tokens >= 0 ? value : value * double(count(i));
      weight += tokens >= 0 ? tokens : double(count(i));
    }
    p.metrics.emplace_back(prefix + "_" + (v == 0 ? "loss" : o.metrics[v - 2].first), sum / weight);
  }
  if (!keeps_outputs) return p;
  std::vector<float> outputs;
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < needed; ++i) {
    const auto from = found.begin() + i * int64_t(n) + int64_t(figures);
    outputs.insert(outputs.end(), from, from + count(i) * row);
    for (const int64_t k : indices_of(i)) indices.push_back(k);
  }
  shape[0] = used;
  p.predictions = Tensor::from(outputs, Shape(shape));
  Example labels = batch_of(samples, indices);
  p.label_ids = labels.target, p.more_label_ids = std::move(labels.more_targets);
  if (!o.compute_metrics) return p;
  const auto own = o.compute_metrics(p);
  std::vector<double> values;  // all ranks take rank 0's values: they must agree on the best model and on when to stop
  for (const auto& [name, value] : own) values.push_back(job.team().leads() ? value : 0);
  job.team().sum(values, "compute_metrics");
  for (size_t i = 0; i < own.size(); ++i)
    p.metrics.emplace_back(own[i].first.starts_with(prefix + "_") ? own[i].first : prefix + "_" + own[i].first,
                           values[i]);
  return p;
}

/// Records the checkpoint of the best model, and removes the previous best of this run.
void Trainer::Impl::keep_best() {
  const std::string before = state->best_folder(), now = has_folder() ? path(str("best/checkpoint-", step)) : "";
  state->best(*best, now);
  if (writes() && before != now && before.starts_with(path("best/"))) std::filesystem::remove_all(before);
}

/// Evaluates, adds the results to the step's line in the log, and keeps the best checkpoint.
void Trainer::Impl::look() {
  const double start = steady_seconds();
  last = evaluate(o.max_eval_batches);
  last_eval_step = step;
  for (const auto& [name, value] : last) run.line[name] = value;
  if (state)
    state->evaluated(last, steady_seconds() - start, o.evaluate->size(),
                     (o.evaluate->size() + o.evaluate_batch - 1) / o.evaluate_batch);
  if (o.best.empty()) return;
  const bool max_batches = o.best.starts_with('-');
  const std::string name = o.best.substr(max_batches);
  const auto found = std::find_if(last.begin(), last.end(), [&](const auto& one) { return one.first == name; });
  if (found == last.end()) {
    std::string known;
    for (const auto& one : last) known += (known.empty() ? "" : ", ") + one.first;
    fail("[Trainer] best: there is no metric " + name + "; choose one of those evaluated: " + known);
  }
  // Any number is better than NaN, and NaN is never better.
  const double now = found->second, before = best.value_or(NAN);
  if ((max_batches ? now > before : now < before) || (std::isnan(before) && !std::isnan(now))) {
    best = now;
    if (has_folder()) {
      engine->save_checkpoint(path("best"), {.tag = state ? str("checkpoint-", step) : ""});
      engine->wait_for_checkpoint();
    }
    if (state) keep_best();
  }
}

}  // namespace lockstep::train
