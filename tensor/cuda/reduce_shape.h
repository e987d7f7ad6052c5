#pragma once
// The division of reductions on CUDA devices over threads and chunks. It follows from the tensor's shape alone, so that
// sums do not depend on the device. reduce.cu launches its kernels with this shape, and forecasts of a step's time
// count these kernels.
#include <algorithm>
#include <cstdint>

namespace lockstep::on_cuda {

/// The shape of a launch. `block` is the number of threads in a block, `across` how many of them read neighbouring
/// elements at once. The elements that are reduced to one output are divided into `chunks` parts. If there are several
/// chunks, a second kernel joins their totals.
struct ReduceShape {
  int block = 256, across = 1;
  int64_t chunks = 1;

  /// The most totals that a block keeps in shared memory when it reduces columns.
  static constexpr int max_totals = 2048;
  /// The smallest power of two that is at least n, but at most `max_block`.
  static int power_of_two_from(int64_t n, int max_block) {
    int p = 1;
    while (p < max_block && p < n) p *= 2;
    return p;
  }

  /// The shape if all elements of a vector are reduced to the same output; each output has `items` vectors. There are
  /// several times as many chunks as a device runs at once, so few of its multiprocessors idle at the end.
  static ReduceShape of_rows(int64_t outputs, int64_t items) {
    ReduceShape shape;
    shape.across = items > 128 ? shape.block : power_of_two_from((items + 1) / 2, 32);
    shape.chunks = std::clamp<int64_t>(4096 / std::max<int64_t>(outputs, 1), 1, (items + 4095) / 4096);
    return shape;
  }

  /// The shape if the elements of a vector belong to different outputs: `outer` matrices of `items` rows and `lanes`
  /// columns are reduced to one row each. A thread takes V columns, with elements of `bytes` bytes. `max_block` is the
  /// largest number of threads in a block.
  static ReduceShape of_columns(int64_t outer, int64_t items, int64_t lanes, int V, int64_t bytes, int max_block) {
    constexpr int64_t enough_items = 8;                      // items that keep a thread busy
    constexpr int64_t enough_blocks = 64, just_enough = 40;  // blocks that use the full memory bandwidth without chunks
    const auto blocks = [&](int across) { return outer * ((lanes + int64_t(across) * V - 1) / (int64_t(across) * V)); };
    ReduceShape shape;
    int &across = shape.across, &block = shape.block;
    across = power_of_two_from((lanes + V - 1) / V, 32);
    // If there are too few rows to occupy a block's threads, a block takes more columns.
    while (across < block && int64_t(across) * V < lanes && items * across < enough_items * block) across *= 2;
    const int64_t max_chunks = std::max<int64_t>(1, items * across / (enough_items * block));
    shape.chunks = std::clamp<int64_t>(1024 / std::max<int64_t>(blocks(across), 1), 1, max_chunks);
    // Instead of several chunks, a block can take all rows of fewer columns (at least 32 bytes of a row), if this gives
    // enough blocks.
    const int narrowest = std::min(across, std::max(1, int(32 / (V * bytes))));
    if (shape.chunks == 1 || blocks(narrowest) < just_enough) return shape;
    shape.chunks = 1;
    while (across > narrowest && blocks(across) < enough_blocks) across /= 2;
    while (block < max_block && block / 16 * across * V <= max_totals && items * across >= enough_items * block * 2)
      block *= 2;
    return shape;
  }
};

}  // namespace lockstep::on_cuda
