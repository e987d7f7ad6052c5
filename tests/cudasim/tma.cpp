// See tma.h. A map stores the arguments of cuTensorMapEncodeTiled instead of NVIDIA's encoding. As in products.cpp, no
// memory is allocated while a kernel runs.
#include "tests/cudasim/tma.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "tests/cudasim/block.h"
#include "tests/cudasim/clocks.h"
#include "tests/cudasim/products.h"

namespace {

constexpr unsigned max_dims = 5;
constexpr uint64_t made_here = 0x6c6f636b73746570;

/// A tensor with elements of `size` bytes, innermost dimension first; strides in bytes.
struct Map {
  uint64_t mark;
  const unsigned char* data;
  uint32_t rank, size, swizzle, box[max_dims];
  uint64_t dims[max_dims], strides[max_dims - 1];
};
static_assert(sizeof(Map) <= sizeof(CUtensorMap));

CUresult encode(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* data, const cuuint64_t* dims,
                const cuuint64_t* strides, const cuuint32_t* box, const cuuint32_t* steps,
                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                CUtensorMapFloatOOBfill fill) {
  const bool two = type == CU_TENSOR_MAP_DATA_TYPE_UINT16 || type == CU_TENSOR_MAP_DATA_TYPE_FLOAT16 ||
                   type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  if (!two || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE || fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE ||
      (swizzle != CU_TENSOR_MAP_SWIZZLE_NONE && swizzle != CU_TENSOR_MAP_SWIZZLE_128B))
    return CUDA_ERROR_NOT_SUPPORTED;  // not simulated
  const auto multiple = [](const void* p, uintptr_t of) { return reinterpret_cast<uintptr_t>(p) % of == 0; };
  bool good = map && multiple(map, 64) && data && multiple(data, 16) && rank >= 1 && rank <= max_dims &&
              promotion <= CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
  for (cuuint32_t d = 0; good && d < rank; ++d) {
    good = dims[d] >= 1 && dims[d] <= uint64_t(1) << 32 && box[d] >= 1 && box[d] <= 256 && steps[d] == 1;
    if (good && d > 0) good = strides[d - 1] % 16 == 0 && strides[d - 1] > 0 && strides[d - 1] < uint64_t(1) << 40;
  }
  constexpr unsigned size = 2;
  if (good) good = box[0] * size % 16 == 0 && (swizzle == CU_TENSOR_MAP_SWIZZLE_NONE || box[0] * size <= 128);
  if (!good) return CUDA_ERROR_INVALID_VALUE;
  Map made{made_here, static_cast<const unsigned char*>(data), rank, size, uint32_t(swizzle), {}, {}, {}};
  for (cuuint32_t d = 0; d < rank; ++d) {
    made.dims[d] = dims[d];
    made.box[d] = box[d];
    if (d > 0) made.strides[d - 1] = strides[d - 1];
  }
  std::memcpy(map, &made, sizeof made);
  return CUDA_SUCCESS;
}

}  // namespace

void* fake::driver_function(const char* name) {
  return std::strcmp(name, "cuTensorMapEncodeTiled") == 0 ? reinterpret_cast<void*>(&encode) : nullptr;
}

namespace simt {
namespace {

constexpr unsigned max_barriers = 16, max_tiles = 32;

/// A copy of a tile.
struct Tile {
  Map map;
  unsigned char* to;
  int at[max_dims];

  unsigned bytes() const {
    unsigned n = map.size;
    for (unsigned d = 0; d < map.rank; ++d) n *= map.box[d];
    return n;
  }
  /// The 16 bytes at `offset` of the box.
  Piece piece(unsigned offset) const {
    unsigned char* place = to + offset;
    if (map.swizzle == CU_TENSOR_MAP_SWIZZLE_128B) {
      const auto address = size_t(place - shared_arena());
      place = to - (to - shared_arena()) + (address ^ (address >> 3 & 0x70));
    }
    const unsigned char* from = map.data;
    unsigned element = offset / map.size;
    for (unsigned d = 0; d < map.rank; ++d) {
      const int64_t index = int64_t(at[d]) + element % map.box[d];
      element /= map.box[d];
      if (index < 0 || uint64_t(index) >= map.dims[d]) return {place, nullptr};
      from += index * int64_t(d == 0 ? map.size : map.strides[d - 1]);
    }
    return {place, from};
  }
};
/// An mbarrier.
struct Barrier {
  const uint64_t* at;
  unsigned count, missing;          // arrivals per phase; those still missing
  uint64_t phase, expected, asked;  // phases completed; bytes expected and requested in this phase
  unsigned tiles, tile, offset;     // copies of this phase; the next piece to deliver
  char order;
  Tile of[max_tiles];
};
/// The barriers of a block.
struct Arrivals {
  unsigned count = 0;
  Barrier barriers[max_barriers] = {};
  const Barrier* waits[max_threads] = {};  // by thread: the barrier that it waits for
  unsigned waiting = 0;
};
Arrivals& all() {
  static thread_local const auto made = std::make_unique<Arrivals>();
  return *made;
}

/// The simulated barrier at this address; a fault if there is none.
Barrier& find(const uint64_t* barrier) {
  Arrivals& a = all();
  Barrier* const end = a.barriers + a.count;
  Barrier* const found = std::find_if(a.barriers, end, [&](const Barrier& b) { return b.at == barrier; });
  if (found == end) fault("mbarrier: it was not initialised in this block");
  return *found;
}

/// Wakes the threads that wait for the barrier, because it has changed.
void tell(const Barrier& barrier) {
  Arrivals& a = all();
  for (unsigned t = 0; a.waiting > 0 && t < block_size(); ++t) {
    if (a.waits[t] != &barrier) continue;
    a.waits[t] = nullptr;
    --a.waiting;
    wake(t);
  }
}

bool may_end(const Barrier& b) { return b.missing == 0 && b.expected == b.asked; }
void begin_phase(Barrier& b, uint64_t number) {
  b.phase = number;
  b.missing = b.count;
  b.expected = b.asked = 0;
  b.tiles = b.tile = b.offset = 0;
}
void end_phase(Barrier& b) {
  begin_phase(b, b.phase + 1);
  release(&b.order);
  tell(b);
}

}  // namespace

void make_arrivals(uint64_t* barrier, unsigned count) {
  Arrivals& a = all();
  if (!is_shared(barrier) || reinterpret_cast<uintptr_t>(barrier) % 8 != 0)
    fault("mbarrier: expected eight bytes of shared memory, at a multiple of 8");
  if (count == 0) fault("mbarrier: expected a count from 1 on");
  Barrier* const end = a.barriers + a.count;
  if (std::any_of(a.barriers, end, [&](const Barrier& b) { return b.at == barrier; }))
    fault("mbarrier: initialised twice in a block");
  if (a.count == max_barriers) fault("mbarrier: the emulator supports at most 16 in a block");
  ++a.count;
  end->at = barrier;
  end->count = count;
  begin_phase(*end, 0);
  was_written(barrier, 8);
}

void arrive_and_expect(uint64_t* barrier, unsigned bytes) {
  Barrier& b = find(barrier);
  if (b.missing == 0) fault("mbarrier: more threads arrive in a phase than its count");
  release(&b.order);
  --b.missing;
  b.expected += bytes;
  if (may_end(b) && b.tiles == 0) end_phase(b);
  else tell(b);
}

unsigned begin_tile(const CUtensorMap& map, void* to, uint64_t* barrier, const int* at) {
  Barrier& b = find(barrier);
  check_visible(barrier, 8, "an mbarrier");
  if (b.tiles == max_tiles) fault("copy of a tile: the emulator supports at most 32 in a phase");
  Tile& tile = b.of[b.tiles];
  __builtin_memcpy(&tile.map, &map, sizeof tile.map);  // inlined: see copy() in block.cpp
  if (tile.map.mark != made_here) fault("copy of a tile: the map was not made by cuTensorMapEncodeTiled");
  if (tile.map.rank != 4) fault("copy of a tile: expected a map of as many dimensions as the instruction names, 4");
  for (unsigned d = 0; d < 4; ++d) tile.at[d] = at[d];
  tile.to = static_cast<unsigned char*>(to);
  const unsigned bytes = tile.bytes();
  if (!is_shared(to) || !is_shared(tile.to + bytes - 1)) fault("copy of a tile: its target is outside shared memory");
  const unsigned align = tile.map.swizzle == CU_TENSOR_MAP_SWIZZLE_NONE ? 128 : 1024;
  if ((tile.to - shared_arena()) % align != 0)
    fault("copy of a tile: expected a target at a multiple of " + std::to_string(align) + " bytes");
  tile_begins(to, bytes);
  ++b.tiles;
  b.asked += bytes;
  release(&b.order);
  tell(b);
  return bytes;
}

bool take_piece(uint64_t* barrier, unsigned parity, Piece& piece) {
  Arrivals& a = all();
  Barrier& b = find(barrier);
  while (b.phase % 2 == parity && !may_end(b)) {
    a.waits[here->linear] = &b;
    ++a.waiting;
    park();
  }
  acquire(&b.order);
  if (b.phase % 2 != parity) return false;
  if (b.tile == b.tiles) {
    end_phase(b);
    return false;
  }
  Tile& tile = b.of[b.tile];
  piece = tile.piece(b.offset);
  b.offset += 16;
  if (b.offset == tile.bytes()) {
    b.offset = 0;
    ++b.tile;
  }
  return true;
}

void arrivals_of_block() {
  Arrivals& a = all();
  a.count = a.waiting = 0;
  std::fill_n(a.waits, block_size(), nullptr);
}
std::string tiles_under_way() {
  const Arrivals& a = all();
  const bool any = std::any_of(a.barriers, a.barriers + a.count, [](const Barrier& b) { return b.tiles > 0; });
  return any ? "the block ends before the tiles that it requested have arrived" : "";
}
unsigned waiting_for_tiles() { return all().waiting; }
std::string unfinished_phase() {
  const Arrivals& a = all();
  const auto* const first =
      std::find_if(a.waits, a.waits + block_size(), [](const Barrier* b) { return b != nullptr; });
  if (first == a.waits + block_size()) return "";
  const Barrier& b = **first;
  return str(a.waiting, " for tiles (", b.missing, " of ", b.count, " threads have not arrived, ", b.expected,
             " bytes are expected and ", b.asked, " asked for), ");
}

}  // namespace simt
