// Checks shapes and class numbers of a batch, and brings them to the host. See inputs.h.
#include "extensions/metrics/inputs.h"

#include <cmath>

#include "tensor/ops.h"

namespace lockstep::metrics {

namespace {

/// The shape of targets that fits these scores: without their class dim.
Shape without(const Shape& scores, int dim) {
  Shape rest = scores;
  rest.erase(dim);
  return rest;
}

void check_class(const Reading& reading, const char* what, int64_t number, int64_t classes) {
  LOCKSTEP_CHECK(number >= 0 && (classes == 0 || number < classes), "[", reading.op, "] expected ", what,
                 classes == 0 ? str(" of 0 or more") : str(" in 0 .. ", classes - 1), " (or the ignore_index ",
                 reading.ignore_index, "), got ", number, "; number the classes from 0");
}

/// The class dim of scores, counted from 0. Error unless the scores have it and fit the targets.
int class_dim(const Reading& reading, const Tensor& scores, const Tensor& targets) {
  LOCKSTEP_CHECK(scores.dim() == targets.dim() + 1, "[", reading.op,
                 "] expected scores with a class dim more than the ", "targets ", targets.shape(), ", got ",
                 scores.shape(), "; reshape one of them");
  const int dim = normalize_dim(reading.op.c_str(), reading.dim, scores.dim());
  const int64_t classes = scores.size(dim);
  LOCKSTEP_CHECK(without(scores.shape(), dim) == targets.shape(), "[", reading.op, "] expected targets ",
                 without(scores.shape(), dim), " for scores ", scores.shape(), " with the classes in dim ", dim,
                 ", got ", targets.shape(), "; set dim, or reshape one of them");
  LOCKSTEP_CHECK(
      classes >= 2 && (reading.classes == 0 || classes == reading.classes), "[", reading.op, "] expected ",
      reading.classes == 0 ? str("2 classes or more") : str(reading.classes, " classes"), " in dim ", dim,
      " of the scores, got ", classes,
      classes == 1 ? "; for the scores of one class, remove the dim and set a threshold" : "; set `classes`");
  return dim;
}

}  // namespace

std::vector<int64_t> class_numbers(const Reading& reading, const char* what, const Tensor& numbers) {
  if (is_integral(numbers.dtype()) || numbers.dtype() == boolean) return numbers.to_vector<int64_t>();
  LOCKSTEP_CHECK(is_floating(numbers.dtype()), "[", reading.op, "] expected ", what, " that are real numbers, got ",
                 numbers.dtype());
  std::vector<int64_t> all;
  all.reserve(size_t(numbers.numel()));
  for (const double value : numbers.to_vector<double>()) {
    LOCKSTEP_CHECK(std::abs(value) < 1e15 && value == std::floor(value), "[", reading.op, "] expected ", what,
                   " that are class numbers, got ", value,
                   "; for scores of class 1 set a threshold, for scores of each class add a dim");
    all.push_back(int64_t(value));
  }
  return all;
}

ClassPairs class_pairs(const Reading& reading, const Tensor& predictions, const Tensor& targets) {
  const std::vector<int64_t> actual = class_numbers(reading, "targets", targets);
  std::vector<int64_t> predicted;
  int64_t classes = reading.classes;
  if (predictions.shape() != targets.shape()) {
    LOCKSTEP_CHECK(!reading.threshold, "[", reading.op, "] expected scores of the targets' shape ", targets.shape(),
                   ", as there is a threshold, got ", predictions.shape(), "; leave the threshold out, or reshape");
    const int dim = class_dim(reading, predictions, targets);
    classes = predictions.size(dim);
    if (predictions.numel() > 0) predicted = argmax(predictions, dim).to_vector<int64_t>();
  } else if (reading.threshold) {
    for (const double score : predictions.to_vector<double>()) predicted.push_back(score > *reading.threshold);
  } else {
    predicted = class_numbers(reading, "predictions", predictions);
  }
  ClassPairs pairs;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (actual[i] == reading.ignore_index) continue;
    check_class(reading, "targets", actual[i], classes);
    check_class(reading, "predictions", predicted[i], classes);
    pairs.actual.push_back(actual[i]);
    pairs.predicted.push_back(predicted[i]);
  }
  return pairs;
}

ScoredRows scored_rows(const Reading& reading, const Tensor& scores, const Tensor& targets) {
  LOCKSTEP_CHECK(is_floating(scores.dtype()), "[", reading.op, "] expected scores in a floating dtype, got ",
                 scores.dtype(), "; give scores, not class numbers");
  ScoredRows rows{.scores = {}, .actual = class_numbers(reading, "targets", targets)};
  const int dim = class_dim(reading, scores, targets);
  for (const int64_t number : rows.actual)
    if (number != reading.ignore_index) check_class(reading, "targets", number, scores.size(dim));
  Dims order;
  for (int d = 0; d < scores.dim(); ++d)
    if (d != dim) order.push_back(d);
  order.push_back(dim);
  rows.scores = scores.permute(order).reshape({targets.numel(), scores.size(dim)});
  return rows;
}

Tensor numbers_on_cpu(const std::vector<double>& values, const Shape& shape) {
  return Tensor::from(values, shape).to(cpu);
}

}  // namespace lockstep::metrics
