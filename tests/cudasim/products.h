#pragma once
// Hopper's asynchronous products (wgmma) and their rules, as in the PTX ISA: "Asynchronous warpgroup level matrix
// instructions". A warpgroup is four adjacent warps; the index of its first warp is a multiple of four.
//
// A product runs when all 128 threads have issued it. Until a thread waits, its accumulators are NaN. The emulator
// reports as faults:
//   - operands in registers that no wgmma.fence covers, or that were written since the last one;
//   - operands in shared memory that are still being copied, that were written without a later fence.proxy.async of the
//     writing thread, or that were written by anything but copy_async(), store_shared() and TMA;
//   - operands in shared memory, fragments of a, or accumulators that change before all threads have waited;
//   - warps that issue different products or none; a thread that ends without waiting.
#include <cstdint>

namespace simt {

/// c (64 x columns) (+)= a (64 x 16) b (16 x columns).
struct Product {
  float* c;                        ///< this thread's columns / 2 accumulators
  const uint32_t* a;               ///< this thread's four words of a; null: a is in shared memory
  uint64_t a_matrix, b_matrix;     ///< descriptors
  bool a_turned, b_turned;         ///< true: the operand is contiguous along m or n ("transposed"); false: along k
  bool adds;                       ///< true: add to c instead of overwriting it
  unsigned columns;                ///< n
  float (*number)(uint16_t bits);  ///< decodes an element of a or b
};

/// The most chunks of 16 bytes in the operands of a product.
constexpr unsigned max_chunks = (64 + 256) * 2;
/// 16 bytes of an operand.
struct Chunk {
  unsigned char bytes[16];
};

/// Begins a product for this thread. Writes the addresses of its operands' chunks in shared memory to `places` and
/// returns their number; 0 if another thread of the warpgroup has already read them.
unsigned begin_product(const Product& product, const Chunk** places);
/// Completes begin_product(); `operands` are the contents of the chunks, or null. The last thread runs the product.
void issue_product(const Product& product, const Chunk* operands);
/// wgmma.fence: forget_fenced() starts one, fence_registers() adds registers that products may then read.
void forget_fenced();
void fence_registers(const void* registers, unsigned bytes);
/// wgmma.commit_group, and wgmma.wait_group for all groups but the last `left`.
void commit_products();
void wait_for_products(unsigned left);
/// The next product that all threads have waited for; returns its chunks as begin_product() does, or 0 if there is
/// none.
unsigned end_product(const Chunk** places);
/// Checks that the operands of that product have not changed.
void check_product(const Chunk* operands);

/// Notes that this thread starts a copy to shared memory, or has written there.
void copy_begins(const void* to, unsigned bytes);
void was_written(const void* to, unsigned bytes);
/// fence.proxy.async.
void fence_proxy();
/// A fault if a thread wrote there in this block without a later fence.proxy.async; `what` names the memory.
void check_visible(const void* at, unsigned bytes, const char* what);
/// Notes that TMA (tma.h) starts to write there, or has written. No fence is needed for it.
void tile_begins(const void* to, unsigned bytes);
void tile_arrived(const void* to, unsigned bytes);

/// Called by block.cpp when a block starts, and when the running thread ends.
void products_of_block();
void products_of_thread();

}  // namespace simt
