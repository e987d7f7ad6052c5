#pragma once
// Hopper's Tensor Memory Accelerator (TMA) and the barriers in shared memory that tell a block when its tiles have
// arrived, as in the PTX ISA: "cp.async.bulk.tensor" and "mbarrier".
//
// A tile is NaN from the copy on. It arrives when a thread waits for its phase, but not before the barrier's threads
// have arrived and as many bytes are requested as expected. Errors are:
//   - a barrier that was not initialised in this block, or whose initialising thread issued no later fence.proxy.async;
//     more arrivals in a phase than its count;
//   - a map that cuTensorMapEncodeTiled did not make; a destination outside shared memory or inside a pattern;
//   - a destination to which another copy is under way, or that was written without a later fence.proxy.async;
//   - a block that ends before its copies have arrived; waiting for a phase that cannot end.
#include <cuda.h>

#include <cstdint>
#include <string>

namespace simt {

/// mbarrier.init: each phase needs `count` arrivals.
void make_arrivals(uint64_t* barrier, unsigned count);
/// mbarrier.arrive.expect_tx: this thread arrives and expects `bytes` more in this phase.
void arrive_and_expect(uint64_t* barrier, unsigned bytes);
/// cp.async.bulk.tensor: starts a copy and returns its bytes, which the caller must set to NaN.
unsigned begin_tile(const CUtensorMap& map, void* to, uint64_t* barrier, const int* at);

/// 16 bytes of a tile. `from` null: zeros.
struct Piece {
  unsigned char* to;
  const unsigned char* from;
};
/// mbarrier.try_wait.parity in a loop: waits until the phase of this parity can end, then returns a piece of what has
/// arrived. False if there is no more, and the phase is over.
bool take_piece(uint64_t* barrier, unsigned parity, Piece& piece);

/// Called by block.cpp: at the start of a block, and for its errors: copies unfinished at the end of a block, the
/// number of threads waiting for tiles, and the phase that they wait for.
void arrivals_of_block();
std::string tiles_under_way();
unsigned waiting_for_tiles();
std::string unfinished_phase();

}  // namespace simt

namespace fake {
/// A function of the driver by name; nullptr if it is not simulated.
void* driver_function(const char* name);
}  // namespace fake
