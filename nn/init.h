#pragma once
// Parameter initialisation by PyTorch's formulas. Each function fills a parameter's tensor in place from the current
// random generator. A parameter that was built empty is filled later; see BuildEmpty.
#include <functional>
#include <memory>
#include <string>

#include "autograd/variable.h"
#include "tensor/ops.h"

namespace lockstep::nn::init {

/// U(low, high).
void uniform(const Variable& w, double low, double high);
/// N(mean, deviation^2).
void normal(const Variable& w, double mean = 0, double deviation = 1);
/// Sets every element to `value`.
void constant(const Variable& w, double value);
/// Sets every element to 0.
inline void zeros(const Variable& w) { constant(w, 0); }
/// Sets every element to 1.
inline void ones(const Variable& w) { constant(w, 1); }

/// Fan in and fan out of a weight (out, in, kernel...), including the kernel's size. Error for fewer than 2 dims.
struct Fan {
  int64_t in, out;
};
/// Fan of a weight with this shape.
Fan fan(const Shape& shape);

/// U(-b, b) with b = gain sqrt(3 / fan_in), gain = sqrt(2 / (1 + a^2)) (He et al., 2015). PyTorch's Linear and Conv use
/// a = sqrt(5), which gives b = 1 / sqrt(fan_in).
void kaiming_uniform(const Variable& w, double a = 0);
/// N(0, gain^2 / fan_in), with the gain of kaiming_uniform(), sqrt(2 / (1 + a^2)).
void kaiming_normal(const Variable& w, double a = 0);
/// U(-b, b) with b = gain sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio, 2010).
void xavier_uniform(const Variable& w, double gain = 1);
/// N(0, gain^2 * 2 / (fan_in + fan_out)).
void xavier_normal(const Variable& w, double gain = 1);

/// Runs `fill` on w's tensor: at once, or, if w was built empty, when w is filled. draws: number of random keys that
/// `fill` takes. adds: true if `fill` modifies the values of earlier initialisers instead of replacing them.
void apply(const Variable& w, std::function<void(const Tensor&)> fill, int draws = 0, bool adds = false);

}  // namespace lockstep::nn::init

namespace lockstep::nn {

class Module;

// Models that are built without memory and filled later, where their values are kept (build_empty.cpp). Each parameter
// has a shape and remembers its initialisation. Its owner (a stage, a shard, a device) creates the values; they have
// the same bits as after plain construction.
//
//   std::optional<nn::GPT> model;
//   {
//     const nn::BuildEmpty scope;
//     model.emplace(nn::GPT::Options{.layers = 96, .width = 12288});   // 174 billion parameters, a few megabytes
//   }
//   optim::AdamW optimizer(model->parameters(), {});
//   zero::Zero zero(*model, optimizer, {.stage = 3});                   // each rank fills its shards

/// While a BuildEmpty exists, modules that this thread constructs allocate no parameter memory. Scopes may be nested.
class BuildEmpty {
 public:
  BuildEmpty();
  ~BuildEmpty();
  BuildEmpty(const BuildEmpty&) = delete;
  /// True while this thread has a BuildEmpty.
  static bool is_active();
};

/// True if the parameter was built empty and has no values yet.
bool is_built_empty(const Variable& parameter);
/// The start values, as a new tensor in the parameter's dtype and on its device. Error unless is_built_empty().
Tensor start_of(const Variable& parameter);
/// Allocates and initialises a parameter; a parameter that has values keeps them.
void fill(const Variable& parameter);
void fill(Module& model);  ///< fills all parameters
/// Makes the parameter start with the result of `make`, a tensor of the parameter's shape and any floating dtype. The
/// result may be a view of a mapped file: a rank that needs only a slice then reads only that slice. A parameter that
/// has values is overwritten at once. `what` describes the source, for origin_of().
void start_with(const Variable& parameter, const std::string& what, std::function<Tensor()> make);
/// Describes how the start values are made; equal texts mean equal values. Ranks that each make the values themselves
/// compare these texts.
std::string origin_of(const Variable& parameter);
/// Changes shape, dtype and device of a parameter that is still empty; `change` maps the former start values to the new
/// ones.
void change_start(const Variable& parameter, const Shape& shape, TensorOptions options,
                  std::function<Tensor(const Tensor&)> change = {});

/// Number of tensors, and bytes, in a model's files.
struct FileTotals {
  int64_t tensors = 0, bytes = 0;
};
/// Guards against a config.json that asks for absurd sizes: Error if files with these tensors and bytes cannot hold a
/// model of `layers` layers (experts count as layers), or the model that `make` returns. `make` runs under BuildEmpty,
/// so it allocates no memory for values. The random generator is left unchanged. `where` names the file in errors.
void check_file_totals(const std::string& where, const FileTotals& held, double layers,
                       const std::function<std::shared_ptr<Module>()>& make = {});

}  // namespace lockstep::nn
