// Planted bugs in Hopper's asynchronous products: fences, waits, and the layout that descriptors describe.
#include "tensor/cuda/wgmma.h"
#include "tests/cudasim/mutants/launch.h"

namespace mutants {
namespace {

using lockstep::Half;
using namespace lockstep::on_cuda;

enum class Mistake {
  right,
  // mistakes with registers
  fence,
  written_after_fence,
  wait,
  group,
  accumulators,
  fragments,
  end,
  warp,
  disagree,
  forgets,
  // mistakes with shared memory
  proxy,
  proxy_early,
  copy,
  barrier,
  plain_store,
  early,
  other_group,
  swizzle,
  place,
  leading,
  stride,
  turned,
  outside
};

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

__global__ void multiply_tiles(const Half* x, const Half* y, float* out, Mistake mistake) {
  LOCKSTEP_SHARED(unsigned char, memory, [1024 + Left::bytes + Right::bytes]);
  const auto is = [&](Mistake other) { return mistake == other; };
  unsigned char* free = first_pattern(memory) + (is(Mistake::place) ? 128 : 0);
  const Left left = take<Left>(free);
  const Right right = take<Right>(free);
  const int t = int(threadIdx.x), row = t / 32 * 16 + t % 32 / 4, column = t % 4 * 2;
  float sum[half];
  uint32_t a[4][4];
  for (int step = 0; step < 2; ++step) {
    fill(left, size, 8, x + step * half, is(Mistake::swizzle));
    fill(right, half, 16, y + step * half * size, false);
    if (is(Mistake::proxy_early)) show_to_async_proxy();
    if (!is(Mistake::copy)) wait_for_copies();
    if (is(Mistake::plain_store)) std::memset(memory, 0, sizeof memory);
    if (!is(Mistake::proxy) && !is(Mistake::proxy_early)) show_to_async_proxy();
    if (!is(Mistake::barrier)) __syncthreads();
    for (int n = 0; n < 4; ++n) {
      for (int i = 0; i < 4; ++i)
        std::memcpy(&a[n][i], x + (row + i % 2 * 8) * size + step * half + 16 * n + column + i / 2 * 8, 4);
    }
    if (is(Mistake::fence)) {
    } else {
      fence(sum, a);
    }
    if (is(Mistake::written_after_fence)) a[0][0] ^= 0x8000;
    if (is(Mistake::warp) && t / 32 == 2) continue;
    for (int n = 0; n < 4; ++n) {
      uint64_t b = right.down(n);
      if (is(Mistake::leading)) b = right.describe(n * 16 * 128, Right::block / 2, Right::pattern);
      if (is(Mistake::stride)) b = right.describe(n * 16 * 128, Right::block, Right::pattern / 2);
      if (is(Mistake::outside)) b = right.describe(n * 16 * 128 + 2 * Right::block, Right::block, Right::pattern);
      if (is(Mistake::disagree) && t / 32 == 2) b = right.down(n ^ 1);
      const bool adds = step + n > 0 && !is(Mistake::forgets);
      if (is(Mistake::turned)) multiply_async<Half, false, false>(sum, left.along(t / 128 * 64, n), b, adds);
      else if (step == 0) multiply_async<Half, false, true>(sum, left.along(t / 128 * 64, n), b, adds);
      else multiply_async<Half, true>(sum, a[n], b, adds);
    }
    if (!is(Mistake::group)) commit();
    if (is(Mistake::accumulators)) sum[0] += 1;
    if (is(Mistake::fragments)) a[0][0] ^= 0x8000;
    if (is(Mistake::early)) fill(left, size, 8, x, false);
    if (is(Mistake::end) && step == 1) return;
    if (!is(Mistake::wait)) wait<0>(sum, a);
    if (!is(Mistake::other_group)) __syncthreads();  // the tiles have been read
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

template <Mistake mistake> bool products(bool bug) {
  const std::vector<Half> left = numbers(1), right = numbers(4);
  std::vector<float> expected(size * size);
  for (int i = 0; i < size; ++i)
    for (int k = 0; k < size; ++k)
      for (int j = 0; j < size; ++j)
        expected[size_t(i * size + j)] += float(left[size_t(i * size + k)]) * float(right[size_t(k * size + j)]);
  return in_all_orders([&] {
    const Array x(as_words(left)), y(as_words(right)), out(size * size);
    const auto at = [](const Array& array) { return reinterpret_cast<Half*>(static_cast<float*>(array)); };
    return start(1, 256, multiply_tiles, at(x), at(y), static_cast<float*>(out), bug ? mistake : Mistake::right) &&
           out.get() == expected;
  });
}

}  // namespace

std::vector<Case> product_cases() {
  return {
      {"product without a fence of its registers", products<Mistake::fence>, every},
      {"registers written behind their fence", products<Mistake::written_after_fence>, every},
      {"product that is not waited for", products<Mistake::wait>, every},
      {"product in no group", products<Mistake::group>, every},
      {"accumulators written ahead of the wait", products<Mistake::accumulators>, every},
      {"fragments written ahead of the wait", products<Mistake::fragments>, every},
      {"thread that ends ahead of the wait", products<Mistake::end>, every},
      {"product without one of four warps", products<Mistake::warp>, every},
      {"warps that ask for different products", products<Mistake::disagree>, every},
      {"product that forgets the sum so far", products<Mistake::forgets>, every},
      {"no proxy's fence behind a copy", products<Mistake::proxy>, every},
      {"proxy's fence before the copy has come", products<Mistake::proxy_early>, every},
      {"product of a tile that is being copied", products<Mistake::copy>, every},
      {"product of a tile before a barrier", products<Mistake::barrier>, every},
      {"operand changed behind its copy", products<Mistake::plain_store>, every},
      {"tile overwritten ahead of the wait", products<Mistake::early>, every},
      {"tile overwritten that another warpgroup reads", products<Mistake::other_group>, every},
      {"tile in rows without the swizzle", products<Mistake::swizzle>, every},
      {"tile that begins inside a pattern", products<Mistake::place>, every},
      {"leading offset of another tile", products<Mistake::leading>, every},
      {"stride offset of another tile", products<Mistake::stride>, every},
      {"operand turned the wrong way", products<Mistake::turned>, every},
      {"operand past the end of shared memory", products<Mistake::outside>, every},
  };
}

}  // namespace mutants
