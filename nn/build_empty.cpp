// BuildEmpty: storages without memory that remember their initialisation. See init.h.
#include "nn/init.h"

#include <string_view>

#include "nn/module.h"
#include "tensor/random.h"

namespace lockstep::nn {
namespace {

thread_local int scopes = 0;
constexpr const char* built_empty = "a model that was built empty";

/// Describes how to make the initial values of an empty parameter, whose storage owns this object until it is filled.
struct Origin {
  struct Step {
    RandomState random;
    std::function<void(const Tensor&)> fill;
  };
  Shape shape;
  TensorOptions options;
  std::vector<Step> steps;
  std::function<Tensor()> make;  // if set, replaces steps
  std::string what;              // describes what make returns
  std::vector<std::function<Tensor(const Tensor&)>> changes;
};

Origin* origin(const Variable& parameter) {
  const Storage& storage = *parameter.tensor().storage();
  return storage.is_empty() && std::string_view(storage.emptied_of()) == built_empty
             ? static_cast<Origin*>(storage.origin().get())
             : nullptr;
}

void run(const Origin& of, const Tensor& tensor) {
  const RandomState before = random_state();
  for (const Origin::Step& step : of.steps) {
    set_random_state(step.random);
    step.fill(tensor);
  }
  set_random_state(before);
}

Tensor reserved(const Shape& shape, TensorOptions options, std::shared_ptr<void> of) {
  const MemoryScope scope(Memory::parameter);
  check_shape("parameter", shape);
  int64_t bytes = 0;
  LOCKSTEP_CHECK(!__builtin_mul_overflow(numel_of(shape), size_of(options.dtype), &bytes),
                 "[parameter] expected fewer than 2^63 bytes, got shape ", shape);
  return Tensor(Storage::reserve(bytes, options.device, built_empty, std::move(of)), 0, shape,
                contiguous_strides(shape), options.dtype);
}

}  // namespace

BuildEmpty::BuildEmpty() { ++scopes; }
BuildEmpty::~BuildEmpty() { --scopes; }
bool BuildEmpty::is_active() { return scopes > 0; }

bool is_built_empty(const Variable& parameter) { return origin(parameter); }

Tensor start_of(const Variable& parameter) {
  const Origin* const of = origin(parameter);
  LOCKSTEP_CHECK(of, "[start_of] expected a parameter that was built empty, got one of shape ", parameter.shape(),
                 " that was not, or has values; read its tensor()");
  const NoGrad no_grad;
  Tensor made = of->make ? of->make() : empty(of->shape, of->options);
  if (!of->make) run(*of, made);
  const Ref<Storage> given = of->make ? made.storage() : Ref<Storage>();  // may be pages of a mapped file
  for (const auto& change : of->changes) made = change(made);
  made = made.to(parameter.dtype()).to(parameter.device());
  return made.storage() == given ? made.clone() : made;
}

void fill(const Variable& parameter) {
  const Origin* const of = origin(parameter);
  if (!of) return;
  const NoGrad no_grad;
  const Tensor& there = parameter.tensor();
  const std::shared_ptr<void> kept = there.storage()->origin();  // keeps `of` alive, which refill() releases
  const bool in_place = of->make || (there.dtype() == of->options.dtype && there.device() == of->options.device);
  if (of->changes.empty() && in_place) {
    const Tensor made = of->make ? of->make() : Tensor();
    there.storage()->refill();
    return of->make ? void(there.copy_(made)) : run(*of, there);
  }
  const Tensor made = start_of(parameter);
  there.storage()->refill();
  there.copy_(made);
}

void fill(Module& model) {
  for (const Variable& p : model.parameters()) fill(p);
}

std::string origin_of(const Variable& parameter) {
  const Origin* const of = origin(parameter);
  if (!of) return "";
  if (of->make) return str(", starts with ", of->what, ", changed ", of->changes.size(), " times");
  std::string text = str(", starts in ", of->steps.size(), " steps, changed ", of->changes.size(), " times");
  for (const auto& [r, fill] : of->steps)
    text += str("; from seed ", r.seed, ", step ", r.step, ", micro-batch ", r.micro_batch, ", call ", r.call);
  return text;
}

void change_start(const Variable& parameter, const Shape& shape, TensorOptions options,
                  std::function<Tensor(const Tensor&)> change) {
  const Origin* const of = origin(parameter);
  LOCKSTEP_CHECK(of, "[change_start] expected a parameter that was built empty, got one of shape ", parameter.shape(),
                 " that was not, or has values; call it before fill()");
  const auto changed = std::make_shared<Origin>(*of);
  if (change) changed->changes.push_back(std::move(change));
  Variable(parameter).set_tensor(reserved(shape, options, changed));
}

void start_with(const Variable& parameter, const std::string& what, std::function<Tensor()> make) {
  const NoGrad no_grad;
  const Tensor& there = parameter.tensor();
  const Origin* const of = origin(parameter);
  if (!of) return void(there.copy_(make()));
  const TensorOptions options{.dtype = there.dtype(), .device = there.device()};
  const auto from = std::make_shared<Origin>(Origin{there.shape(), options, {}, std::move(make), what, {}});
  Variable(parameter).set_tensor(reserved(there.shape(), options, from));
}

void check_file_totals(const std::string& where, const FileTotals& held, double layers,
                       const std::function<std::shared_ptr<Module>()>& make) {
  const auto refuse_unless = [&](bool fits, const std::string& got) {
    LOCKSTEP_CHECK(fits, where, ": the weights beside it (", held.tensors, " tensors, ", held.bytes,
                   " bytes) are too few for a model of ", got,
                   "; fetch all files of the model, or mend its configuration");
  };
  refuse_unless(layers <= double(held.tensors), str(layers, " layers"));
  if (!make) return;
  const RandomScope draws_nothing(random_state());
  const BuildEmpty scope;
  const std::shared_ptr<Module> model = make();
  double numbers = 0;
  for (const NamedParameter& p : model->named_parameters()) numbers += double(p.variable.numel());
  constexpr double max_of_a_byte = 4;  // weights that are stored as 2-bit codes
  refuse_unless(numbers <= max_of_a_byte * double(held.bytes), str(numbers, " parameters"));
}

namespace init {

void apply(const Variable& w, std::function<void(const Tensor&)> fill, int draws, bool adds) {
  Origin* const of = origin(w);
  if (!of) return fill(w.tensor());
  LOCKSTEP_CHECK(!adds || !of->make,
                 "[init] expected a parameter with its own initial values, got one that starts with ", of->what,
                 "; fill() it first");
  if (!adds) of->steps.clear(), of->make = nullptr;
  of->steps.push_back({random_state(), std::move(fill)});
  for (int i = 0; i < draws; ++i) next_random_key();
}

}  // namespace init

Variable Module::parameter(const Shape& shape) {
  const MemoryScope scope(Memory::parameter);
  if (!BuildEmpty::is_active()) return Variable(empty(shape), true);
  const TensorOptions options;
  return Variable(reserved(shape, options, std::make_shared<Origin>(Origin{shape, options, {}, {}, {}, {}})), true);
}

Variable Module::parameter(const Shape& shape, double value) {
  const Variable made = parameter(shape);
  init::apply(made, [value](const Tensor& w) { w.fill_(value); });
  return made;
}

}  // namespace lockstep::nn
