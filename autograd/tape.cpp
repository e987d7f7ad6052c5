// The backward pass. (record.cpp records the tape; backward.cpp implements Backward, the argument of derivatives.)
//
// A pass has two loops. count() visits all nodes that the result depends on and counts how many gradients each will
// receive. walk() keeps the nodes whose gradients are complete in a heap and takes the one with the highest number (the
// latest recorded) first. So the order, and with it every sum of gradients, is always the same. A pass over n nodes
// takes O(n log w) time if at most w nodes are in the heap at once, and memory for the gradients of these nodes.
#include "autograd/tape.h"

#include <algorithm>

#include "autograd/autocast.h"
#include "autograd/recorded.h"
#include "trace/trace.h"

namespace lockstep {

/// One backward pass.
class Pass {
 public:
  static inline thread_local Pass* innermost = nullptr;  // passes nest: checkpointing runs one inside another

  Pass(const std::vector<Edge>* wanted, bool retains, bool records)
      : info_{retains || records, wanted, {}}, records_(records), found_(wanted ? wanted->size() : 0) {}
  Pass(const Pass&) = delete;
  ~Pass() {
    abandon();
    for (Borrowed& b : borrowed_) {
      b.node->visit_ = b.visit;
      for (size_t i = 0; i < b.grads.size(); ++i) b.node->outputs_[int(i)].grad = std::move(b.grads[i]);
    }
    innermost = outer_;
    for (; ended_ < callbacks_.size(); ++ended_)
      if (callbacks_[ended_].second) callbacks_[ended_].second();
  }

  std::vector<Variable> run(tape::GradAt start) {
    const NoGrad no_grad;
    begin(std::move(start));
    walk();
    for (; ended_ < callbacks_.size(); ++ended_)
      std::function<void()>(callbacks_[ended_].first)();  // a copy, because the callback may add others
    return std::move(found_);
  }

  /// Calls `ended` when the outermost pass of this thread is complete, or `abandoned` if an Error ends that pass.
  void at_end(std::function<void()> ended, std::function<void()> abandoned) {
    if (outer_) outer_->at_end(std::move(ended), std::move(abandoned));
    else callbacks_.emplace_back(std::move(ended), std::move(abandoned));
  }
  bool is_inside_recorded() const { return records_ || (outer_ && outer_->is_inside_recorded()); }

 private:
  /// The state of a node in an outer pass, while this pass uses the node.
  struct Borrowed {
    Ref<Node> node;
    Node::Visit visit;
    std::vector<Node::Grad> grads;
  };

  static bool before(const Ref<Node>& a, const Ref<Node>& b) { return a->number() < b->number(); }
  static void clear(Node& node) {
    for (Node::Output& output : node.outputs_) output.grad = {};
  }

  void push(Ref<Node> node) {
    ready_.push_back(std::move(node));
    std::push_heap(ready_.begin(), ready_.end(), before);
  }

  void begin(tape::GradAt start) {
    const auto& [node, output] = start.first;
    push(node);
    count(node.get());
    Node::Grad& grad = node->outputs_[output].grad;
    if (records_) grad.recorded = std::move(start.second);
    else grad.plain = taken(std::move(start.second));
  }

  void visit(Node* node) {
    if (node->visit_.pass == id_) return;
    LOCKSTEP_CHECK(!node->released_, "[backward] the graph of '", node->name(),
                   "' was freed by an earlier backward; pass retain_graph = true to the first one");
    for (const Pass* pass = outer_; pass; pass = pass->outer_) {
      if (node->visit_.pass != pass->id_) continue;
      Borrowed& b = borrowed_.emplace_back(Borrowed{Ref<Node>(node), node->visit_, {}});
      for (Node::Output& output : node->outputs_) b.grads.push_back(std::exchange(output.grad, {}));
    }
    node->visit_ = {.pass = id_, .leads = !skips()};
    stack_.push_back(node);
  }

  void count(Node* start) {
    std::vector<Node*> visited;
    visit(start);
    while (!stack_.empty()) {
      Node* node = stack_.back();
      stack_.pop_back();
      if (skips()) visited.push_back(node);
      for (Edge& edge : node->inputs_) {
        if (!edge.node) continue;
        visit(edge.node.get());
        ++edge.node->visit_.uses;
      }
    }
    if (!skips()) return;
    for (const Edge& edge : *info_.wanted)
      if (edge.node->visit_.pass == id_) edge.node->visit_.leads = true;
    std::sort(visited.begin(), visited.end(), [](const Node* a, const Node* b) { return a->number() < b->number(); });
    for (Node* node : visited) node->visit_.leads |= reads_leading(*node);
  }

  /// True for a recorded grad(), which runs only nodes whose gradient leads to a wanted one: others may have no second
  /// derivative.
  bool skips() const { return records_ && info_.wanted; }
  static bool reads_leading(Node& node) {
    return std::any_of(node.inputs_.begin(), node.inputs_.end(),
                       [](const Edge& edge) { return edge.node && edge.node->visit_.leads; });
  }

  /// After an error: drops the gradients that are still stored in the graph. All nodes that store one can be reached
  /// from nodes that were ready or running.
  void abandon() {
    for (const auto* list : {&running_, &ready_})
      for (const Ref<Node>& node : *list) stack_.push_back(node.get());
    while (!stack_.empty()) {
      Node* node = stack_.back();
      stack_.pop_back();
      if (node->visit_.pass != id_) continue;
      node->visit_ = {};
      clear(*node);
      for (Edge& edge : node->inputs_)
        if (edge.node) stack_.push_back(edge.node.get());
    }
  }

  void walk() {
    const NoGrad mode(records_);
    std::optional<Autocast> no_casts;
    if (records_) no_casts.emplace(bf16, false);
    while (!ready_.empty()) {
      std::pop_heap(ready_.begin(), ready_.end(), before);
      const Ref<Node> node = std::move(ready_.back());
      ready_.pop_back();
      step(node);
    }
  }

  void step(const Ref<Node>& ref) {
    Node& node = *ref;
    running_.push_back(ref);
    bool any_grad = false;
    for (int i = 0; i < node.outputs_.size(); ++i) {
      Node::Output& output = node.outputs_[i];
      auto& [plain, recorded] = output.grad;
      if (records_ && recorded.defined()) plain = recorded.tensor();
      if (!plain.defined()) continue;
      any_grad = true;
      if (output.hooks) output.run_hooks();
      LOCKSTEP_CHECK(!records_ || plain.storage() == recorded.tensor().storage(), "[on_grad] hooks of '", node.name(),
                     "' must not replace the gradient with create_graph: the replacement would not be on the tape; "
                     "return an undefined Tensor");
      for (size_t k = 0; k < found_.size(); ++k)
        if ((*info_.wanted)[k].node == ref && (*info_.wanted)[k].output == i)
          found_[k] = records_ ? recorded : Variable(plain);
    }
    if (any_grad) run_node(ref);
    clear(node);
    if (!info_.retains && !node.is_leaf()) {
      node.release_saved();
      node.released_ = true;
    }
    for (Edge& edge : node.inputs_) {
      if (!edge.node) continue;
      const Ref<Node> input = info_.retains ? edge.node : std::move(edge.node);
      if (--input->visit_.uses > 0) continue;
      if (input->is_leaf()) step(input);  // a leaf's gradient is complete: hooks can send it while the pass continues
      else push(input);
    }
    running_.pop_back();
  }

  void run_node(const Ref<Node>& node) {
    if (node->is_leaf() ? bool(info_.wanted) : skips() && !reads_leading(*node)) return;
    Backward backward(info_, node);
    if (node->is_folded()) return backward.give(0, std::move(backward.grad()));
    std::optional<trace::Scope> scope;
    if (!node->is_leaf() && trace::on()) scope.emplace(node->name(), trace::Category::backward);
    if (!records_) return node->run(backward);
    RecordedBackward recorded(info_, node);
    node->run(recorded);
    for (const Variable& start : std::exchange(info_.starts, {}))
      begin({tape::edge_of(start), start});  // any gradient will do: Join does not read it
  }

  static inline std::atomic<uint64_t> passes_{0};
  const uint64_t id_ = ++passes_;
  PassInfo info_;
  const bool records_;
  std::vector<Variable> found_;     // the gradients of info_.wanted
  std::vector<Ref<Node>> ready_;    // a heap
  std::vector<Ref<Node>> running_;  // the running node, and perhaps a leaf whose gradient it has completed
  std::vector<Node*> stack_;
  std::vector<Borrowed> borrowed_;
  std::vector<std::pair<std::function<void()>, std::function<void()>>> callbacks_;
  size_t ended_ = 0;  // callbacks that have been called
  Pass* const outer_ = std::exchange(innermost, this);
};

namespace {

/// The derivative of the node that tape::join() makes: passes `grads` on to the node outputs at which the pass starts.
struct Join {
  std::vector<Variable> grads;
  template <class Back> void operator()(Back& back) {
    for (size_t i = 0; i < grads.size(); ++i)
      // SplitBackward may have removed the edge to an input: then its gradient stays in `grads` for the second part
      if (grads[i].defined() && back.needs(int(i))) give_value(back, int(i), std::exchange(grads[i], {}));
  }
};

}  // namespace

Variable tape::join(std::vector<GradAt> list) {
  // a zero on the gradients' device, as a CUDA graph captures work of one device
  const Device device = list.empty() ? default_device() : list[0].second.device();
  Join joined;
  for (GradAt& at : list) joined.grads.push_back(std::move(at.second));  // moved, so that later sums may be in place
  const Ref<Node> node(new Function<Join>("joined", int(list.size()), 1, std::move(joined)));
  for (size_t i = 0; i < list.size(); ++i) node->inputs()[int(i)] = list[i].first;
  return attach(node, {}, zeros({}, {.device = device}));
}

std::vector<Variable> tape::run_pass(const char* op, GradAt start, const std::vector<Edge>* wanted, bool retains,
                                     bool records) {
  const trace::Scope scope(op, trace::Category::backward);
  return Pass(wanted, retains, records).run(std::move(start));
}

bool tape::in_recorded_pass() { return Pass::innermost && Pass::innermost->is_inside_recorded(); }

void after_backward(std::function<void()> ended, std::function<void()> abandoned) {
  LOCKSTEP_CHECK(Pass::innermost,
                 "[after_backward] expected a backward pass to be running in this thread; call it in a hook");
  Pass::innermost->at_end(std::move(ended), std::move(abandoned));
}

}  // namespace lockstep
