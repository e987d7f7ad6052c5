// Activation checkpointing: the forward keeps only the inputs. Backward runs the function again, with the same random
// numbers and state, and differentiates it on a separate tape.
#include "autograd/activation_checkpoint.h"

#include <list>
#include <unordered_set>
#include <utility>

#include "autograd/autocast.h"
#include "autograd/split_backward.h"
#include "base/at_end.h"
#include "tensor/journal.h"
#include "tensor/ops.h"
#include "tensor/random.h"

namespace lockstep {
namespace {

using Piece = std::function<std::vector<Variable>(const std::vector<Variable>&)>;

thread_local bool recomputing = false;

/// Checks that the second run of fn recorded all nodes that its outputs depend on: the nodes' numbers must be at least
/// `first_number`. Error for an older node: it shows that this run read a variable that the first run did not read.
void check_own_tape(const std::vector<Variable>& outputs, uint64_t first_number) {
  std::vector<Node*> stack;
  for (const Variable& output : outputs)
    if (output.requires_grad()) stack.push_back(output.impl()->node.get());
  std::unordered_set<Node*> visited(stack.begin(), stack.end());
  while (!stack.empty()) {
    Node* node = stack.back();
    stack.pop_back();
    LOCKSTEP_CHECK(node->is_leaf() || node->number() >= first_number,
                   "[checkpoint] the second run of fn also read an output of '", node->name(),
                   "', which the first did not read; fn must do the same in both runs");
    for (const Edge& edge : node->inputs()) {
      if (edge.node && visited.insert(edge.node.get()).second) stack.push_back(edge.node.get());
    }
  }
}

/// A variable that fn read without receiving it as an input: a parameter, or the result of an operation recorded before
/// the checkpoint. For such a result, `tensor` is the value that the first run of fn read.
struct Outside {
  Variable variable;
  Saved tensor;
};

/// While a Lent lives, a variable that fn read from outside is a leaf, so that the backward of the second run of fn
/// stops there. The leaf has none of the variable's own hooks, because those must run only once.
class Lent {
 public:
  explicit Lent(const Outside& outside)
      : variable_(outside.variable),
        was_{variable_.impl()->tensor, variable_.impl()->node, variable_.impl()->output, variable_.requires_grad()} {
    const Tensor& kept = outside.tensor.get("checkpoint");
    is_leaf_ = !kept.defined();
    const Tensor& tensor = is_leaf_ ? was_.tensor : kept;
    set({tensor, Ref<Node>(new Leaf(tensor)), 0, true});
  }
  ~Lent() {
    if (is_leaf_) was_.tensor = variable_.impl()->tensor;
    set(was_);
  }
  Lent(const Lent&) = delete;

 private:
  struct Position {
    Tensor tensor;
    Ref<Node> node;
    int output;
    bool requires_grad;
  };
  void set(const Position& place) {
    Variable::Impl& impl = *variable_.impl();
    impl.tensor = place.tensor;
    impl.node = place.node;
    impl.output = place.output;
    impl.requires_grad = place.requires_grad;
  }

  Variable variable_;
  Position was_;
  bool is_leaf_ = false;
};

/// An input of the checkpointed function fn: held by `saved`, or by a CheckpointKeeper, from which elsewhere() gets it.
struct Kept {
  Saved saved;
  std::function<Tensor()> elsewhere;
  Tensor get() const { return elsewhere ? elsewhere() : saved.get("checkpoint"); }
};

/// Calls keeper->begin() at the start of a scope, and keeper->end() at the end. Does nothing without a keeper.
class Around {
 public:
  Around(CheckpointKeeper* keeper, bool backward) : keeper_(keeper), backward_(backward) {
    if (keeper_) keeper_->begin(backward_);
  }
  ~Around() {
    if (keeper_) keeper_->end(backward_);
  }
  Around(const Around&) = delete;

 private:
  CheckpointKeeper* keeper_;
  bool backward_;
};

/// The data that backward needs to run the checkpointed function fn again. operator() is the checkpoint's derivative.
struct Recipe {
  Piece fn;
  std::shared_ptr<CheckpointKeeper> keeper;
  std::vector<Kept> inputs;
  std::vector<bool> wanted;           // true for inputs that require grad
  std::vector<Outside> outside;       // variables that fn read besides its inputs
  std::vector<Journal::Entry> state;  // tensors that fn overwrote, with their old values
  RandomState random;
  bool autocast;
  DType autocast_dtype;
  struct Output {
    Shape shape;
    DType dtype;
    bool recorded;
  };
  std::vector<Output> outputs;

  void operator()(Backward& back) {
    const Around around(keeper.get(), true);
    const AtEnd ends([before = std::exchange(recomputing, true)] { recomputing = before; });
    const Rewind same_state(state);  // until backward ends: the second tape saves tensors of this state
    const RandomScope same_numbers(random);
    const Autocast same_precision(autocast_dtype, autocast);
    std::vector<Variable> again, sources;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const Tensor tensor = inputs[i].get();
      again.push_back(tensor.defined() ? Variable(tensor, wanted[i]) : Variable());
      if (wanted[i]) sources.push_back(again.back());
    }
    std::list<Lent> lent;
    for (const Outside& o : outside) {
      lent.emplace_back(o);
      sources.push_back(o.variable);
    }
    std::vector<Variable> made;
    {
      const EnableGrad record;
      const uint64_t first = tape::next_number();
      made = fn(again);
      LOCKSTEP_CHECK(made.size() == outputs.size(), "[checkpoint] the second run returned ", made.size(),
                     " variables, the first ", outputs.size(), "; fn must do the same in both runs");
      for (size_t i = 0; i < made.size(); ++i) {
        const auto& [shape, dtype, recorded] = outputs[i];
        const Variable& output = made[i];
        LOCKSTEP_CHECK(output.defined() && output.shape() == shape && output.dtype() == dtype,
                       "[checkpoint] the second run returned ",
                       output.defined() ? str(output.shape(), " ", output.dtype()) : "nothing", ", the first ", shape,
                       " ", dtype, "; fn must do the same in both runs");
      }
      if (!needs_grad(made)) return;
      check_own_tape(made, first);
    }
    std::vector<Tensor> gradients;
    int given = 0;
    for (const Output& output : outputs)
      gradients.push_back(output.recorded ? std::move(back.grad(given++)) : Tensor());
    std::vector<Tensor> grads = made.size() == 1 ? lockstep::gradients(made[0], sources, std::move(gradients[0]))
                                                 : lockstep::gradients(joined(made, std::move(gradients)), sources);
    size_t next = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (wanted[i]) back.give(int(i), std::move(grads[next++]));
    }
    for (size_t i = 0; i < outside.size(); ++i) back.give(int(inputs.size() + i), std::move(grads[next++]));
  }
};

}  // namespace

bool is_recomputing() { return recomputing; }

std::vector<Variable> checkpoint_many(const Piece& fn, const std::vector<Variable>& inputs,
                                      std::shared_ptr<CheckpointKeeper> keeper) {
  if (!NoGrad::grad_enabled()) return fn(inputs);
  const Around around(keeper.get(), false);
  Recipe recipe{fn, keeper, {}, {}, {}, {}, random_state(), Autocast::enabled(), Autocast::dtype(), {}};
  std::vector<Variable> off_tape;
  for (const Variable& input : inputs) {
    off_tape.push_back(input.defined() ? input.detach() : input);
    std::function<Tensor()> elsewhere =
        keeper && input.defined() ? keeper->keep(input.tensor(), recipe.inputs.size()) : nullptr;
    if (elsewhere) recipe.inputs.push_back({{}, std::move(elsewhere)});
    else recipe.inputs.push_back({input, {}});
    recipe.wanted.push_back(input.requires_grad());
  }
  std::vector<Variable> results, read;
  const AtEnd ends([outer = std::exchange(tape::read_list(), &read)] { tape::read_list() = outer; });
  {
    const NoGrad no_tape;
    Journal journal;
    results = fn(off_tape);
    recipe.state = std::move(journal.entries);
  }
  std::vector<Tensor> tensors;
  for (const Variable& result : results) {
    LOCKSTEP_CHECK(result.defined(), "[checkpoint] expected fn to return a defined variable; return its result");
    const bool recorded =
        // fn ran under NoGrad, so a result that requires grad was made outside fn: return it unchanged
        is_floating(result.dtype()) && !result.requires_grad();
    recipe.outputs.push_back({result.shape(), result.dtype(), recorded});
    if (recorded) tensors.push_back(result.tensor());
  }
  for (const Variable& v : read) recipe.outside.push_back({v, v.is_leaf() ? Saved() : Saved(v)});
  std::vector<Variable> sources = inputs;
  sources.insert(sources.end(), read.begin(), read.end());
  if (!needs_grad(sources) || tensors.empty()) return results;
  const std::vector<Recipe::Output> outputs = recipe.outputs;
  const std::vector<Variable> recorded = record("checkpoint", sources, std::move(tensors), std::move(recipe));
  auto next = recorded.begin();
  for (size_t i = 0; i < results.size(); ++i)
    if (outputs[i].recorded) results[i] = *next++;
  return results;
}

Variable checkpoint(const std::function<Variable(const std::vector<Variable>&)>& fn,
                    const std::vector<Variable>& inputs, std::shared_ptr<CheckpointKeeper> keeper) {
  return checkpoint_many([fn](const std::vector<Variable>& in) { return std::vector<Variable>{fn(in)}; }, inputs,
                         std::move(keeper))[0];
}

Variable checkpoint(const std::function<Variable(const Variable&)>& fn, const Variable& input) {
  return checkpoint([fn](const std::vector<Variable>& inputs) { return fn(inputs[0]); }, std::vector<Variable>{input});
}

}  // namespace lockstep
