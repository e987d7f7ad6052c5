#pragma once
// Hopper's Tensor Memory Accelerator (TMA), and the barriers in shared memory by which a block learns that its tiles
// have come, as the PTX ISA has them: "cp.async.bulk.tensor" and "mbarrier".
//
// A tile is NaN from the copy on, and comes when a thread waits for the phase that it belongs to: not before the
// barrier's threads have arrived and as many bytes are asked for as are expected. Errors are:
//   - a barrier that nobody made in this block, or with no fence.proxy.async of the thread that made it behind; more
//     arrivals in a phase than it was made for;
//   - a map that cuTensorMapEncodeTiled did not make; a place outside shared memory or inside a pattern;
//   - a place where a copy is under way, or that ordinary stores wrote with no fence.proxy.async behind;
//   - a block that ends before its copies have come; waiting for a phase that cannot end.
#include <cuda.h>

#include <cstdint>
#include <string>

namespace simt {

/// mbarrier.init: each phase needs so many arrivals.
void make_arrivals(uint64_t* barrier, unsigned count);
/// mbarrier.arrive.expect_tx: the thread arrives, and so many bytes more are to come in this phase.
void arrive_and_expect(uint64_t* barrier, unsigned bytes);
/// cp.async.bulk.tensor: its bytes. They are NaN from now on.
unsigned begin_tile(const CUtensorMap& map, void* to, uint64_t* barrier, const int* at);

/// 16 bytes of a tile. `from` null: zeros.
struct Piece {
  unsigned char* to;
  const unsigned char* from;
};
/// mbarrier.try_wait.parity, until it is true: waits until the phase of this parity can end, and takes a piece of what
/// has come. False: there is no other, and the phase is over.
bool take_piece(uint64_t* barrier, unsigned parity, Piece& piece);

/// For block.cpp: a block begins; what is wrong where one ends, or cannot go on.
void arrivals_of_block();
std::string tiles_under_way();
unsigned waiting_for_tiles();
std::string unfinished_phase();

}  // namespace simt

namespace fake {
/// A function of the driver, by name; null: it is not one of those here.
void* driver_function(const char* name);
}  // namespace fake
