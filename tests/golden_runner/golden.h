#pragma once
// Shared by all kinds of golden cases. A golden file (format "golden-1") is a safetensors file whose metadata lists its
// cases as JSON: a name, what to compute, options. Its tensors are named <case>/<what>.
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "autograd/ops.h"
#include "data/json.h"
#include "data/safetensors.h"
#include "nn/module.h"
#include "optim/optimizer.h"

namespace golden {

using lockstep::Dims;
using lockstep::Tensor;
using lockstep::Variable;
using lockstep::data::Json;

/// One case of a file: its JSON, its tensors by <what>, and the folder of the file.
class Case {
 public:
  Case(const lockstep::data::SafeTensors& file, const Json& json, std::string folder);

  const std::string& name() const { return name_; }
  const Json& json() const { return json_; }
  const std::string& folder() const { return folder_; }
  /// True if the case has the tensor <case>/<what>.
  bool has(const std::string& what) const { return tensors_.count(what) > 0; }
  /// The tensor <case>/<what>; an error if there is none.
  const Tensor& tensor(const std::string& what) const;
  /// Every <what> that starts with `prefix`.
  std::vector<std::string> names(const std::string& prefix) const;
  /// A tensor of another case of the same file ("common/param0").
  Tensor shared(const std::string& full_name) const;
  /// True if the file has a tensor of this full name.
  bool has_shared(const std::string& full_name) const { return file_.contains(full_name); }

  // Options in "args". Without a default, a missing option is an error.
  const Json* arg(const std::string& key) const;
  double number(const std::string& key) const;
  double number(const std::string& key, double otherwise) const;
  int64_t integer(const std::string& key) const;
  int64_t integer(const std::string& key, int64_t otherwise) const;
  bool flag(const std::string& key, bool otherwise) const;
  std::string text(const std::string& key, const std::string& otherwise) const;
  /// A number or a list of numbers; null gives an empty list.
  Dims dims(const std::string& key) const;
  /// A loss's "reduction": "mean" (also if there is none), "sum" or "none".
  lockstep::Reduction reduction() const;

  /// max(1e-5, 20 x torch's own f32 error), or the case's own "tolerance".
  double tolerance() const;

 private:
  const lockstep::data::SafeTensors& file_;
  Json json_;
  std::string name_, folder_;
  std::map<std::string, Tensor> tensors_;
};

/// Collects the differences of a case.
class Report {
 public:
  /// reach: if set, differences are relative to |b| + reach max |b| over the whole tensor, instead of max(1, |b|).
  /// grad_reach is the reach of gradients; from 1 on, the scale is at least 1, for gradients that are sums of
  /// separately rounded terms.
  explicit Report(double tolerance, std::optional<double> reach = {}, double grad_reach = 0)
      : tolerance_(tolerance), reach_(reach), grad_reach_(grad_reach) {}
  /// Compares two tensors: equal shapes; NaN and infinities at the same positions (with `reach` also where b overflows
  /// our dtype); |a - b| <= tolerance max(1, |b|); integers must be equal.
  void compare(const std::string& what, const Tensor& ours, const Tensor& golden);
  /// Adds a problem.
  void wrong(const std::string& message) { problems_.push_back(message); }
  /// True if there are no problems.
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

/// A number or a list of numbers.
Dims to_dims(const Json& json);
/// Applies the views that a list in a case's JSON describes: slice, transpose, permute, expand.
Variable apply_views(Variable x, const Json& views);

using Inputs = std::vector<Variable>;
using Outputs = std::vector<Variable>;
using Run = std::function<Outputs(const Inputs&, const Case&)>;

/// The module that a case with "called" calls; a function if `module` is null.
struct Callee {
  std::unique_ptr<lockstep::nn::Module> module;
  std::function<Outputs(const Inputs&)> call;
};
template <class L, class Call> Callee with(std::unique_ptr<L> layer, const Call& call) {
  L* const l = layer.get();
  return {std::move(layer), [l, call](const Inputs& in) { return call(*l, in); }};
}

/// An optimizer over `parameters`, with the case's options by their names; "betas" is beta1 and beta2. If the case has
/// groups, they override options.
template <class Opt, class Options>
std::unique_ptr<lockstep::optim::Optimizer> optimizer_of(const Case& c, const std::vector<Variable>& parameters,
                                                         Options options = {}) {
  const auto numbers = lockstep::optim::by_name(options.table());
  if (const Json* args = c.json().find("args"))
    for (const auto& [key, value] : args->as_object())
      if (!value.is_bool() && key != "betas") *numbers.at(key) = value.as_number();
  if constexpr (requires { options.beta1; }) {
    if (const Json* betas = c.arg("betas")) {
      options.beta1 = betas->as_array().at(0).as_number();
      options.beta2 = betas->as_array().at(1).as_number();
    }
  }
#define LOCKSTEP_FLAG(name) \
  if constexpr (requires { options.name; }) options.name = c.flag(#name, options.name)
  LOCKSTEP_FLAG(amsgrad);
  LOCKSTEP_FLAG(bias_correction);
  LOCKSTEP_FLAG(centered);
  LOCKSTEP_FLAG(decoupled_weight_decay);
  LOCKSTEP_FLAG(maximize);
  LOCKSTEP_FLAG(nesterov);
#undef LOCKSTEP_FLAG
  const Json* groups = c.json().find("groups");
  if (!groups) return std::make_unique<Opt>(parameters, options);
  std::vector<typename Opt::Group> list;
  for (const Json& group : groups->as_array()) {
    typename Opt::Group g{{}, options};
    for (const Json& index : group.at("params").as_array()) g.parameters.push_back(parameters.at(index.as_int()));
    for (const auto& [key, value] : group.as_object())
      if (key != "params") *lockstep::optim::by_name(g.options.table()).at(key) = value.as_number();
    list.push_back(g);
  }
  return std::make_unique<Opt>(list);
}

/// The functions that cases name. Those of an extension come from its tests/golden_cases.cpp, which defines
/// golden::add_NAME(Functions&); extension_cases.cpp.in calls it.
struct Functions {
  std::map<std::string, Run> ops;  ///< the values of "op"
  std::map<std::string, std::function<std::unique_ptr<lockstep::nn::Module>(const Case&)>> layers;  ///< of "layer"
  /// How a layer that takes several inputs is called, by kind().
  std::map<std::string, std::function<Variable(lockstep::nn::Module&, const Inputs&)>> calls;
  std::map<std::string, std::function<Callee(const Case&)>> called;  ///< of "called"
  /// The values of "optimizer".
  std::map<std::string,
           std::function<std::unique_ptr<lockstep::optim::Optimizer>(const Case&, const std::vector<Variable>&)>>
      optimizers;
  std::map<std::string, void (*)(const Case&, Report&)> kinds;  ///< by a key that only cases of this kind have
};
/// The functions of the extensions that were built.
const Functions& of_extensions();
/// The folders with golden files: those of the extensions and, in the tree, tests/golden.
const std::vector<std::string>& folders();

// One function per kind of case.
void run_op(const Case& c, Report& report);
void run_layer(const Case& c, Report& report);
void run_called(const Case& c, Report& report);
void run_optimizer(const Case& c, Report& report);
void run_clip(const Case& c, Report& report);
void run_schedule(const Case& c, Report& report);
void run_scaler(const Case& c, Report& report);
void run_sampler(const Case& c, Report& report);

}  // namespace golden
