// The tape's engine: recording, and the backward walk.
//
// A pass has two loops. count() visits everything reachable from the start and counts, for each node, how many
// gradients it will receive. run() keeps the nodes whose gradients are complete in a heap and takes the one with the
// highest number (the latest recorded) first: so the order, and with it every sum of gradients, is always the same.
// Cost: O(nodes log width) time, and memory for the widest front of gradients.
#include "autograd/tape.h"

#include <algorithm>

#include "tensor/ops.h"
#include "trace/trace.h"

namespace lockstep {

namespace {

std::atomic<uint64_t> next_number{1};
std::atomic<uint64_t> next_pass{1};
thread_local LeafCollector* collector = nullptr;
thread_local std::vector<std::function<void()>>* end_callbacks = nullptr;

// Free lists of this thread, one for each multiple of 256 bytes: operations make and drop nodes all the time.
constexpr size_t kBlockStep = 256, kBlockClasses = 4, kKeptBlocks = 4096;

struct FreeLists {
  std::vector<void*> blocks[kBlockClasses];
  ~FreeLists() {
    closed = true;
    for (auto& list : blocks) for (void* block : list) ::operator delete(block);
  }
  static inline thread_local bool closed = false;  // nodes may outlive the lists at thread exit
};

FreeLists& free_lists() {
  thread_local FreeLists lists;
  return lists;
}

void* take_block(size_t bytes) {
  const size_t c = (bytes - 1) / kBlockStep;
  if (c >= kBlockClasses) return ::operator new(bytes);
  if (FreeLists::closed || free_lists().blocks[c].empty()) return ::operator new((c + 1) * kBlockStep);
  auto& list = free_lists().blocks[c];
  void* block = list.back();
  list.pop_back();
  return block;
}

void give_block(void* block, size_t bytes) {
  const size_t c = (bytes - 1) / kBlockStep;
  if (c >= kBlockClasses || FreeLists::closed || free_lists().blocks[c].size() >= kKeptBlocks) return ::operator delete(block);
  free_lists().blocks[c].push_back(block);
}

void check_no_nan(const Tensor& tensor, const char* what, const char* name) {
  if (!is_floating(tensor.dtype()) || all_finite(tensor)) return;
  LOCKSTEP_CHECK(!any(isnan(tensor)).item<bool>(), "[anomaly] '", name, "' made the first NaN, in its ", what,
                 " of shape ", tensor.shape());
}

bool is_dense(const Tensor& tensor) { return tensor.is_contiguous() && tensor.is_exclusive(); }

/// sum += grad, in place where nobody else looks at the memory.
void accumulate(Tensor& sum, Tensor grad) {
  if (!sum.defined()) sum = std::move(grad);
  else if (is_dense(sum)) add_(sum, grad);
  else if (is_dense(grad)) sum = add_(grad, sum);
  else sum = add(sum, grad);
}

}  // namespace

// --- nodes ---

void* Node::operator new(size_t bytes) { return take_block(bytes); }
void Node::operator delete(void* node, size_t bytes) { give_block(node, bytes); }
void* Variable::Impl::operator new(size_t bytes) { return take_block(bytes); }
void Variable::Impl::operator delete(void* impl, size_t bytes) { give_block(impl, bytes); }

Node::Node(const char* name, int inputs, int outputs)
    : number_(next_number.fetch_add(1, std::memory_order_relaxed)), name_(name), inputs_(inputs), outputs_(outputs) {}

int Node::Output::add_hook(Hook hook) {
  if (!hooks) hooks = std::make_unique<std::vector<Hook>>();
  hooks->push_back(std::move(hook));
  return hooks->back().id;
}

Node::Node(LeafTag, const Tensor& tensor) : number_(0), name_("leaf"), outputs_(1) {
  outputs_[0].shape = tensor.shape();
  outputs_[0].dtype = tensor.dtype();
}

void Node::destroy(Node* node) {
  // A node's end releases its inputs' nodes, whose end comes here again: queue them instead of recursing. The queue is
  // a chain of the nodes themselves, so that static variables may end after this thread's other thread_locals.
  thread_local Node* dying = nullptr;
  thread_local bool draining = false;
  node->next_dying_ = std::exchange(dying, node);
  if (draining) return;
  draining = true;
  while (dying) delete std::exchange(dying, dying->next_dying_);
  draining = false;
}

// --- what derivatives use ---

Tensor& Backward::grad(int i) const { return node_.outputs()[i].grad; }
bool Backward::needs(int i) const { return bool(node_.inputs()[i].node); }

void Backward::give(int i, Tensor grad) const {
  const Edge& edge = node_.inputs()[i];
  if (!edge.node || !grad.defined()) return;
  Node::Output& target = edge.node->outputs()[edge.output];
  LOCKSTEP_CHECK(grad.dtype() == target.dtype, "[backward] expected the gradient of '", node_.name(), "' towards input ", i, " to be ",
                 target.dtype, ", got ", grad.dtype());
  if (!(grad.shape() == target.shape)) grad = sum_to(grad, target.shape);
  if (AnomalyMode::enabled()) check_no_nan(grad, "gradient", node_.name());
  accumulate(target.grad, std::move(grad));
}

const UnaryGrad* Backward::fold(int i) const {
  const Edge& edge = node_.inputs()[i];
  if (!folds_ || !edge.node || edge.node->uses_ != 1) return nullptr;
  const Node::Output& target = edge.node->outputs()[edge.output];
  const auto looks = [](const Node::Output::Hook& hook) { return hook.looks; };
  if (target.grad.defined() || (target.hooks && std::any_of(target.hooks->begin(), target.hooks->end(), looks))) return nullptr;
  const UnaryGrad* const found = edge.node->unary();
  edge.node->folded_ = found;
  return found;
}

Tensor Backward::partial(int i) const {
  const Edge& edge = node_.inputs()[i];
  if (!edge.node) return {};
  const Tensor& sum = edge.node->outputs()[edge.output].grad;
  return sum.defined() && is_dense(sum) ? sum : Tensor();
}

const Tensor& Saved::get(const char* reader) const {
  LOCKSTEP_CHECK(!tensor_.defined() || tensor_.storage()->version() == version_, "[", reader, "] a tensor of shape ", tensor_.shape(),
                 " saved for its gradient was changed in place by '", tensor_.storage()->last_writer(), "' (version ", version_, " was saved, it is now ",
                 tensor_.storage()->version(), "); use the form that makes a new tensor, or clone() before");
  return tensor_;
}

Tensor Saved::take(const char* reader) {
  get(reader);
  return std::move(tensor_);
}

// --- recording ---

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
  if (AnomalyMode::enabled()) check_no_nan(tensor, "result", node->name());
  Node::Output& slot = node->outputs()[output];
  slot.shape = tensor.shape();
  slot.dtype = tensor.dtype();
  if (tensor.storage()->category() == Memory::other) tensor.storage()->book_as(Memory::activation);
  Variable result(std::move(tensor));
  Variable::Impl& impl = *result.impl();
  impl.requires_grad = is_floating(slot.dtype);
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
  base.impl()->is_aliased = true;
  result.impl()->is_aliased = true;
  return result;
}

void check_in_place(const char* op, const Variable& variable) {
  if (!NoGrad::grad_enabled() || !variable.requires_grad()) return;
  LOCKSTEP_CHECK(!variable.is_leaf(), "[", op, "] a leaf that requires grad cannot be changed in place; use a NoGrad scope or detach()");
  LOCKSTEP_CHECK(!variable.impl()->is_aliased, "[", op, "] a view on the tape, or a variable with views, cannot be changed in place; use the form that makes a new tensor");
}

void rebase(Variable& variable, const Variable& result) {
  Variable::Impl& impl = *variable.impl();
  impl.tensor = result.tensor();
  impl.node = result.impl()->node;
  impl.output = result.impl()->output;
  impl.requires_grad = result.requires_grad();
  impl.retained_grad = nullptr;
}

// --- the backward pass ---

void Leaf::run(Backward& backward) {
  Tensor& incoming = backward.grad();
  if (!incoming.defined()) return;
  const MemoryScope scope(Memory::gradient);
  if (grad.defined()) {
    add_(grad, incoming);
  } else {
    grad = is_dense(incoming) ? std::move(incoming) : incoming.clone();
    grad.storage()->book_as(Memory::gradient);
  }
  incoming = {};
  for (size_t i = 0; i < on_complete.size(); ++i) on_complete[i].second(grad);
}

/// One backward pass. `wanted`, when given, are the places whose gradients are to be collected instead of added to .grad.
class Pass {
 public:
  struct Wanted { Edge edge; Tensor grad; };

  Pass(bool retain_graph, std::vector<Wanted>* wanted) : id_(next_pass.fetch_add(1)), retain_graph_(retain_graph), wanted_(wanted) {}
  ~Pass() {
    abandon();
    // Leaves shared with an outer pass get their state back.
    for (Borrowed& b : borrowed_) {
      b.node->pass_ = b.pass;
      b.node->uses_ = b.uses;
      b.node->outputs_[0].grad = std::move(b.grad);
    }
  }

  void run(const Edge& start, Tensor gradient) {
    push(start.node);
    count(start.node);
    start.node->outputs()[start.output].grad = std::move(gradient);
    while (!ready_.empty()) {
      std::pop_heap(ready_.begin(), ready_.end(), before);
      const Ref<Node> node = std::move(ready_.back());
      ready_.pop_back();
      step(node);
    }
  }

 private:
  struct Borrowed { Ref<Node> node; uint64_t pass; int uses; Tensor grad; };

  static bool before(const Ref<Node>& a, const Ref<Node>& b) { return a->number() < b->number(); }
  static void clear(Node& node) { for (Node::Output& output : node.outputs()) output.grad = {}; }

  void push(Ref<Node> node) {
    ready_.push_back(std::move(node));
    std::push_heap(ready_.begin(), ready_.end(), before);
  }

  void visit(Node* node) {
    if (node->pass_ == id_) return;
    LOCKSTEP_CHECK(!node->released_, "[backward] the graph of '", node->name(),
                   "' was freed by an earlier backward; pass retain_graph = true to the first one");
    // Checkpointing runs a pass inside a pass: a leaf may still be counted by the outer one.
    if (node->is_leaf()) {
      Node::Output& output = node->outputs_[0];
      if (node->uses_ > 0) borrowed_.push_back({Ref<Node>(node), node->pass_, node->uses_, std::move(output.grad)});
      output.grad = {};
    }
    node->pass_ = id_;
    node->uses_ = 0;
    node->folded_ = false;
    stack_.push_back(node);
  }

  void count(const Ref<Node>& start) {
    visit(start.get());
    while (!stack_.empty()) {
      Node* node = stack_.back();
      stack_.pop_back();
      for (Edge& edge : node->inputs_) {
        if (!edge.node) continue;
        visit(edge.node.get());
        ++edge.node->uses_;
      }
    }
  }

  /// After an error: drops the gradients that wait in the graph. Whatever waits can be reached from what was ready.
  void abandon() {
    for (const auto* list : {&running_, &ready_}) for (const Ref<Node>& node : *list) stack_.push_back(node.get());
    while (!stack_.empty()) {
      Node* node = stack_.back();
      stack_.pop_back();
      if (node->pass_ != id_) continue;
      node->pass_ = 0;
      node->uses_ = 0;
      clear(*node);
      for (Edge& edge : node->inputs_) if (edge.node) stack_.push_back(edge.node.get());
    }
  }

  void step(const Ref<Node>& ref) {
    Node& node = *ref;
    bool any_grad = false;
    running_.push_back(ref);
    for (int i = 0; i < node.outputs_.size(); ++i) {
      Node::Output& output = node.outputs_[i];
      if (!output.grad.defined()) continue;
      any_grad = true;
      if (output.hooks) run_hooks(output);
      if (wanted_) collect(node, i);
    }
    Backward backward(node, retain_graph_, !wanted_ && !AnomalyMode::enabled());
    if (any_grad && node.folded_) {
      backward.give(0, std::move(node.outputs_[0].grad));
    } else if (any_grad && !(wanted_ && node.is_leaf())) {
      std::optional<trace::Scope> scope;
      if (!node.is_leaf() && trace::on()) scope.emplace(node.name(), trace::Category::backward);
      node.run(backward);
    }
    clear(node);
    if (!retain_graph_ && !node.is_leaf()) {
      node.release_saved();
      node.released_ = true;
    }
    for (Edge& edge : node.inputs_) {
      if (!edge.node) continue;
      const Ref<Node> input = retain_graph_ ? edge.node : std::move(edge.node);
      if (--input->uses_ > 0) continue;
      if (input->is_leaf()) step(input);  // at once, so that listeners can send its gradient while the pass goes on
      else push(input);
    }
    running_.pop_back();
  }

  static void run_hooks(Node::Output& output) {
    // By index and over copies: a hook may add or remove hooks.
    for (size_t i = 0; i < output.hooks->size(); ++i) {
      const GradHook hook = (*output.hooks)[i].call;
      Tensor changed = hook(output.grad);
      if (!changed.defined()) continue;
      LOCKSTEP_CHECK(changed.shape() == output.shape && changed.dtype() == output.dtype, "[on_grad] expected the hook to return shape ",
                     output.shape, " and ", output.dtype, ", got ", changed.shape(), " and ", changed.dtype());
      output.grad = std::move(changed);
    }
  }

  void collect(Node& node, int output) {
    for (Wanted& want : *wanted_) {
      if (want.edge.node.get() == &node && want.edge.output == output) want.grad = node.outputs_[output].grad;
    }
  }

  uint64_t id_;
  bool retain_graph_;
  std::vector<Wanted>* wanted_;
  std::vector<Ref<Node>> ready_;
  std::vector<Ref<Node>> running_;  // a node, and perhaps a leaf below it
  std::vector<Node*> stack_;
  std::vector<Borrowed> borrowed_;
};

namespace {

void run_pass(const char* op, const Variable& root, const Tensor& gradient, bool retain_graph, std::vector<Pass::Wanted>* wanted) {
  LOCKSTEP_CHECK(root.requires_grad(), "[", op, "] element 0 does not require grad: nothing that made this value wants a gradient");
  LOCKSTEP_CHECK(gradient.defined() || root.numel() == 1, "[", op, "] expected a gradient for a result of shape ", root.shape(),
                 " (only results of one element need none)");
  LOCKSTEP_CHECK(!gradient.defined() || (gradient.shape() == root.shape() && gradient.dtype() == root.dtype()), "[", op,
                 "] expected a gradient of shape ", root.shape(), " and ", root.dtype(), ", got ", gradient.shape(), " and ", gradient.dtype());
  LOCKSTEP_CHECK(!gradient.defined() || gradient.device() == root.device(), "[", op, "] expected a gradient on ", root.device(), ", got one on ",
                 gradient.device(), " (move with .to(device))");
  const NoGrad no_grad;
  const trace::Scope scope(op, trace::Category::backward);
  std::vector<std::function<void()>> callbacks;
  auto* const outer = end_callbacks;
  if (!outer) end_callbacks = &callbacks;
  try {
    Pass(retain_graph, wanted).run({root.impl()->node, root.impl()->output}, gradient.defined() ? gradient : ones_like(root.tensor()));
    if (!outer) for (size_t i = 0; i < callbacks.size(); ++i) callbacks[i]();
  } catch (...) {
    end_callbacks = outer;
    throw;
  }
  end_callbacks = outer;
}

}  // namespace

void Variable::backward(const Tensor& gradient, bool retain_graph) const { run_pass("backward", *this, gradient, retain_graph, nullptr); }

std::vector<Tensor> grad(const Variable& output, const std::vector<Variable>& inputs, const Tensor& gradient, bool retain_graph) {
  std::vector<Pass::Wanted> wanted;
  for (const Variable& input : inputs) {
    LOCKSTEP_CHECK(input.requires_grad(), "[grad] expected every input to require grad, input ", wanted.size(), " does not");
    wanted.push_back({{input.impl()->node, input.impl()->output}, {}});
  }
  run_pass("grad", output, gradient, retain_graph, &wanted);
  std::vector<Tensor> grads;
  for (auto& want : wanted) grads.push_back(std::move(want.grad));
  return grads;
}

void after_backward(std::function<void()> callback) {
  LOCKSTEP_CHECK(end_callbacks, "[after_backward] expected a backward pass to be running in this thread");
  end_callbacks->push_back(std::move(callback));
}

}  // namespace lockstep
