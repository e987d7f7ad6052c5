// Nodes: numbering, allocation from free lists (every operation allocates and frees nodes), and destruction.
#include <utility>
#include <vector>

#include "autograd/tape.h"

namespace lockstep {

namespace {

std::atomic<uint64_t> next_number{1};

// Each thread keeps freed memory blocks for reuse, in one list per block size: 256, 512, 768 and 1024 bytes. A list
// holds at most kKeptBlocks blocks.
constexpr size_t kBlockStep = 256, kBlockClasses = 4, kKeptBlocks = 4096;

struct FreeLists {
  std::vector<void*> blocks[kBlockClasses];
  ~FreeLists() {
    closed = true;
    for (auto& list : blocks)
      for (void* block : list) ::operator delete(block);
  }
  // True: this thread has freed its lists; nodes destroyed later return their memory to the heap directly.
  static inline thread_local bool closed = false;
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
  if (c >= kBlockClasses || FreeLists::closed || free_lists().blocks[c].size() >= kKeptBlocks)
    return ::operator delete(block);
  free_lists().blocks[c].push_back(block);
}

}  // namespace

void* Node::operator new(size_t bytes) { return take_block(bytes); }
void Node::operator delete(void* node, size_t bytes) { give_block(node, bytes); }
void* Variable::Impl::operator new(size_t bytes) { return take_block(bytes); }
void Variable::Impl::operator delete(void* impl, size_t bytes) { give_block(impl, bytes); }

Node::Node(const char* name, int inputs, int outputs)
    : number_(next_number.fetch_add(1, std::memory_order_relaxed)), name_(name), inputs_(inputs), outputs_(outputs) {}

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

}  // namespace lockstep
