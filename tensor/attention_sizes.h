#pragma once
// Sizes of attention, and which query attends to which key; shared by the kernels of all devices. Internal.
#include "tensor/block_layout.h"
#include "tensor/kernel_args.h"

namespace lockstep {

/// Sizes of q (batch, heads, queries, width), k and v (batch, groups, keys, width), and the options of AttentionArgs.
struct AttentionSizes {
  int64_t batch, heads, groups, queries, keys, width;
  double scale;
  bool causal;
  int64_t window;  ///< 0: no window
  PhiloxKey key;
  int64_t first_head, all_heads;
  BlockRows layout;

  /// Takes the sizes from q and k, and the options from args.
  static AttentionSizes of(const Tensor& q, const Tensor& k, const AttentionArgs& args) {
    const Shape &x = q.shape(), &y = k.shape();
    const int64_t all = args.all_heads > 0 ? args.all_heads : x[1];
    const BlockRows layout(args.layout.get());
    return {x[0], x[1],  y[1], x[2], y[2], x[3], args.scale, args.causal, args.window, args.key, args.first_head,
            all,  layout};
  }

  /// One past the last key that query i may see by causality; `keys` if attention is not causal.
  LOCKSTEP_HD int64_t limit(int64_t i) const { return within(causal ? i + 1 + keys - queries : keys, keys); }
  /// First key that query i may see: 0 without a window.
  LOCKSTEP_HD int64_t first_key(int64_t i) const {
    return within(window > 0 ? i + 1 + keys - queries - window : 0, keys);
  }
  /// First query that may see key j.
  LOCKSTEP_HD int64_t first_query(int64_t j) const { return within(causal ? j - keys + queries : 0, queries); }
  /// One past the last query that may see key j.
  LOCKSTEP_HD int64_t end_query(int64_t j) const {
    return within(window > 0 ? j - keys + queries + window : queries, queries);
  }

 private:
  LOCKSTEP_HD static int64_t within(int64_t place, int64_t highest) {
    return place < 0 ? 0 : place < highest ? place : highest;
  }
};

}  // namespace lockstep
