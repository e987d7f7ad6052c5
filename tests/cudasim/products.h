#pragma once
// Hopper's asynchronous products (wgmma) and what they ask of shared memory, as the PTX ISA has them: "Asynchronous
// warpgroup level matrix instructions". A warpgroup is four warps, the first of them a multiple of four.
//
// A product runs when all 128 threads have asked for it. Until a thread waits, its accumulators are NaN. Errors are:
//   - operands in registers that were written since the last wgmma.fence, or that are not behind one;
//   - operands in shared memory with a copy under way, with no fence.proxy.async of the writing thread behind the
//     write, or that neither copy_async() or store_shared() nor TMA wrote;
//   - operands in shared memory, fragments of a and accumulators that change before all threads have waited;
//   - warps that ask for different products, or do not ask; a thread that ends without waiting.
#include <cstdint>

namespace simt {

/// c (64 x columns) (+)= a (64 x 16) b (16 x columns).
struct Product {
  float* c;                     ///< columns / 2 of this thread
  const uint32_t* a;            ///< four of this thread; null: in shared memory
  uint64_t a_matrix, b_matrix;  ///< descriptors
  bool a_turned, b_turned;      ///< not along k, but along m or n ("transposed")
  bool adds;                    ///< else c is overwritten
  unsigned columns;
  float (*number)(uint16_t bits);
};

constexpr unsigned most_chunks = (64 + 256) * 2;  // of 16 bytes, in a product's operands
struct Chunk {
  unsigned char bytes[16];
};

/// Where the operands in shared memory lie; how many chunks. 0: another thread has read them.
unsigned begin_product(const Product& product, const Chunk** places);
void issue_product(const Product& product, const Chunk* operands);
/// wgmma.fence: these registers of the thread are as products may read them.
void forget_fenced();
void fence_registers(const void* registers, unsigned bytes);
/// wgmma.commit_group, and wgmma.wait_group for all but the last `left` groups.
void commit_products();
void wait_for_products(unsigned left);
/// Of a product that all of its threads have now waited for: as begin_product(). 0: there is none.
unsigned end_product(const Chunk** places);
void check_product(const Chunk* operands);

/// The thread begins a copy to shared memory, or has written there.
void copy_begins(const void* to, unsigned bytes);
void was_written(const void* to, unsigned bytes);
/// fence.proxy.async.
void fence_proxy();
/// A fault where a thread has written there in this block with no fence.proxy.async behind.
void check_shown(const void* at, unsigned bytes, const char* what);
/// TMA (tma.h) begins to write there; it has, and needs no fence.
void tile_begins(const void* to, unsigned bytes);
void tile_came(const void* to, unsigned bytes);

/// For block.cpp: a block begins; the running thread ends.
void products_of_block();
void products_of_thread();

}  // namespace simt
