#pragma once
// The golden runner: what the kinds of cases share. A golden file (format "golden-1") is a safetensors file whose
// metadata lists its cases as JSON: a name, what to compute, options. Tensors are called <case>/<what>.
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "autograd/ops.h"
#include "data/json.h"
#include "data/safetensors.h"

namespace golden {

using lockstep::Dims;
using lockstep::Tensor;
using lockstep::Variable;
using lockstep::data::Json;

/// One case of a file: its JSON, its tensors by <what>, and the folder the file lies in.
class Case {
 public:
  Case(const lockstep::data::SafeTensors& file, const Json& json, std::string folder);

  const std::string& name() const { return name_; }
  const Json& json() const { return json_; }
  const std::string& folder() const { return folder_; }
  bool has(const std::string& what) const { return tensors_.count(what) > 0; }
  const Tensor& tensor(const std::string& what) const;
  /// Every <what> that starts with `prefix`.
  std::vector<std::string> names(const std::string& prefix) const;
  /// A tensor of another case of the same file ("common/param0").
  Tensor shared(const std::string& full_name) const;
  bool has_shared(const std::string& full_name) const { return file_.contains(full_name); }

  // Options in "args"; without a default they must be there.
  const Json* arg(const std::string& key) const;
  double number(const std::string& key) const;
  double number(const std::string& key, double otherwise) const;
  int64_t integer(const std::string& key) const;
  int64_t integer(const std::string& key, int64_t otherwise) const;
  bool flag(const std::string& key, bool otherwise) const;
  std::string text(const std::string& key, const std::string& otherwise) const;
  /// A number or a list of them; null gives an empty list.
  Dims dims(const std::string& key) const;

  /// max(1e-5, 20 x torch's own f32 error), or the case's own "tolerance".
  double tolerance() const;

 private:
  const lockstep::data::SafeTensors& file_;
  Json json_;
  std::string name_, folder_;
  std::map<std::string, Tensor> tensors_;
};

/// Collects what is wrong with a case.
class Report {
 public:
  /// reach: differences are measured against |b| + reach max |b| of the whole tensor, in place of max(1, |b|); of
  /// gradients grad_reach, which from 1 on counts at least numbers of size 1: sums of gradients that were rounded each
  /// for itself.
  explicit Report(double tolerance, std::optional<double> reach = {}, double grad_reach = 0)
      : tolerance_(tolerance), reach_(reach), grad_reach_(grad_reach) {}
  /// Shapes equal, NaN and infinities at the same places (with reach also where b is too large for our dtype), |a - b|
  /// <= tolerance max(1, |b|); integers equal.
  void compare(const std::string& what, const Tensor& ours, const Tensor& golden);
  void wrong(const std::string& message) { problems_.push_back(message); }
  bool ok() const { return problems_.empty(); }
  const std::vector<std::string>& problems() const { return problems_; }
  int compared() const { return compared_; }

 private:
  double tolerance_;
  std::optional<double> reach_;
  double grad_reach_ = 0;
  int compared_ = 0;
  std::vector<std::string> problems_;
};

Dims to_dims(const Json& json);
/// The list under a key of a case's JSON, applied as views: slice, transpose, permute, expand.
Variable apply_views(Variable x, const Json& views);

// Tables from an op's name to what computes it (run_op).
using Run = std::function<std::vector<Variable>(const std::vector<Variable>&, const Case&)>;
void add_linalg(std::map<std::string, Run>& table);
void add_distributions(std::map<std::string, Run>& table);

// One function for each kind of case.
void run_op(const Case& c, Report& report);
void run_layer(const Case& c, Report& report);
void run_called(const Case& c, Report& report);
void run_recurrent(const Case& c, Report& report);
void run_optimizer(const Case& c, Report& report);
void run_clip(const Case& c, Report& report);
void run_schedule(const Case& c, Report& report);
void run_scaler(const Case& c, Report& report);
void run_sampler(const Case& c, Report& report);
void run_gpt2(const Case& c, Report& report);

/// Evaluates "(x.exp() * x.sin()).sum(0) + x[0]" on inputs named in the order in which they appear.
Variable evaluate(const std::string& expression, const std::vector<Variable>& inputs, const Case& c);

}  // namespace golden
