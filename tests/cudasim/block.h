#pragma once
// The block emulator: runs the threads of a block as fibers of one OS thread, checks their synchronisation, and can
// vary the order in which they run. The blocks of a grid run one after the other.
//
// Threads that never wait need no switch: a fiber runs one thread of the block after the other, as long as each of them
// runs to its end. A thread that waits keeps its fiber, and another fiber continues with the next threads.
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

namespace simt {

/// The order in which blocks and threads run.
enum class Order { forward, reverse, random };
/// How kernels run, for the whole process; to be changed only while none runs. Set by LOCKSTEP_FAKE_CUDA_ORDER
/// (forward, reverse, random) and LOCKSTEP_FAKE_CUDA_SEED. A kernel whose result depends on the order has a race.
struct Options {
  Order order = Order::forward;
  uint64_t seed = 1;
};
Options& options();

/// An error in a kernel; thrown by run_grid().
struct Fault {
  std::string what;
};

/// The parts as one text, for messages.
std::string str(const auto&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

// --- used by kernels, through simt_cpu.h ---

/// The position of the running thread in its block.
struct Place {
  unsigned linear, lane, warp;
};
extern constinit thread_local const Place* here;

/// The warp operations.
enum class Warp : unsigned { shfl, shfl_xor, shfl_down, shfl_up, ballot, gather, sync };
/// __syncthreads_count(): waits for all threads of the block and returns how many came with a true predicate.
int barrier(const char* file, int line, bool predicate = false);
/// A shuffle: each lane of `mask` sends `bytes` bytes and receives the bytes of lane `source`.
void warp_exchange(unsigned mask, Warp op, const void* sent, void* received, unsigned bytes, int source, int width);
/// __ballot_sync().
unsigned warp_ballot(unsigned mask, bool predicate);
/// Every lane of a full warp sends `words` and receives the words of all lanes, in the order of the lanes.
void warp_gather(const uint64_t* sent, unsigned words, uint64_t* received);
/// __syncwarp().
void warp_sync(unsigned mask);
/// __threadfence().
void fence();
/// In random order: sometimes lets other threads of the block run first.
void give_way();
/// Called in a loop that polls memory: lets the other threads run. A fault if none of them makes progress: blocks run
/// one after the other, so the thread waits for a block that may start later, which can deadlock on a real device.
void sleep();
/// The index in the grid of the n-th block that starts (from 0): n, unless a fake::SomeBlocks skips blocks.
uint64_t nth_block(uint64_t n);

/// A copy to shared memory that arrives only when its thread waits for it. `from` null: zeros.
struct Copy {
  void* to;
  const void* from;
  unsigned bytes;
  unsigned group = 0;  ///< the thread's group of copies that it belongs to
};
/// Queues a copy of the running thread.
void begin_copy(const Copy& copy);
/// Ends a group of copies of the running thread.
void end_group_of_copies();
/// Takes the next queued copy of the running thread; false if there is none, or if it belongs to the last `left` groups
/// that have ended or to the one that has not. `left` < 0: all copies are taken.
bool take_copy(Copy& copy, int left);
/// Makes the running thread wait until another thread wakes it.
void park();
/// Wakes a parked thread, by its number in the block.
void wake(unsigned thread);
/// The number of threads of the block.
unsigned block_size();
/// The shared memory of the block, from address 0 on.
constexpr size_t shared_arena_bytes = 256 * 1024;
const unsigned char* shared_arena();
/// True if p points into an array in shared memory.
bool is_shared(const void* p);
/// The shared array with this key, allocated on first use.
void* shared_array(const void* key, size_t bytes, size_t align, const char* name);
/// The dynamic shared array of the launch.
void* dynamic_shared();
/// Throws a Fault that names the running thread.
[[noreturn]] void fault(const std::string& what);

// --- used by launches (launch.cpp) ---

/// The most shared memory of a block on this device, and the most dynamic shared memory without opting in.
size_t max_shared();
constexpr size_t shared_unasked = 48 * 1024;
/// Opts a kernel in to `bytes` of dynamic shared memory on a device (cudaFuncSetAttribute). False if the device has
/// less.
bool allow_shared(const void* kernel, int device, size_t bytes);
/// Checks the driver's limits.
cudaError_t check_launch(const void* kernel, dim3 grid, dim3 block, size_t shared);
/// The blocks to run, in ascending order, if a fake::SomeBlocks restricts them; empty: all.
std::vector<uint64_t> some_of(uint64_t blocks);
/// Puts the kernel on a stream; in stream.cpp.
cudaError_t enqueue_kernel(const char* op, cudaStream_t stream, std::function<void()> run);
/// The device of a launch made now: the current device.
int launch_device();
/// True if a kernel of this device may use the pointer passed as argument `number`: memory of the device, of a peer
/// that it has access to, or pinned host memory. Otherwise the device fails.
bool is_argument(const char* op, int device, size_t number, const void* p);
/// Runs the blocks of a grid now. Throws Fault.
void run_grid(const char* op, dim3 grid, dim3 block, size_t shared, const std::function<void()>& body);
/// The running thread, such as "embedding, block (3,0,0), thread (17,0,0)"; "" if no kernel runs on this OS thread.
std::string running();

}  // namespace simt
