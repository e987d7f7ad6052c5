// The block emulator: threads, barriers and warps of the block that this OS thread runs.
#include "tests/cudasim/block.h"

#include <vector_functions.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "tests/cudasim/clocks.h"
#include "tests/cudasim/products.h"
#include "tests/cudasim/shared_memory.h"
#include "tests/cudasim/tma.h"

constinit thread_local uint3 threadIdx{}, blockIdx{};
constinit thread_local dim3 blockDim{}, gridDim{};

namespace simt {

constinit thread_local const Place* here = nullptr;

namespace {

constexpr unsigned warp_size = 32, max_copies = 64, max_rounds = 100;

std::string triple(const auto& v) { return str("(", v.x, ",", v.y, ",", v.z, ")"); }

enum class State : uint8_t { running, gave_way, at_barrier, in_warp, parked, done };

/// A thread of the block.
struct Thread {
  Place place;
  uint3 index;
  State state;
  Fiber* fiber;
  const Clock* clock;
  // The warp operation that the thread waits in.
  unsigned mask, op, bytes, ballot;
  int source;
  bool predicate;
  char order = 0;  // orders this thread with the others at __syncwarp
  alignas(8) unsigned char sent[8], received[8];
  const uint64_t* words_sent;
  uint64_t* words_received;
  unsigned words;
  unsigned first_copy, end_copy, groups;  // copies in flight; groups of copies that have ended
  // Rounds that the thread has slept, and the block's steps_ at the last of these rounds.
  unsigned rounds;
  uint64_t done_before;
};
/// A warp's pending operation.
struct WarpState {
  unsigned arrived = 0, exited = 0;  // bits of lanes
  unsigned mask = 0, op = 0;         // mask and operation that the arrived lanes passed, if all passed the same
  bool agree = false;
};

// Inline copies: ThreadSanitizer would attribute a call of memcpy to the kernel.
void copy(void* to, const void* from, unsigned bytes) {
  if (bytes == 2) __builtin_memcpy(to, from, 2);
  if (bytes == 4) __builtin_memcpy(to, from, 4);
  if (bytes == 8) __builtin_memcpy(to, from, 8);
}

/// The state of the block that this OS thread runs.
class Block {
 public:
  Block();
  ~Block();
  void run_grid(const char* op, dim3 grid, size_t dynamic, const std::function<void()>& body);
  int barrier(const char* file, int line, bool predicate);
  void meet(unsigned mask, unsigned op);
  void give_way();
  void sleep();
  uint64_t nth(uint64_t n) const { return some_.empty() ? n : some_.at(n); }
  void park() { wait(State::parked); }
  void make_ready(unsigned linear) { ready_.push_back(linear); }
  unsigned size() const { return size_; }
  Copy* copies() { return copies_.get() + size_t(current->place.linear) * max_copies; }
  std::string running() const {
    return op ? str(op, ", block ", triple(blockIdx), ", thread ", triple(threadIdx)) : "";
  }

  Thread* current = nullptr;
  const char* op = nullptr;  // nullptr if no kernel runs
  char fence_order = 0;
  SharedMemory shared;

 private:
  void run_block();
  Fiber& starter();
  Fiber* next();
  unsigned next_thread() const { return sequence_.empty() ? started_ : sequence_[started_]; }
  Fiber& resume(Thread& thread);
  void wait(State state);
  void make_ready(Thread& thread) { make_ready(thread.place.linear); }
  void release_barrier();
  bool stuck();
  void run_thread(Thread& thread);
  static void work();

  const std::function<void()>* body_ = nullptr;
  unsigned size_ = 0, started_ = 0, done_ = 0, waiting_ = 0, true_ = 0, counted_ = 0;
  std::string fault_;
  const char* barrier_file_ = nullptr;
  int barrier_line_ = 0;
  unsigned barriers_ = 0;
  uint64_t steps_ = 0;  // counts thread starts, ends, barriers and warp operations: signs of progress
  char barrier_order_[2] = {}, start_order_ = 0, end_order_ = 0;
  Clocks clocks_;
  Clock main_;
  std::mt19937_64 random_;
  std::unique_ptr<Thread[]> threads_;
  std::unique_ptr<Copy[]> copies_;
  std::vector<WarpState> warps_;
  std::vector<uint64_t> some_;                      // the blocks of the grid to run, ascending; empty: all
  std::vector<unsigned> ready_, batch_, sequence_;  // runnable threads; those of this round; the order of starting
  size_t resumed_ = 0;                              // threads of batch_ resumed in this round
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;
  Fiber* starter_ = nullptr;  // the fiber that starts new threads
};

Block& block() {
  constinit static thread_local Block* known = nullptr;  // no initialisation guard: warp operations call this often
  if (!known) {
    static thread_local const auto made = std::make_unique<Block>();
    known = made.get();
  }
  return *known;
}

Block::Block() : threads_(new Thread[max_threads]), copies_(new Copy[max_threads * max_copies]) {
  for (auto* list : {&ready_, &batch_}) list->reserve(2048);  // threads of a kernel must not allocate
}
Block::~Block() { acquire(&end_order_); }  // after all threads of its kernels

// --- threads ---

void Block::run_thread(Thread& thread) {
  thread.clock->enter();
  acquire(&start_order_);
  try {
    (*body_)();
    products_of_thread();
  } catch (const Fault& fault) {
    if (fault_.empty()) fault_ = fault.what;
  } catch (const std::exception& error) {
    if (fault_.empty()) fault_ = running() + ": exception in a kernel: " + error.what();
  }
  Thread& self = *current;  // the same thread; read again, because it may have waited
  release(&end_order_);
  main_.enter();
  self.state = State::done;
  ++done_;
  ++steps_;
  warps_[self.place.linear / warp_size].exited |= 1u << self.place.lane;
}

// The body of a fiber: starts threads until there are none left, then waits for the next block.
void Block::work() {
  Block& b = block();
  Fiber* const self = b.starter_;
  for (;;) {
    while (b.started_ < b.size_ && b.fault_.empty()) {
      const unsigned linear = b.next_thread();
      ++b.started_;
      Thread& thread = b.threads_[linear];
      thread.place = {linear, linear % warp_size, linear / warp_size};
      thread.index = {linear % blockDim.x, linear / blockDim.x % blockDim.y, linear / blockDim.x / blockDim.y};
      thread.state = State::running;
      thread.fiber = self;
      thread.clock = &b.clocks_.of(linear);
      thread.first_copy = thread.end_copy = thread.groups = thread.rounds = thread.words = 0;
      ++b.steps_;
      b.current = &thread;
      here = &thread.place;
      threadIdx = thread.index;
      b.run_thread(thread);
      if (with_tsan() || (options().order == Order::random && b.random_() % 4 == 0)) break;
    }
    if (with_tsan()) self->end();  // with ThreadSanitizer every thread has its own stack
    Fiber* const next = b.next();
    b.idle_.push_back(self);
    self->leave_to(next);
  }
}

// A fiber that will start with the next thread of the block.
Fiber& Block::starter() {
  if (with_tsan()) return *(starter_ = &clocks_.stack(next_thread(), &Block::work));
  if (idle_.empty())
    idle_.push_back(fibers_.emplace_back(std::make_unique<Fiber>(&Block::work, unsigned(fibers_.size()))).get());
  starter_ = idle_.back();
  idle_.pop_back();
  return *starter_;
}

// Makes the thread the running one and returns its fiber, which the caller enters.
Fiber& Block::resume(Thread& thread) {
  current = &thread;
  here = &thread.place;
  threadIdx = thread.index;
  thread.state = State::running;
  thread.clock->enter();
  return *thread.fiber;
}

// The fiber that continues when a thread waits or ends; nullptr: return to run_block().
Fiber* Block::next() {
  if (with_tsan() || !fault_.empty()) return nullptr;
  if (resumed_ < batch_.size()) return &resume(threads_[batch_[resumed_++]]);
  if (started_ > 0 && started_ < size_ && options().order != Order::random) return &starter();
  return nullptr;
}

// Suspends the running thread; returns when it is resumed.
void Block::wait(State state) {
  Thread& self = *current;
  self.state = state;
  main_.enter();
  self.fiber->leave_to(next());
  if (!fault_.empty()) throw Fault{fault_};
}

// --- barriers and warps ---

int Block::barrier(const char* file, int line, bool predicate) {
  if (waiting_ > 0 && (barrier_line_ != line || (barrier_file_ != file && std::strcmp(barrier_file_, file) != 0)))
    fault(str("barrier divergence: this thread is at ", file, ":", line, ", others wait at ", barrier_file_, ":",
              barrier_line_));
  barrier_file_ = file;
  barrier_line_ = line;
  ++steps_;
  if (waiting_++ == 0) true_ = 0;
  true_ += predicate;
  // Two alternating clocks: a thread may reach the next barrier before all others have left this one.
  char* const order = &barrier_order_[barriers_ % 2];
  release(order);
  wait(State::at_barrier);
  acquire(order);
  return int(counted_);
}

void Block::give_way() {
  if (options().order != Order::random || random_() % 4 != 0) return;
  make_ready(*current);
  wait(State::gave_way);
}

void Block::sleep() {
  Thread& self = *current;
  if (self.done_before != steps_) self.rounds = 0;
  self.done_before = steps_;
  if (++self.rounds > max_rounds)
    fault(
        "deadlock: the thread polls memory that no thread of this block will write; a block may wait only for blocks "
        "that started before it, which have a lower ticket");
  make_ready(self);
  wait(State::gave_way);
}

void Block::release_barrier() {
  counted_ = true_;
  waiting_ = 0;
  ++barriers_;
  for (unsigned i = 0; i < size_; ++i)
    if (threads_[i].state == State::at_barrier) make_ready(threads_[i]);
  if (options().order == Order::reverse) std::reverse(ready_.begin(), ready_.end());
}

// The lanes of a mask meet in an operation. The last one to arrive does the exchange for all, so each lane waits once.
void Block::meet(unsigned mask, unsigned op) {
  Thread& self = *current;
  WarpState& warp = warps_[self.place.warp];
  const unsigned first = self.place.warp * warp_size, lanes = std::min(warp_size, size_ - first);
  const unsigned existing = lanes < warp_size ? (1u << lanes) - 1 : ~0u, wanted = mask & existing,
                 own = 1u << self.place.lane;
  if (!(mask & own)) fault("warp operation: the calling lane is not in its own mask");
  if (mask != wanted && mask != ~0u) fault("warp operation: the mask names lanes that do not exist");
  if (warp.exited & wanted) fault("warp operation: a lane of the mask has exited");
  if (warp.arrived == 0) warp.mask = mask, warp.op = op, warp.agree = true;
  warp.agree = warp.agree && warp.mask == mask && warp.op == op;
  for (unsigned left = warp.agree ? 0 : warp.arrived & wanted; left; left &= left - 1) {
    const Thread& other = threads_[first + unsigned(__builtin_ctz(left))];
    if (other.mask != mask || other.op != op)
      fault("warp operation: the lanes disagree on the mask or on the operation");
  }
  self.mask = mask;
  self.op = op;
  ++steps_;
  warp.arrived |= own;
  if ((warp.arrived & wanted) != wanted) return wait(State::in_warp);
  warp.arrived &= ~wanted;
  if (with_tsan() && op == unsigned(Warp::sync) * 64) {
    const auto each = [&](auto fn) {
      for (unsigned left = wanted; left; left &= left - 1) fn(&threads_[first + unsigned(__builtin_ctz(left))].order);
    };
    each([](char* order) { acquire(order); });
    each([](char* order) { release(order); });
  }
  unsigned ballot = 0;
  for (unsigned left = wanted; left; left &= left - 1) {
    const unsigned lane = unsigned(__builtin_ctz(left));
    ballot |= unsigned(threads_[first + lane].predicate) << lane;
  }
  for (unsigned left = wanted; left; left &= left - 1) {
    const unsigned lane = unsigned(__builtin_ctz(left));
    Thread& thread = threads_[first + lane];
    thread.ballot = ballot;
    for (unsigned other = 0; thread.words > 0 && other < lanes; ++other)
      for (unsigned i = 0; i < thread.words; ++i)
        thread.words_received[other * thread.words + i] = threads_[first + other].words_sent[i];
    if (thread.bytes > 0) {
      if (!(wanted >> thread.source & 1))
        fault(str("shuffle: lane ", lane, " reads lane ", thread.source, ", which is not in the mask"));
      copy(thread.received, threads_[first + unsigned(thread.source)].sent, thread.bytes);
    }
    if (lane != self.place.lane) make_ready(thread);
  }
}

// No thread can run. Returns true if releasing a barrier lets threads continue; else records the fault.
bool Block::stuck() {
  if (waiting_ > 0 && waiting_ + done_ == size_) {
    if (done_ == 0) {
      release_barrier();
      return true;
    }
    fault_ = str("barrier divergence: ", waiting_, " threads wait at ", barrier_file_, ":", barrier_line_, ", but ",
                 done_, " threads of the block have exited");
  } else {
    const auto parked =
        std::count_if(threads_.get(), threads_.get() + size_, [](const Thread& t) { return t.state == State::parked; });
    fault_ =
        str("deadlock: ", waiting_, " threads wait at a barrier",
            waiting_ > 0 ? str(" (", barrier_file_, ":", barrier_line_, ")") : "", ", ", parked - waiting_for_tiles(),
            " for a product that other threads of their warpgroup have not issued, ", unfinished_phase(),
            size_ - waiting_ - done_ - parked, " for other lanes in a warp operation, ", done_, " have exited");
  }
  fault_ = str(op, ", block ", triple(blockIdx), ": ", fault_);
  return false;
}

// --- grids ---

void Block::run_block() {
  started_ = done_ = waiting_ = 0;
  ready_.clear();
  std::fill(warps_.begin(), warps_.end(), WarpState{});
  if (options().order == Order::random) std::shuffle(sequence_.begin(), sequence_.end(), random_);
  clocks_.begin_block();
  products_of_block();
  arrivals_of_block();

  while (fault_.empty() && done_ < size_) {
    if (started_ < size_ && (ready_.empty() || options().order != Order::random || random_() % 2)) {
      starter().enter();
    } else if (!ready_.empty()) {
      batch_.swap(ready_);
      ready_.clear();
      if (options().order == Order::random) std::shuffle(batch_.begin(), batch_.end(), random_);
      for (resumed_ = 0; resumed_ < batch_.size() && fault_.empty();) resume(threads_[batch_[resumed_++]]).enter();
      batch_.clear();
    } else if (!stuck()) {
      break;
    }
  }
  if (fault_.empty()) {
    if (const std::string left = tiles_under_way(); !left.empty())
      fault_ = str(op, ", block ", triple(blockIdx), ": ", left);
  }
  if (!fault_.empty()) {  // waiting threads leave by the Fault that wait() throws
    for (unsigned i = 0; i < started_; ++i) {
      Thread& thread = threads_[sequence_.empty() ? i : sequence_[i]];
      if (thread.state != State::done) resume(thread).enter();
    }
  }
  if (!shared.end_block() && fault_.empty())
    fault_ = str(op, ", block ", triple(blockIdx), ": shared memory was written to outside its arrays");
}

void Block::run_grid(const char* name, dim3 grid, size_t dynamic, const std::function<void()>& body) {
  op = name;
  body_ = &body;
  size_ = blockDim.x * blockDim.y * blockDim.z;
  warps_.resize((size_ + warp_size - 1) / warp_size);
  shared.begin_grid(dynamic);
  fault_.clear();
  main_.current();
  clocks_.begin_grid(main_);
  release(&start_order_);
  random_.seed(options().seed);
  sequence_.clear();
  const uint64_t blocks = uint64_t(grid.x) * grid.y * grid.z;
  std::vector<uint64_t> order = some_ = some_of(blocks);
  const bool all = order.empty();
  if (options().order != Order::forward) {
    for (unsigned i = 0; i < size_; ++i) sequence_.push_back(size_ - 1 - i);
    for (uint64_t i = 0; all && i < blocks; ++i) order.push_back(i);
    std::reverse(order.begin(), order.end());
    if (options().order == Order::random) std::shuffle(order.begin(), order.end(), random_);
  }
  const uint64_t count = order.empty() ? blocks : order.size();
  for (uint64_t i = 0; i < count && fault_.empty(); ++i) {
    const uint64_t at = order.empty() ? i : order[i];
    blockIdx = {unsigned(at % grid.x), unsigned(at / grid.x % grid.y), unsigned(at / grid.x / grid.y)};
    run_block();
  }
  acquire(&end_order_);
  op = nullptr;
  current = nullptr;
  here = nullptr;
  if (!fault_.empty()) throw Fault{fault_};
}

}  // namespace

// --- the functions of block.h ---

Options& options() {
  static Options made = [] {
    Options o;
    const char *order = std::getenv("LOCKSTEP_FAKE_CUDA_ORDER"), *seed = std::getenv("LOCKSTEP_FAKE_CUDA_SEED");
    if (order)
      o.order = !std::strcmp(order, "reverse")  ? Order::reverse
                : !std::strcmp(order, "random") ? Order::random
                                                : Order::forward;
    if (seed) o.seed = std::strtoull(seed, nullptr, 10);
    return o;
  }();
  return made;
}

void fault(const std::string& what) { throw Fault{block().running() + ": " + what}; }
std::string running() { return block().running(); }
int barrier(const char* file, int line, bool predicate) { return block().barrier(file, line, predicate); }
void fence() {
  acquire(&block().fence_order);
  release(&block().fence_order);
}
void give_way() { block().give_way(); }
void sleep() { block().sleep(); }
uint64_t nth_block(uint64_t n) { return block().nth(n); }
void* shared_array(const void* key, size_t bytes, size_t align, const char* name) {
  return block().shared.array(key, bytes, align, name);
}
void* dynamic_shared() { return block().shared.dynamic_array(); }

void warp_exchange(unsigned mask, Warp op, const void* sent, void* received, unsigned bytes, int source, int width) {
  Thread& self = *block().current;
  if (width < 1 || width > int(warp_size) || (width & (width - 1)) != 0)
    fault(str("shuffle: expected a width of 1, 2, 4, 8, 16 or 32, got ", width));
  copy(self.sent, sent, bytes);
  self.bytes = bytes;
  self.source = source;
  self.predicate = false;
  block().meet(mask, unsigned(op) * 64 + unsigned(width));
  copy(received, self.received, bytes);
}
unsigned warp_ballot(unsigned mask, bool predicate) {
  Thread& self = *block().current;
  self.bytes = 0;
  self.predicate = predicate;
  block().meet(mask, unsigned(Warp::ballot) * 64);
  return self.ballot;
}
void warp_gather(const uint64_t* sent, unsigned words, uint64_t* received) {
  Thread& self = *block().current;
  self.bytes = 0;
  self.predicate = false;
  self.words_sent = sent, self.words_received = received, self.words = words;
  block().meet(~0u, unsigned(Warp::gather) * 64 + words);
  self.words = 0;
}
// __syncwarp orders memory; shuffles and ballots do not.
void warp_sync(unsigned mask) {
  Thread& self = *block().current;
  self.bytes = 0;
  self.predicate = false;
  release(&self.order);
  block().meet(mask, unsigned(Warp::sync) * 64);
  acquire(&self.order);
}

void park() { block().park(); }
void wake(unsigned thread) { block().make_ready(thread); }
unsigned block_size() { return block().size(); }
const unsigned char* shared_arena() { return block().shared.arena(); }
bool is_shared(const void* p) { return block().shared.contains(p); }

void begin_copy(const Copy& copy) {
  Thread& self = *block().current;
  if (!is_shared(copy.to)) fault("copy to shared memory: its target is outside shared memory");
  copy_begins(copy.to, copy.bytes);
  if (self.end_copy - self.first_copy == max_copies)
    fault(str("copy to shared memory: the emulator supports at most ", max_copies, " per thread"));
  Copy& queued = block().copies()[self.end_copy++ % max_copies];
  queued = copy;
  queued.group = self.groups;
}
void end_group_of_copies() { ++block().current->groups; }
bool take_copy(Copy& copy, int left) {
  Thread& self = *block().current;
  if (self.first_copy == self.end_copy) return false;
  const Copy& next = block().copies()[self.first_copy % max_copies];
  if (left >= 0 && next.group + unsigned(left) >= self.groups) return false;
  copy = next;
  ++self.first_copy;
  return true;
}

void run_grid(const char* op, dim3 grid, dim3 size, size_t shared, const std::function<void()>& body) {
  blockDim = size;
  gridDim = grid;
  struct Ignore {  // the kernel's threads have their own clocks, which are checked
    Ignore() { begin_ignore(); }
    ~Ignore() { end_ignore(); }
  } const ignore;
  block().run_grid(op, grid, shared, body);
}

}  // namespace simt
