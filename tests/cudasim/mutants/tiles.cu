// Planted bugs in TMA copies of tiles: the barrier that reports their arrival, their destinations, and the tensor map.
#include "tensor/cuda/wgmma.h"
#include "tests/cudasim/mutants/launch.h"

namespace mutants {
namespace {

using lockstep::Half;
using namespace lockstep::on_cuda;

enum class Mistake {
  right,
  // mistakes with the barrier
  not_made,
  made_late,
  fence,
  count,
  everybody,
  few,
  many,
  wait,
  parity,
  end,
  // mistakes with the destination
  pattern,
  written,
  barrier,
  order,
  // mistakes with the map
  unaligned,
  box,
  swizzle,
  strides,
  tokens
};

constexpr int batch = 2, heads = 3, tokens = 40, columns = 128, rows = 16, tiles = 3, rounds = batch * heads * tiles;
using Rows = SwizzledTile<rows, columns / 16>;

// out[tile][column] = sum over rows of (row + 1) x. A tile is summed while the next one is copied.
__global__ void add_rows(const __grid_constant__ TileMap x, float* out, Mistake mistake) {
  LOCKSTEP_SHARED(unsigned char, memory, [1024 + 2 * Rows::bytes]);
  LOCKSTEP_SHARED(uint64_t, barrier, [1]);
  const auto is = [&](Mistake other) { return mistake == other; };
  const int t = int(threadIdx.x);
  unsigned char* free = first_pattern(memory) + (is(Mistake::pattern) ? 128 : 0);
  const Rows first = take<Rows>(free), second = take<Rows>(free);
  if (t == 0 && !is(Mistake::not_made)) {
    simt::make_arrivals(barrier, is(Mistake::count) ? 2 : 1);
    if (!is(Mistake::fence)) show_to_async_proxy();
  }
  if (!is(Mistake::made_late)) __syncthreads();
  const auto ask = [&](int round) {
    if (round == rounds || (t != 0 && !is(Mistake::everybody))) return;
    const Rows to = round % 2 == 0 ? first : second;
    const int unit = round / tiles, token = round % tiles * rows, h = unit % heads, b = unit / heads;
    if (is(Mistake::written)) store_shared(reinterpret_cast<float*>(to.data), 0.f);
    simt::arrive_and_expect(barrier, Rows::bytes - (is(Mistake::few) ? 16 : 0) + (is(Mistake::many) ? 16 : 0));
    for (int n = 0; n < 2; ++n) {
      if (is(Mistake::order)) simt::copy_tile(x.map, to.data + n * Rows::block, barrier, {64 * n, h, token, b});
      else simt::copy_tile(x.map, to.data + n * Rows::block, barrier, {64 * n, token, h, b});
    }
  };
  ask(0);
  unsigned parity = 0;
  for (int round = 0; round < rounds; ++round) {
    if (!is(Mistake::wait)) simt::wait_for_tiles(barrier, parity);
    if (!is(Mistake::parity)) parity ^= 1;
    if (!is(Mistake::barrier)) __syncthreads();
    ask(round + 1);
    const Rows from = round % 2 == 0 ? first : second;
    float sum = 0;
    for (int r = 0; r < rows; ++r) {
      Half value;
      std::memcpy(&value, from.chunk(r, t / 8) + t % 8 * 2, 2);
      sum += float(r + 1) * float(value);
    }
    out[round * columns + t] = sum;
    if (is(Mistake::end)) return;
  }
}

float value_at(int b, int h, int token, int column) { return float((b * 5 + h * 3 + token * 7 + column) % 13 - 6); }

/// x is laid out as (B, tokens, heads, D), as packed queries are.
TileMap map_of(const Half* x, Mistake mistake) {
  const auto is = [&](Mistake other) { return mistake == other; };
  constexpr cuuint64_t size = 2, of_head = columns * size, of_token = heads * of_head, of_batch = tokens * of_token;
  const cuuint64_t sizes[4] = {columns, cuuint64_t(is(Mistake::tokens) ? tiles * rows : tokens), heads, batch};
  cuuint64_t strides[3] = {of_token, of_head, of_batch};
  if (is(Mistake::strides)) std::swap(strides[0], strides[1]);
  const cuuint32_t box[4] = {64, cuuint32_t(is(Mistake::box) ? 8 : rows), 1, 1}, steps[4] = {1, 1, 1, 1};
  void* function = nullptr;
  cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, nullptr);
  TileMap tiles_of_x{};
  reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function)(
      &tiles_of_x.map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 4, const_cast<Half*>(x) + (is(Mistake::unaligned) ? 4 : 0),
      sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      is(Mistake::swizzle) ? CU_TENSOR_MAP_SWIZZLE_NONE : CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return tiles_of_x;
}

template <Mistake mistake> bool copies(bool bug) {
  const Mistake made = bug ? mistake : Mistake::right;
  std::vector<float> words(batch * tokens * heads * columns / 2), expected(rounds * columns);
  for (int b = 0; b < batch; ++b) {
    for (int token = 0; token < tokens; ++token) {
      for (int h = 0; h < heads; ++h) {
        for (int c = 0; c < columns; ++c) {
          const Half value(value_at(b, h, token, c));
          const size_t at = size_t(((b * tokens + token) * heads + h) * columns + c);
          std::memcpy(reinterpret_cast<char*>(words.data()) + 2 * at, &value, 2);
          expected[size_t(((b * heads + h) * tiles + token / rows) * columns + c)] +=
              float(token % rows + 1) * float(value);
        }
      }
    }
  }
  return in_all_orders([&] {
    const Array x(words), out(expected.size());
    const TileMap map = map_of(reinterpret_cast<const Half*>(static_cast<float*>(x)), made);
    return start(1, columns, add_rows, map, static_cast<float*>(out), made) && out.get() == expected;
  });
}

}  // namespace

std::vector<Case> tile_cases() {
  return {
      {"copy of a tile by a barrier that nobody made", copies<Mistake::not_made>, every},
      {"barrier of tiles made behind the first wait", copies<Mistake::made_late>, every},
      {"no proxy's fence behind a barrier that is made", copies<Mistake::fence>, every},
      {"barrier of tiles for more threads than arrive", copies<Mistake::count>, every},
      {"tile that every thread asks for", copies<Mistake::everybody>, every},
      {"fewer bytes expected than a tile has", copies<Mistake::few>, every},
      {"more bytes expected than a tile has", copies<Mistake::many>, every},
      {"tile that is not waited for", copies<Mistake::wait>, every},
      {"tile waited for by the parity of the round before", copies<Mistake::parity>, every},
      {"block that ends while a tile comes", copies<Mistake::end>, every},
      {"copy of a tile inside a pattern", copies<Mistake::pattern>, every},
      {"copy of a tile over a write without a fence", copies<Mistake::written>, every},
      {"copy of a tile that is still being read", copies<Mistake::barrier>, every},
      {"coordinates of a tile in another order", copies<Mistake::order>, every},
      {"map of tiles that the driver has refused", copies<Mistake::unaligned>, every},
      {"map of tiles with fewer rows", copies<Mistake::box>, every},
      {"map of tiles without the swizzle", copies<Mistake::swizzle>, every},
      {"map of tiles with strides of another order", copies<Mistake::strides>, every},
      {"map of tiles past the last token", copies<Mistake::tokens>, every},
  };
}

}  // namespace mutants
