// Planted bugs in Hopper's asynchronous products: fences, waits, and the layout that descriptors describe.
#include "tensor/cuda/wgmma.h"
#include "tests/cudasim/mutants/launch.h"

namespace mutants {
namespace {

using lockstep::Half;
using namespace lockstep::on_cuda;

// out (128 x 128) = x (128 x 128) y (128 x 128), 64 along k at a time. The first half of x comes from shared memory,
// the second from registers.
constexpr int size = 128, half = 64;
using Left = SwizzledTile<size, half / 16>;
using Right = SwizzledTile<half, size / 16>;

/// Starts copying rows of `chunks` times 16 bytes.
template <class Z> __device__ void fill(const Z& tile, int rows, int chunks, const Half* from, bool plain) {
  for (int n = int(threadIdx.x); n < rows * chunks; n += 256) {
    const int r = n / chunks, chunk = n % chunks;
    copy_async<16>(plain ? tile.data + r * 128 + chunk * 16 : tile.chunk(r, chunk), from + r * size + chunk * 8, true);
  }
}

__global__ void multiply_tiles(const Half* x, const Half* y, float* out, Bug bug) {
  LOCKSTEP_SHARED(unsigned char, memory, [1024 + Left::bytes + Right::bytes]);
  unsigned char* free = first_pattern(memory) + (bug("place") ? 128 : 0);
  const Left left = take<Left>(free);
  const Right right = take<Right>(free);
  const int t = int(threadIdx.x), row = t / 32 * 16 + t % 32 / 4, column = t % 4 * 2;
  float sum[half];
  uint32_t a[4][4];
  for (int step = 0; step < 2; ++step) {
    fill(left, size, 8, x + step * half, bug("swizzle"));
    fill(right, half, 16, y + step * half * size, false);
    if (bug("proxy_early")) show_to_async_proxy();
    if (!bug("copy")) wait_for_copies();
    if (bug("plain_store")) std::memset(memory, 0, sizeof memory);
    if (!bug("proxy") && !bug("proxy_early")) show_to_async_proxy();
    if (!bug("barrier")) __syncthreads();
    for (int n = 0; n < 4; ++n) {
      for (int i = 0; i < 4; ++i)
        std::memcpy(&a[n][i], x + (row + i % 2 * 8) * size + step * half + 16 * n + column + i / 2 * 8, 4);
    }
    if (!bug("fence")) fence(sum, a);
    if (bug("written_after_fence")) a[0][0] ^= 0x8000;
    if (bug("warp") && t / 32 == 2) continue;
    for (int n = 0; n < 4; ++n) {
      uint64_t b = right.down(n);
      if (bug("leading")) b = right.describe(n * 16 * 128, Right::block / 2, Right::pattern);
      if (bug("stride")) b = right.describe(n * 16 * 128, Right::block, Right::pattern / 2);
      if (bug("outside")) b = right.describe(n * 16 * 128 + 2 * Right::block, Right::block, Right::pattern);
      if (bug("disagree") && t / 32 == 2) b = right.down(n ^ 1);
      const bool adds = step + n > 0 && !bug("forgets");
      if (bug("turned")) multiply_async<Half, false, false>(sum, left.along(t / 128 * 64, n), b, adds);
      else if (step == 0) multiply_async<Half, false, true>(sum, left.along(t / 128 * 64, n), b, adds);
      else multiply_async<Half, true>(sum, a[n], b, adds);
    }
    if (!bug("group")) commit();
    if (bug("accumulators")) sum[0] += 1;
    if (bug("fragments")) a[0][0] ^= 0x8000;
    if (bug("early")) fill(left, size, 8, x, false);
    if (bug("end") && step == 1) return;
    if (!bug("wait")) wait<0>(sum, a);
    if (!bug("other_group")) __syncthreads();  // the tiles have been read
  }
  for (int e = 0; e < half; ++e) out[(row + e / 2 % 2 * 8) * size + column + e % 2 + e / 4 * 8] = sum[e];
}

std::vector<Half> numbers(int seed) {
  std::vector<Half> values;
  for (int i = 0; i < size * size; ++i) values.emplace_back(float((i / size * 7 + i % size * 3 + seed) % 11 - 5));
  return values;
}
std::vector<float> as_words(const std::vector<Half>& values) {
  std::vector<float> words(values.size() / 2);
  std::memcpy(words.data(), values.data(), values.size() * 2);
  return words;
}

bool products(Bug bug) {
  const std::vector<Half> left = numbers(1), right = numbers(4);
  std::vector<float> expected(size * size);
  for (int i = 0; i < size; ++i)
    for (int k = 0; k < size; ++k)
      for (int j = 0; j < size; ++j)
        expected[size_t(i * size + j)] += float(left[size_t(i * size + k)]) * float(right[size_t(k * size + j)]);
  return in_all_orders([&] {
    const Array x(as_words(left)), y(as_words(right)), out(size * size);
    return start(1, 256, multiply_tiles, x.as<Half>(), y.as<Half>(), out, bug) && out.get() == expected;
  });
}

const Cases cases{
    {"product without a fence of its registers", products, "fence"},
    {"registers written behind their fence", products, "written_after_fence"},
    {"product that is not waited for", products, "wait"},
    {"product in no group", products, "group"},
    {"accumulators written ahead of the wait", products, "accumulators"},
    {"fragments written ahead of the wait", products, "fragments"},
    {"thread that ends ahead of the wait", products, "end"},
    {"product without one of four warps", products, "warp"},
    {"warps that ask for different products", products, "disagree"},
    {"product that forgets the sum so far", products, "forgets"},
    {"no proxy's fence behind a copy", products, "proxy"},
    {"proxy's fence before the copy has come", products, "proxy_early"},
    {"product of a tile that is being copied", products, "copy"},
    {"product of a tile before a barrier", products, "barrier"},
    {"operand changed behind its copy", products, "plain_store"},
    {"tile overwritten ahead of the wait", products, "early"},
    {"tile overwritten that another warpgroup reads", products, "other_group"},
    {"tile in rows without the swizzle", products, "swizzle"},
    {"tile that begins inside a pattern", products, "place"},
    {"leading offset of another tile", products, "leading"},
    {"stride offset of another tile", products, "stride"},
    {"operand turned the wrong way", products, "turned"},
    {"operand past the end of shared memory", products, "outside"},
};

}  // namespace
}  // namespace mutants
