// Sums of errors and of log-probabilities, in f64. See errors.h.
#include "extensions/metrics/errors.h"

#include <cmath>

#include "autograd/ops.h"
#include "extensions/metrics/inputs.h"

namespace lockstep::metrics {

namespace {

/// Adds of(prediction - target) of all elements, and their number. Broadcasting would hide a forgotten squeeze().
template <class Fn>
void add_errors(const std::string& op, const Tensor& predictions, const Tensor& targets, std::vector<double>& batch,
                const Fn& of) {
  LOCKSTEP_CHECK(predictions.shape() == targets.shape(), "[", op, "] expected predictions of the targets' shape ",
                 targets.shape(), ", got ", predictions.shape(), "; reshape one of them");
  LOCKSTEP_CHECK(!is_complex(predictions.dtype()) && !is_complex(targets.dtype()), "[", op,
                 "] expected real numbers, got ", predictions.dtype(), " and ", targets.dtype());
  const std::vector<double> predicted = predictions.to_vector<double>(), actual = targets.to_vector<double>();
  for (size_t i = 0; i < actual.size(); ++i) batch[0] += of(predicted[i] - actual[i]);
  batch[1] += double(actual.size());
}

}  // namespace

void MeanSquaredError::add(const Tensor& predictions, const Tensor& targets, std::vector<double>& batch) const {
  add_errors(name(), predictions, targets, batch, [](double error) { return error * error; });
}
Tensor MeanSquaredError::result(const std::vector<double>& state) const {
  const double mean = state[0] / counted(state[1]);
  return numbers_on_cpu({root_ ? std::sqrt(mean) : mean}, {});
}

void MeanAbsoluteError::add(const Tensor& predictions, const Tensor& targets, std::vector<double>& batch) const {
  add_errors(name(), predictions, targets, batch, [](double error) { return std::abs(error); });
}
Tensor MeanAbsoluteError::result(const std::vector<double>& state) const {
  return numbers_on_cpu({state[0] / counted(state[1])}, {});
}

void Perplexity::add(const Tensor& predictions, const Tensor& targets, std::vector<double>& batch) const {
  const Reading reading{.op = name(), .dim = o_.dim, .ignore_index = o_.ignore_index};
  std::vector<int64_t> actual;
  std::vector<double> log_probabilities;
  if (predictions.shape() == targets.shape()) {
    LOCKSTEP_CHECK(is_floating(predictions.dtype()), "[Perplexity] expected logits or log-probabilities, got ",
                   predictions.dtype());
    actual = class_numbers(reading, "targets", targets);
    log_probabilities = predictions.to_vector<double>();
  } else {
    const NoGrad no_grad;
    const ScoredRows rows = scored_rows(reading, predictions, targets);
    const Tensor classes = Tensor::from(rows.actual, {int64_t(rows.actual.size())}).to(predictions.device());
    const CrossEntropyOptions of_each{.ignore_index = o_.ignore_index, .reduction = Reduction::none};
    actual = rows.actual;
    if (!actual.empty())
      for (const double loss : cross_entropy(rows.scores, classes, of_each).tensor().to_vector<double>())
        log_probabilities.push_back(-loss);
  }
  for (size_t i = 0; i < actual.size(); ++i) {
    if (actual[i] == o_.ignore_index) continue;
    batch[0] += log_probabilities[i];
    batch[1] += 1;
  }
}
Tensor Perplexity::result(const std::vector<double>& state) const {
  return numbers_on_cpu({std::exp(-state[0] / counted(state[1]))}, {});
}

}  // namespace lockstep::metrics
