// Recording: an operation becomes a node that points to the nodes of its inputs. Saved tensors remember their version.
#include <algorithm>
#include <atomic>

#include "autograd/tape.h"

namespace lockstep {

namespace {

std::atomic<uint64_t> last_number{0};
thread_local std::vector<Variable>* reads = nullptr;

/// Takes the next number in the order of recording.
uint64_t new_number() { return last_number.fetch_add(1, std::memory_order_relaxed) + 1; }

/// Freed memory blocks that a thread keeps for reuse: in one list per size, 256, 512, 768 and 1024 bytes.
struct FreeBlocks {
  static constexpr size_t step = 256, kept = 4096;  // kept: most blocks in a list
  std::vector<void*> lists[4];
  static inline thread_local bool closed = false;  // true once the thread ends: then the heap serves all blocks

  ~FreeBlocks() {
    closed = true;
    for (auto& list : lists)
      for (void* block : list) ::operator delete(block);
  }
  /// The list for objects of `bytes`; null: there is none.
  static std::vector<void*>* list_for(size_t bytes) {
    if (bytes > 4 * step || closed) return nullptr;
    thread_local FreeBlocks blocks;
    return &blocks.lists[(bytes - 1) / step];
  }
};

}  // namespace

uint64_t tape::next_number() { return new_number(); }
std::vector<Variable>*& tape::read_list() { return reads; }

template <class T> void* Counted<T>::operator new(size_t bytes) {
  auto* const list = FreeBlocks::list_for(bytes);
  if (!list || list->empty())
    return ::operator new((bytes + FreeBlocks::step - 1) / FreeBlocks::step * FreeBlocks::step);
  void* const block = list->back();
  list->pop_back();
  return block;
}

template <class T> void Counted<T>::operator delete(void* object, size_t bytes) {
  auto* const list = FreeBlocks::list_for(bytes);
  if (list && list->size() < FreeBlocks::kept) list->push_back(object);
  else ::operator delete(object);
}

template class Counted<Node>;
template class Counted<Variable::Impl>;

Node::Node(const char* name, int inputs, int outputs)
    : number_(new_number()), name_(name), inputs_(inputs), outputs_(outputs) {}

Node::Node(LeafTag, const Tensor& tensor) : number_(0), name_("leaf"), outputs_(1) {
  outputs_[0].shape = tensor.shape();
  outputs_[0].dtype = tensor.dtype();
}

void Node::destroy(Node* node) {
  // Destroying a node releases the nodes of its inputs, which may then be destroyed, too. They are queued, because
  // recursion would be too deep. The links of the queue are in the nodes: a container could already be gone when a
  // static variable is destroyed at the end of the program.
  thread_local Node* dying = nullptr;
  thread_local bool draining = false;
  node->next_dying_ = std::exchange(dying, node);
  if (draining) return;
  draining = true;
  while (dying) delete std::exchange(dying, dying->next_dying_);
  draining = false;
}

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

bool needs_grad(std::initializer_list<const Variable*> inputs) {
  const bool recording = NoGrad::grad_enabled();
  if (!recording && !reads) return false;
  bool wanted = false;
  for (const Variable* input : inputs) {
    if (!input->requires_grad()) continue;
    wanted = true;
    if (!reads || (recording && !input->is_leaf())) continue;
    const auto same = [&](const Variable& read) { return read.impl() == input->impl(); };
    if (std::none_of(reads->begin(), reads->end(), same)) reads->push_back(*input);
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
  if (input.requires_grad()) node.inputs()[i] = tape::edge_of(input);
}

Variable result_of(const Ref<Node>& node, int output, Tensor tensor) {
  if (AnomalyMode::enabled()) AnomalyMode::check(tensor, "result", node->name());
  Node::Output& slot = node->outputs()[output];
  slot.shape = tensor.shape();
  slot.dtype = tensor.dtype();
  if (tensor.storage()->category() == Memory::other) tensor.storage()->book_as(Memory::activation);
  Variable result = tape::variable_at(node, output, std::move(tensor));
  result.impl()->requires_grad = is_floating(slot.dtype) || is_complex(slot.dtype);
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
