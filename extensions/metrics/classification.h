#pragma once
// Metrics of classes, with scikit-learn's values: accuracy, confusion matrix, precision, recall, F scores.
//
// Targets are class numbers, in any dtype. Predictions are class numbers of the targets' shape; or scores with a class
// dim more, whose greatest counts (the first of equal ones, as in argmax); or with `threshold`, scores of class 1 in
// the targets' shape. Targets that equal ignore_index do not count.
#include <optional>

#include "extensions/metrics/metric.h"

namespace lockstep::metrics {

/// Options of Accuracy.
struct AccuracyOptions {
  int64_t dim = 1;  ///< dim of the scores that has the classes, as in cross_entropy(); -1: the last
  std::optional<double> threshold = {};  ///< scores above it mean class 1
  int64_t ignore_index = -100;           ///< targets with this value do not count
};
/// The share of targets that are predicted (accuracy_score).
class Accuracy : public Metric {
 public:
  explicit Accuracy(AccuracyOptions options = {}) : Metric("Accuracy", 2), o_(options) {}

 protected:
  void add(const Tensor& predictions, const Tensor& targets, std::vector<double>& batch) const override;
  Tensor result(const std::vector<double>& state) const override;

 private:
  AccuracyOptions o_;
};

/// Options of TopKAccuracy.
struct TopKAccuracyOptions {
  int64_t k = 5;                ///< how many classes may be named
  int64_t dim = 1;              ///< dim of the scores that has the classes; -1: the last
  int64_t ignore_index = -100;  ///< targets with this value do not count
};
/// The share of targets among the k classes with the greatest scores (top_k_accuracy_score). Of classes with equal
/// scores, the last one is named first, as in scikit-learn. A target whose score is NaN is not among them.
class TopKAccuracy : public Metric {
 public:
  /// Error for k < 1.
  explicit TopKAccuracy(TopKAccuracyOptions options = {});

 protected:
  void add(const Tensor& scores, const Tensor& targets, std::vector<double>& batch) const override;
  Tensor result(const std::vector<double>& state) const override;

 private:
  TopKAccuracyOptions o_;
};

/// Says what a confusion matrix is divided by: nothing, or the sum of a row (scikit-learn's "true"), of a column
/// ("pred"), or of all. A sum of 0 gives zeros.
enum class Normalize { none, targets, predictions, all };
/// Options of ConfusionMatrix.
struct ConfusionMatrixOptions {
  int64_t classes = 2;                    ///< number of classes
  Normalize normalize = Normalize::none;  ///< what to divide by
  int64_t dim = 1;                        ///< dim of the scores that has the classes; -1: the last
  std::optional<double> threshold = {};   ///< scores above it mean class 1
  int64_t ignore_index = -100;            ///< targets with this value do not count
};
/// How often class i (row) was predicted as class j (column): (classes, classes), i64, or f64 if normalized
/// (confusion_matrix).
class ConfusionMatrix : public Metric {
 public:
  /// Error for less than 2 classes, and for a threshold with more.
  explicit ConfusionMatrix(ConfusionMatrixOptions options = {});

 protected:
  void add(const Tensor& predictions, const Tensor& targets, std::vector<double>& batch) const override;
  Tensor result(const std::vector<double>& state) const override;

 private:
  ConfusionMatrixOptions o_;
};

/// How the scores of classes become one number: class 1's score (binary), the score of all counts together (micro), the
/// mean over classes that occur in targets or predictions (macro), the mean weighted by targets of a class (weighted).
/// none: a score for each class.
enum class Average { binary, micro, macro, weighted, none };
/// Options of Precision, Recall and the F scores.
struct ClassScoreOptions {
  int64_t classes = 2;                   ///< number of classes
  Average average = Average::binary;     ///< binary needs 2 classes
  double zero_division = 0;              ///< the score of a class where it would be 0 / 0; means leave out a NaN
  int64_t dim = 1;                       ///< dim of the scores that has the classes; -1: the last
  std::optional<double> threshold = {};  ///< scores above it mean class 1
  int64_t ignore_index = -100;           ///< targets with this value do not count
};
/// (1 + beta²) · hits / (beta² · targets + predictions) of a class (fbeta_score).
class FBetaScore : public Metric {
 public:
  /// Error for beta < 0, less than 2 classes, and for binary or a threshold with more.
  explicit FBetaScore(double beta, ClassScoreOptions options = {}) : FBetaScore("FBetaScore", beta, options) {}

 protected:
  FBetaScore(const char* name, double beta, ClassScoreOptions options);
  void add(const Tensor& predictions, const Tensor& targets, std::vector<double>& batch) const override;
  Tensor result(const std::vector<double>& state) const override;

 private:
  double of_predicted_, of_actual_;  // weights of the two counts in the denominator; their sum is 1
  ClassScoreOptions o_;
};
/// 2 · hits / (targets + predictions), the harmonic mean of precision and recall (f1_score).
class F1Score : public FBetaScore {
 public:
  explicit F1Score(ClassScoreOptions options = {}) : FBetaScore("F1Score", 1, options) {}
};
/// The share of a class's predictions that are right (precision_score).
class Precision : public FBetaScore {
 public:
  explicit Precision(ClassScoreOptions options = {}) : FBetaScore("Precision", 0, options) {}
};
/// The share of a class's targets that are predicted (recall_score).
class Recall : public FBetaScore {
 public:
  explicit Recall(ClassScoreOptions options = {});
};

}  // namespace lockstep::metrics
