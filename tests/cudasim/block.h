#pragma once
// The block emulator: runs the threads of a block as fibers of one OS thread, checks how they synchronise, and can vary
// the order in which they run. Blocks of a grid run one after the other.
//
// A thread that never waits runs without a switch: a fiber takes the next thread of the block as long as those before
// it ended. One that waits keeps its fiber, and another fiber goes on with the rest.
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

namespace simt {

enum class Order { forward, reverse, random };
/// How kernels run, for the whole process; change it only while none runs. From the environment:
/// LOCKSTEP_FAKE_CUDA_ORDER (forward, reverse, random) and LOCKSTEP_FAKE_CUDA_SEED. A kernel whose result depends on
/// the order has a race.
struct Options {
  Order order = Order::forward;
  uint64_t seed = 1;
};
Options& options();

struct Counts {
  uint64_t blocks = 0, threads = 0, switches = 0;
};
/// Of this OS thread.
Counts& counts();

/// A kernel that did what it must not; thrown by run_grid().
struct Fault {
  std::string what;
};

/// The parts as one text, for messages.
std::string str(const auto&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

// --- for kernels, by way of simt_cpu.h ---

/// Where the running thread is in its block.
struct Place {
  unsigned linear, lane, warp;
};
extern constinit thread_local const Place* here;

enum class Warp : unsigned { shfl, shfl_xor, shfl_down, shfl_up, ballot, gather, sync };
/// How many threads came with a true predicate.
int barrier(const char* file, int line, bool predicate = false);
/// Each lane of `mask` gives `bytes` and gets those of lane `source`.
void warp_exchange(unsigned mask, Warp op, const void* sent, void* received, unsigned bytes, int source, int width);
unsigned warp_ballot(unsigned mask, bool predicate);
/// Every lane of a whole warp gives `words` and gets those of all lanes, one lane after the other.
void warp_gather(const uint64_t* sent, unsigned words, uint64_t* received);
void warp_sync(unsigned mask);
void fence();
/// In random order: lets other threads of the block go first, now and then.
void give_way();
/// For a thread that waits for a number in memory: lets the others go on. A fault where none of them does anything
/// else, as blocks run one after the other: the number is that of a block that may begin later.
void sleep();
/// What the n-th block to begin, from 0 on, is among all of the grid: n, but while there is a fake::SomeBlocks.
uint64_t nth_block(uint64_t n);

/// A copy to shared memory that arrives when its thread waits for it, and not before; `from` null: zeros.
struct Copy {
  void* to;
  const void* from;
  unsigned bytes;
};
void begin_copy(const Copy& copy);
/// Takes the next of the copies that this thread began; false: there is none.
bool take_copy(Copy& copy);
/// The running thread waits until another one wakes it.
void park();
void wake(unsigned thread);
unsigned block_size();
/// All of the block's shared memory, from address 0 on.
constexpr size_t shared_arena_bytes = 256 * 1024;
const unsigned char* shared_arena();
bool is_shared(const void* p);
void* shared_array(const void* key, size_t bytes, size_t align, const char* name);
void* dynamic_shared();
[[noreturn]] void fault(const std::string& what);

// --- for launches (launch.cpp) ---

/// What a block of the device may have of shared memory, and what it gets without asking.
size_t most_shared();
constexpr size_t shared_unasked = 48 * 1024;
/// A kernel of this device may ask for so many bytes of dynamic shared memory. False where there are not so many.
bool allow_shared(const void* kernel, int device, size_t bytes);
/// The driver's limits.
cudaError_t check_launch(const void* kernel, dim3 grid, dim3 block, size_t shared);
/// Which blocks of a grid are run, in their order, while there is a fake::SomeBlocks; empty: all.
std::vector<uint64_t> some_of(uint64_t blocks);
/// Puts the kernel on a stream: in stream.cpp.
cudaError_t enqueue_kernel(const char* op, cudaStream_t stream, std::function<void()> run);
/// What a launch of now may read: the current device.
int launch_device();
/// Whether a kernel of this device may use a pointer among its arguments: device memory of its own, that of a peer to
/// which it has access, or pinned memory. When not, the device fails.
bool is_argument(const char* op, int device, size_t number, const void* p);
/// Runs all blocks now. Throws Fault.
void run_grid(const char* op, dim3 grid, dim3 block, size_t shared, const std::function<void()>& body);
/// "embedding, block (3,0,0), thread (17,0,0)" while one runs on this OS thread, else "".
std::string running();

}  // namespace simt
