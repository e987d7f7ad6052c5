#pragma once
// Predictions and targets of a batch as class numbers, as rows of scores, or as plain numbers.
#include <optional>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace lockstep::metrics {

/// How a metric reads a batch.
struct Reading {
  std::string op;                        ///< the metric's name, for Error texts
  int64_t classes = 0;                   ///< class numbers must be below it; 0: any number
  int64_t dim = 1;                       ///< dim of the scores that has the classes
  std::optional<double> threshold = {};  ///< predictions above it are class 1, the others class 0
  int64_t ignore_index = -100;           ///< targets with this value do not count
};

/// The class numbers of the targets that count, and of their predictions.
struct ClassPairs {
  std::vector<int64_t> predicted, actual;
};
/// Predictions: class numbers of the targets' shape; scores with a class dim more, of which the greatest counts (the
/// first of equal ones); or with a threshold, scores of the targets' shape.
ClassPairs class_pairs(const Reading& reading, const Tensor& predictions, const Tensor& targets);

/// Rows of scores (N, classes) on their device, and the class of each row.
struct ScoredRows {
  Tensor scores;
  std::vector<int64_t> actual;  ///< ignore_index for targets that do not count
};
/// Moves the class dim of the scores to the end. Error for shapes that do not fit, and for targets that are no classes.
ScoredRows scored_rows(const Reading& reading, const Tensor& scores, const Tensor& targets);

/// Values of a tensor that must have whole numbers, of any dtype. what: "targets", for Error texts.
std::vector<int64_t> class_numbers(const Reading& reading, const char* what, const Tensor& numbers);

/// A result on the CPU.
Tensor numbers_on_cpu(const std::vector<double>& values, const Shape& shape);

}  // namespace lockstep::metrics
