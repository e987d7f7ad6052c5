#pragma once
// A model is built empty, and filled where it lives: parameters have shapes and no memory, and keep how they would
// start. Whoever owns one (a stage, a shard, a device) makes its values, with the bits of plain construction.
//
//   std::optional<nn::GPT> model;
//   {
//     const nn::BuildEmpty scope;
//     model.emplace(nn::GPT::Options{.layers = 96, .width = 12288});   // 174 billion parameters, a few megabytes
//   }
//   optim::AdamW optimizer(model->parameters(), {});
//   zero::Zero zero(*model, optimizer, {.stage = 3});                   // each rank fills its shards
#include <functional>
#include <memory>
#include <string>

#include "autograd/variable.h"
#include "tensor/ops.h"
#include "tensor/random.h"

namespace lockstep::nn {

class Module;

/// While it lives, parameters of modules that this thread makes get no memory. Scopes may be nested.
class BuildEmpty {
 public:
  BuildEmpty();
  ~BuildEmpty();
  BuildEmpty(const BuildEmpty&) = delete;
  static bool is_active();
};

/// Whether this parameter was built empty and has no values yet.
bool is_built_empty(const Variable& parameter);
/// The values with which it starts, in its dtype and on its device, as a new tensor.
Tensor start_of(const Variable& parameter);
/// Gives it these; one that has values keeps them.
void fill(const Variable& parameter);
void fill(Module& model);  ///< all of it
/// It starts with what `make` gives, of its shape and any floating dtype. That may be a view of a file: who wants a
/// part reads a part. A parameter that has values gets these at once. what: in words, for origin_of().
void start_with(const Variable& parameter, const std::string& what, std::function<Tensor()> make);
/// How it starts, in words that are equal where the values are: for ranks that each make their own.
std::string origin_of(const Variable& parameter);
/// From now on it is, empty as it was, what `change` makes of its start: of another shape, dtype, device.
void change_start(const Variable& parameter, const Shape& shape, TensorOptions options,
                  std::function<Tensor(const Tensor&)> change = {});

/// What files hold of a model.
struct Held {
  int64_t tensors = 0, bytes = 0;
};
/// Error when files that hold so much cannot hold a model of so many layers (experts count as layers), or what `make`
/// gives, which is made empty here and draws no random numbers. Before there is memory for it, as a config.json may say
/// anything.
void check_held(const std::string& where, const Held& held, double layers,
                const std::function<std::shared_ptr<Module>()>& make = {});

namespace init {
/// Runs `fill` on w's tensor; of one built empty: when it is filled. draws: how many random keys it takes. adds: it
/// changes what is there.
void apply(const Variable& w, std::function<void(const Tensor&)> fill, int draws = 0, bool adds = false);
}  // namespace init

}  // namespace lockstep::nn
