// Recording: an operation becomes a node that points to the nodes of its inputs. Saved tensors remember their version.
#include <algorithm>
#include <atomic>

#include "autograd/leaf_collector.h"
#include "autograd/tape.h"

namespace lockstep {

const Tensor& Saved::get(const char* reader) const {
  LOCKSTEP_CHECK(!tensor_.defined() || tensor_.storage()->version() == version_, "[", reader, "] a tensor of shape ",
                 tensor_.shape(), " saved for its gradient was changed in place by '", tensor_.storage()->last_writer(),
                 "' (version ", version_, " was saved, it is now ", tensor_.storage()->version(),
                 "); use the out-of-place operation, or clone() before");
  return tensor_;
}

Tensor Saved::take(const char* reader) {
  get(reader);
  return std::move(tensor_);
}

namespace {
thread_local LeafCollector* collector = nullptr;
}  // namespace

LeafCollector::LeafCollector() : previous_(std::exchange(collector, this)) {}
LeafCollector::~LeafCollector() { collector = previous_; }

bool needs_grad(std::initializer_list<const Variable*> inputs) {
  const bool recording = NoGrad::grad_enabled();
  if (!recording && !collector) return false;
  bool wanted = false;
  for (const Variable* input : inputs) {
    if (!input->requires_grad()) continue;
    wanted = true;
    if (!collector || (recording && !input->is_leaf())) continue;
    auto& leaves = collector->leaves;
    const auto same = [&](const Variable& leaf) { return leaf.impl() == input->impl(); };
    if (std::none_of(leaves.begin(), leaves.end(), same)) leaves.push_back(*input);
  }
  return wanted && recording;
}

bool needs_grad(const std::vector<Variable>& inputs) {
  bool wanted = false;
  for (const Variable& input : inputs) wanted |= needs_grad({&input});
  return wanted;
}

namespace {

void wire(Node& node, int i, const Variable& input) {
  if (input.requires_grad()) node.inputs()[i] = {input.impl()->node, input.impl()->output};
}

Variable result_of(const Ref<Node>& node, int output, Tensor tensor) {
  if (AnomalyMode::enabled()) AnomalyMode::check(tensor, "result", node->name());
  Node::Output& slot = node->outputs()[output];
  slot.shape = tensor.shape();
  slot.dtype = tensor.dtype();
  if (tensor.storage()->category() == Memory::other) tensor.storage()->book_as(Memory::activation);
  Variable result(std::move(tensor));
  Variable::Impl& impl = *result.impl();
  impl.requires_grad = is_floating(slot.dtype) || is_complex(slot.dtype);
  impl.node = node;
  impl.output = output;
  return result;
}

}  // namespace

Variable tape::attach(Ref<Node> node, std::initializer_list<const Variable*> inputs, Tensor output) {
  int i = 0;
  for (const Variable* input : inputs) wire(*node, i++, *input);
  return result_of(node, 0, std::move(output));
}

std::vector<Variable> tape::attach(Ref<Node> node, const std::vector<Variable>& inputs, std::vector<Tensor> outputs) {
  for (size_t i = 0; i < inputs.size(); ++i) wire(*node, int(i), inputs[i]);
  std::vector<Variable> results;
  for (size_t i = 0; i < outputs.size(); ++i) results.push_back(result_of(node, int(i), std::move(outputs[i])));
  return results;
}

Variable as_view(const Variable& base, Variable result) {
  // Atomic, because the base may be a parameter of a model that several threads use at once.
  std::atomic_ref(base.impl()->is_aliased).store(true, std::memory_order_relaxed);
  result.impl()->is_aliased = true;
  return result;
}

void check_in_place(const char* op, const Variable& variable) {
  if (!NoGrad::grad_enabled() || !variable.requires_grad()) return;
  LOCKSTEP_CHECK(!variable.is_leaf(), "[", op,
                 "] a leaf that requires grad cannot be changed in place; use a NoGrad scope or detach()");
  LOCKSTEP_CHECK(
      !variable.impl()->is_aliased, "[", op,
      "] a view on the tape, or a variable with views, cannot be changed in place; use the out-of-place operation");
}

void rebase(Variable& variable, const Variable& result) {
  Variable::Impl& impl = *variable.impl();
  impl.tensor = result.tensor();
  impl.node = result.impl()->node;
  impl.output = result.impl()->output;
  impl.requires_grad = result.requires_grad();
  impl.retained_grad = nullptr;
}

}  // namespace lockstep
