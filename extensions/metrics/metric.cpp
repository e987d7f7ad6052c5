// The state of metrics, on one rank and over all ranks of a group. See metric.h.
#include "extensions/metrics/metric.h"

#include <algorithm>
#include <set>

#include "dist/numbers.h"
#include "dist/process_group.h"
#include "train/trainer.h"

namespace lockstep::metrics {

namespace {

/// The concatenation of all ranks' lists, which may differ in length.
std::vector<double> all_lists(const std::vector<double>& mine, dist::ProcessGroup& group, const std::string& tag) {
  const std::vector<int64_t> sizes =
      dist::all_gathered(std::vector<int64_t>{int64_t(mine.size())}, group, {.tag = tag});
  const size_t longest = size_t(*std::max_element(sizes.begin(), sizes.end()));
  std::vector<double> padded = mine, all;
  padded.resize(longest);
  if (longest == 0) return all;
  const std::vector<double> lists = dist::all_gathered(padded, group, {.tag = tag});
  for (size_t rank = 0; rank < sizes.size(); ++rank) {
    const auto begin = lists.begin() + int64_t(rank * longest);
    all.insert(all.end(), begin, begin + sizes[rank]);
  }
  return all;
}

/// Appends the elements of a metric's value, with their indices in the names.
void append(MetricCollection::Values& to, const std::string& name, const Tensor& value) {
  if (value.dim() == 0) return void(to.emplace_back(name, value.item()));
  for (int64_t i = 0; i < value.size(0); ++i) append(to, str(name, "_", i), value[i]);
}

}  // namespace

void Metric::update(const Tensor& predictions, const Tensor& targets) {
  std::vector<double> batch(sums_);
  add(predictions, targets, batch);
  if (kind_ == State::list) state_.insert(state_.end(), batch.begin(), batch.end());
  else
    for (size_t i = 0; i < sums_; ++i) state_[i] += batch[i];
}

Tensor Metric::compute(dist::ProcessGroup& group) const {
  return result(kind_ == State::list ? all_lists(state_, group, name_)
                                     : dist::all_reduced(state_, group, {.tag = name_}));
}

double Metric::counted(double count) const {
  LOCKSTEP_CHECK(count > 0, "[", name_,
                 "] expected a target that counts before compute(), got none; call update() with some first");
  return count;
}

MetricCollection::MetricCollection(std::vector<std::pair<std::string, std::shared_ptr<Metric>>> metrics)
    : metrics_(std::move(metrics)) {
  std::set<std::string> names;
  for (const auto& [name, metric] : metrics_) {
    LOCKSTEP_CHECK(metric, "[MetricCollection] expected a metric for ", name, ", got none; use share(Accuracy())");
    LOCKSTEP_CHECK(names.insert(name).second, "[MetricCollection] expected different names, got ", name,
                   " twice; rename one");
  }
}

void MetricCollection::update(const Tensor& predictions, const Tensor& targets) const {
  for (const auto& [name, metric] : metrics_) metric->update(predictions, targets);
}

MetricCollection::Values MetricCollection::compute() const {
  Values all;
  for (const auto& [name, metric] : metrics_) append(all, name, metric->compute());
  return all;
}

MetricCollection::Values MetricCollection::compute(dist::ProcessGroup& group) const {
  Values all;
  for (const auto& [name, metric] : metrics_) append(all, name, metric->compute(group));
  return all;
}

void MetricCollection::reset() const {
  for (const auto& [name, metric] : metrics_) metric->reset();
}

MetricCollection::Values MetricCollection::operator()(const train::Predictions& all) const {
  reset();
  update(all.predictions, all.label_ids);
  return compute();
}

}  // namespace lockstep::metrics
