// Planted bugs in TMA copies of tiles: the barrier that reports their arrival, their destinations, and the tensor map.
#include "tensor/cuda/wgmma.h"
#include "tests/cudasim/mutants/launch.h"

namespace mutants {
namespace {

using lockstep::Half;
using namespace lockstep::on_cuda;

constexpr int batch = 2, heads = 3, tokens = 40, columns = 128, rows = 16, tiles = 3, rounds = batch * heads * tiles;
using Rows = SwizzledTile<rows, columns / 16>;

// out[tile][column] = sum over rows of (row + 1) x. A tile is summed while the next one is copied.
__global__ void add_rows(const __grid_constant__ TileMap x, float* out, Bug bug) {
  LOCKSTEP_SHARED(unsigned char, memory, [1024 + 2 * Rows::bytes]);
  LOCKSTEP_SHARED(uint64_t, barrier, [1]);
  const int t = int(threadIdx.x);
  unsigned char* free = first_pattern(memory) + (bug("pattern") ? 128 : 0);
  const Rows first = take<Rows>(free), second = take<Rows>(free);
  if (t == 0 && !bug("not_made")) {
    simt::make_arrivals(barrier, bug("count") ? 2 : 1);
    if (!bug("fence")) show_to_async_proxy();
  }
  if (!bug("made_late")) __syncthreads();
  const auto ask = [&](int round) {
    if (round == rounds || (t != 0 && !bug("everybody"))) return;
    const Rows to = round % 2 == 0 ? first : second;
    const int unit = round / tiles, token = round % tiles * rows, h = unit % heads, b = unit / heads;
    if (bug("written")) store_shared(reinterpret_cast<float*>(to.data), 0.f);
    simt::arrive_and_expect(barrier, Rows::bytes - (bug("few") ? 16 : 0) + (bug("many") ? 16 : 0));
    for (int n = 0; n < 2; ++n) {
      if (bug("order")) simt::copy_tile(x.map, to.data + n * Rows::block, barrier, {64 * n, h, token, b});
      else simt::copy_tile(x.map, to.data + n * Rows::block, barrier, {64 * n, token, h, b});
    }
  };
  ask(0);
  unsigned parity = 0;
  for (int round = 0; round < rounds; ++round) {
    if (!bug("wait")) simt::wait_for_tiles(barrier, parity);
    if (!bug("parity")) parity ^= 1;
    if (!bug("barrier")) __syncthreads();
    ask(round + 1);
    const Rows from = round % 2 == 0 ? first : second;
    float sum = 0;
    for (int r = 0; r < rows; ++r) {
      Half value;
      std::memcpy(&value, from.chunk(r, t / 8) + t % 8 * 2, 2);
      sum += float(r + 1) * float(value);
    }
    out[round * columns + t] = sum;
    if (bug("end")) return;
  }
}

float value_at(int b, int h, int token, int column) { return float((b * 5 + h * 3 + token * 7 + column) % 13 - 6); }

/// x is laid out as (B, tokens, heads, D), as packed queries are.
TileMap map_of(const Half* x, Bug bug) {
  constexpr cuuint64_t size = 2, of_head = columns * size, of_token = heads * of_head, of_batch = tokens * of_token;
  const cuuint64_t sizes[4] = {columns, cuuint64_t(bug("tokens") ? tiles * rows : tokens), heads, batch};
  cuuint64_t strides[3] = {of_token, of_head, of_batch};
  if (bug("strides")) std::swap(strides[0], strides[1]);
  const cuuint32_t box[4] = {64, cuuint32_t(bug("box") ? 8 : rows), 1, 1}, steps[4] = {1, 1, 1, 1};
  void* function = nullptr;
  cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, nullptr);
  TileMap tiles_of_x{};
  reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function)(
      &tiles_of_x.map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 4, const_cast<Half*>(x) + (bug("unaligned") ? 4 : 0), sizes,
      strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      bug("swizzle") ? CU_TENSOR_MAP_SWIZZLE_NONE : CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return tiles_of_x;
}

bool copies(Bug bug) {
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
    const TileMap map = map_of(x.as<Half>(), bug);
    return start(1, columns, add_rows, map, out, bug) && out.get() == expected;
  });
}

const Cases cases{
    {"copy of a tile by a barrier that nobody made", copies, "not_made"},
    {"barrier of tiles made behind the first wait", copies, "made_late"},
    {"no proxy's fence behind a barrier that is made", copies, "fence"},
    {"barrier of tiles for more threads than arrive", copies, "count"},
    {"tile that every thread asks for", copies, "everybody"},
    {"fewer bytes expected than a tile has", copies, "few"},
    {"more bytes expected than a tile has", copies, "many"},
    {"tile that is not waited for", copies, "wait"},
    {"tile waited for by the parity of the round before", copies, "parity"},
    {"block that ends while a tile comes", copies, "end"},
    {"copy of a tile inside a pattern", copies, "pattern"},
    {"copy of a tile over a write without a fence", copies, "written"},
    {"copy of a tile that is still being read", copies, "barrier"},
    {"coordinates of a tile in another order", copies, "order"},
    {"map of tiles that the driver has refused", copies, "unaligned"},
    {"map of tiles with fewer rows", copies, "box"},
    {"map of tiles without the swizzle", copies, "swizzle"},
    {"map of tiles with strides of another order", copies, "strides"},
    {"map of tiles past the last token", copies, "tokens"},
};

}  // namespace
}  // namespace mutants
