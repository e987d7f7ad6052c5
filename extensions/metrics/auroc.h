#pragma once
// The area under the receiver operating characteristic.
#include "extensions/metrics/classification.h"

namespace lockstep::metrics {

/// Options of AUROC.
struct AUROCOptions {
  int64_t classes = 2;               ///< number of classes
  Average average = Average::macro;  ///< with more than 2 classes: macro, weighted or none
  int64_t dim = 1;                   ///< dim of the scores that has the classes; -1: the last
  int64_t ignore_index = -100;       ///< targets with this value do not count
};
/// The probability that a sample of a class has a greater score for the class than one of the others; equal scores
/// count half (roc_auc_score, with multi_class="ovr" for more than 2 classes). Two classes: scores of class 1 of the
/// targets' shape, or of both classes with a class dim more. A class without samples, or without others, has NaN, and
/// means leave it out. The value is NaN if any score is. Keeps all scores; compute(group) gathers them on every rank.
class AUROC : public Metric {
 public:
  /// Error for less than 2 classes, and for an average that has no meaning here.
  explicit AUROC(AUROCOptions options = {});

 protected:
  void add(const Tensor& scores, const Tensor& targets, std::vector<double>& batch) const override;
  Tensor result(const std::vector<double>& state) const override;

 private:
  int64_t columns() const { return o_.classes == 2 ? 1 : o_.classes; }  // scores that the state has of a sample
  AUROCOptions o_;
};

}  // namespace lockstep::metrics
