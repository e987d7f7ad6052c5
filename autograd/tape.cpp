// The backward pass. (record.cpp records the tape; give.cpp implements Backward, with which derivatives read and give
// gradients.)
//
// A pass has two loops. count() visits all nodes that the result depends on and counts how many gradients each will
// receive. run() keeps the nodes whose gradients are complete in a heap and takes the one with the highest number (the
// latest recorded) first. So the order, and with it every sum of gradients, is always the same. A pass over n nodes
// takes O(n log w) time if at most w nodes are in the heap at once, and memory for the gradients of these nodes.
#include "autograd/tape.h"

#include <algorithm>

#include "autograd/recorded_pass.h"
#include "autograd/split_backward.h"
#include "tensor/ops.h"
#include "trace/trace.h"

namespace lockstep {
namespace {

std::atomic<uint64_t> next_pass{1};
thread_local std::vector<std::function<void()>>* end_callbacks = nullptr;

}  // namespace

/// One backward pass. `wanted`, if given, lists the node outputs whose gradients are collected instead of being added
/// to .grad.
class Pass {
 public:
  struct Wanted {
    Edge edge;
    Tensor grad;
  };

  Pass(bool retain_graph, std::vector<Wanted>* wanted)
      : id_(next_pass.fetch_add(1)), retain_graph_(retain_graph), wanted_(wanted) {}
  ~Pass() {
    abandon();
    // If this pass runs inside another (checkpointing), restore the outer pass's state of leaves that both reach.
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
  struct Borrowed {
    Ref<Node> node;
    uint64_t pass;
    int uses;
    Tensor grad;
  };

  static bool before(const Ref<Node>& a, const Ref<Node>& b) { return a->number() < b->number(); }
  static void clear(Node& node) {
    for (Node::Output& output : node.outputs()) output.grad = {};
  }

  void push(Ref<Node> node) {
    ready_.push_back(std::move(node));
    std::push_heap(ready_.begin(), ready_.end(), before);
  }

  void visit(Node* node) {
    if (node->pass_ == id_) return;
    LOCKSTEP_CHECK(!node->released_, "[backward] the graph of '", node->name(),
                   "' was freed by an earlier backward; pass retain_graph = true to the first one");
    // Checkpointing nests passes. If the outer pass expects more gradients for this leaf, save the leaf's state.
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

  /// After an error: drops the gradients that are still stored in the graph. All nodes that store one can be reached
  /// from nodes that were ready or running.
  void abandon() {
    for (const auto* list : {&running_, &ready_})
      for (const Ref<Node>& node : *list) stack_.push_back(node.get());
    while (!stack_.empty()) {
      Node* node = stack_.back();
      stack_.pop_back();
      if (node->pass_ != id_) continue;
      node->pass_ = 0;
      node->uses_ = 0;
      clear(*node);
      for (Edge& edge : node->inputs_)
        if (edge.node) stack_.push_back(edge.node.get());
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
      if (output.hooks) output.run_hooks();
      if (wanted_) collect(node, i);
    }
    Backward backward(node, retain_graph_, !AnomalyMode::enabled() && !reads_wanted(node));
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
      if (input->is_leaf()) step(input);  // a leaf's gradient is complete: hooks can send it while the pass continues
      else push(input);
    }
    running_.pop_back();
  }

  /// True if grad() must return the gradient of one of the node's inputs: fold() must then not change that gradient.
  bool reads_wanted(const Node& node) const {
    for (size_t i = 0; wanted_ && i < wanted_->size(); ++i)
      for (const Edge& edge : node.inputs_)
        if (edge.node.get() == (*wanted_)[i].edge.node.get() && !edge.node->is_leaf()) return true;
    return false;
  }

  void collect(Node& node, int output) {
    for (Wanted& want : *wanted_)
      if (want.edge.node.get() == &node && want.edge.output == output) want.grad = node.outputs_[output].grad;
  }

  uint64_t id_;
  bool retain_graph_;
  std::vector<Wanted>* wanted_;
  std::vector<Ref<Node>> ready_;
  std::vector<Ref<Node>> running_;  // the running node, and perhaps a leaf whose gradient it has completed
  std::vector<Node*> stack_;
  std::vector<Borrowed> borrowed_;
};

namespace {

/// Runs a pass. The outermost pass of a thread then calls the after_backward() callbacks.
template <class Fn> void with_callbacks(const char* op, Fn pass) {
  const trace::Scope scope(op, trace::Category::backward);
  std::vector<std::function<void()>> callbacks;
  struct Restore {
    std::vector<std::function<void()>>* outer = end_callbacks;
    ~Restore() { end_callbacks = outer; }
  } const restore;
  if (restore.outer) return pass();
  end_callbacks = &callbacks;
  pass();
  for (size_t i = 0; i < callbacks.size(); ++i) callbacks[i]();
}

void run_pass(const char* op, const Variable& root, const Tensor& gradient, bool retain_graph,
              std::vector<Pass::Wanted>* wanted) {
  check_start(op, root, gradient);
  const NoGrad no_grad;
  with_callbacks(op, [&] {
    Pass(retain_graph, wanted)
        .run({root.impl()->node, root.impl()->output}, gradient.defined() ? gradient : ones_like(root.tensor()));
  });
}

}  // namespace

void Variable::backward(const Tensor& gradient, bool retain_graph) const {
  run_pass("backward", *this, gradient, retain_graph, nullptr);
}

void Variable::backward(const BackwardOptions& options) const {
  if (!options.create_graph) return backward(options.gradient, options.retain_graph);
  check_start("backward", *this, options.gradient);
  with_callbacks("backward", [&] { backward_recorded(*this, options.gradient); });
}

std::vector<Tensor> gradients(const Variable& output, const std::vector<Variable>& inputs, const Tensor& gradient,
                              bool retain_graph) {
  std::vector<Pass::Wanted> wanted;
  for (const Variable& input : inputs) {
    LOCKSTEP_CHECK(input.requires_grad(), "[grad] expected every input to require grad, input ", wanted.size(),
                   " does not");
    wanted.push_back({{input.impl()->node, input.impl()->output}, {}});
  }
  run_pass("grad", output, gradient, retain_graph, &wanted);
  std::vector<Tensor> grads;
  for (auto& want : wanted) grads.push_back(std::move(want.grad));
  return grads;
}

void after_backward(std::function<void()> callback) {
  LOCKSTEP_CHECK(end_callbacks,
                 "[after_backward] expected a backward pass to be running in this thread; call it in a hook");
  end_callbacks->push_back(std::move(callback));
}

}  // namespace lockstep
