// Autocast scopes and their cache of cast weights.
#include "autograd/autocast.h"

#include <unordered_map>
#include <utility>

#include "autograd/tape.h"
#include "tensor/stored_matrix.h"

namespace lockstep {

struct Autocast::State {
  /// A weight and its cast. The weight's address is the key of the map, so the entry keeps the weight alive.
  struct Cast {
    Variable weight, low;
    Ref<Storage> storage;
    uint32_t version;
  };

  static inline thread_local State* current = nullptr;
  DType dtype;
  bool enabled;
  std::unordered_map<const Variable::Impl*, Cast> casts;
};

namespace {

/// True if a cached cast may be used again. While recording, the cast's node must point to the weight's node, so that
/// the weight gets a gradient. A backward pass drops that pointer, and a cast made under NoGrad has no node.
bool is_usable(const Variable& cast) {
  if (!NoGrad::grad_enabled()) return true;
  return cast.requires_grad() && cast.impl()->node->inputs()[0].node;
}

}  // namespace

Autocast::Autocast(DType dtype, bool enabled) : previous_(State::current) {
  LOCKSTEP_CHECK(dtype == bf16 || dtype == f16, "[autocast] expected bf16 or f16, got ", dtype);
  State::current = new State{dtype, enabled, {}};
}

Autocast::~Autocast() { delete std::exchange(State::current, previous_); }

bool Autocast::enabled() { return State::current && State::current->enabled; }
DType Autocast::dtype() { return State::current ? State::current->dtype : bf16; }

DType Autocast::wider(DType a, DType b) {
  if (a == b) return a;
  return a == f64 || b == f64 ? f64 : f32;
}

std::optional<DType> Autocast::common(std::initializer_list<const Variable*> operands) {
  const DType first = (*operands.begin())->dtype();
  DType widest = first;
  bool mixed = false;
  for (const Variable* x : operands) {
    if (!promotes(first, x->dtype())) return {};
    mixed |= x->dtype() != first;
    widest = wider(widest, x->dtype());
  }
  return mixed ? std::optional(widest) : std::nullopt;
}

Variable Autocast::low(const Variable& x) {
  if (!enabled() || !x.defined()) return x;
  State& state = *State::current;
  if (x.dtype() == state.dtype || x.dtype() == f64 || !is_floating(x.dtype()) || stored_in(x.tensor())) return x;
  if (!x.requires_grad() || !x.is_leaf()) return x.to(state.dtype);
  const Ref<Storage>& storage = x.tensor().storage();
  State::Cast& cast = state.casts[x.impl().get()];
  if (cast.low.defined() && cast.storage == storage && cast.version == storage->version() && is_usable(cast.low)) {
    needs_grad({&x});  // adds x to tape::read_list()
    return cast.low;
  }
  cast = {x, x.to(state.dtype), storage, storage->version()};
  return cast.low;
}

Variable Autocast::high(const Variable& x) {
  return enabled() && x.defined() && (x.dtype() == f16 || x.dtype() == bf16) ? x.to(f32) : x;
}

std::array<Variable, 3> Autocast::of_norm(const Variable& x, const Variable& weight, const Variable& bias) {
  if (weight.defined() && weight.dtype() == x.dtype()) return {x, weight, bias};
  return {high(x), high(weight), high(bias)};
}

}  // namespace lockstep
