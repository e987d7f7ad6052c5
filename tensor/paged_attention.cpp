// Paged attention: checks its arguments, and computes it by attention() on devices other than the CPU.
#include "tensor/paged_attention.h"

#include <algorithm>
#include <cmath>

#include "tensor/kernels.h"
#include "tensor/ops.h"
#include "tensor/ops_common.h"

namespace lockstep {
namespace {

/// Checks the block numbers of the tokens from `first` on; earlier blocks are not read.
void check_blocks(const char* op, const Tensor& memory, std::span<const int32_t> blocks, int64_t length,
                  int64_t first = 0) {
  LOCKSTEP_CHECK(
      memory.dim() == 4 && memory.is_contiguous() && memory.shape()[2] > 0, "[", op,
      "] expected a contiguous memory (blocks, G, tokens of a block, D) with 1 token or more in a block, got ",
      memory.shape(), " with strides ", memory.strides());
  const int64_t size = memory.shape()[2], needed = (length + size - 1) / size;
  LOCKSTEP_CHECK(length > 0 && int64_t(blocks.size()) >= needed, "[", op, "] expected 1 token or more, and ", needed,
                 " blocks of ", size, " for ", length, " tokens, got ", blocks.size(), " blocks");
  for (const int32_t block : blocks.first(size_t(needed)).subspan(size_t(first / size)))
    LOCKSTEP_CHECK(block >= 0 && block < memory.shape()[0], "[", op, "] expected block numbers in [0, ",
                   memory.shape()[0], "), got ", block);
}

}  // namespace

int64_t before_window(int64_t position, int64_t window) {
  constexpr int64_t tile = 64;  // keys per tile of the kernels, or a multiple of it
  return window > 0 ? std::max<int64_t>(0, position + 1 - window) / tile * tile : 0;
}

Tensor gather_blocks(const Tensor& memory, std::span<const int32_t> blocks, int64_t length) {
  check_blocks("gather_blocks", memory, blocks, length);
  const int64_t groups = memory.shape()[1], size = memory.shape()[2], width = memory.shape()[3];
  const int64_t count = (length + size - 1) / size;
  const std::vector<int64_t> numbers(blocks.begin(), blocks.begin() + count);
  const Tensor found = index_select(memory, 0, Tensor::from(numbers, {count}).to(memory.device()));
  return found.transpose(0, 1).reshape({1, groups, count * size, width}).narrow(2, 0, length);
}

void scatter_blocks(const Tensor& x, Tensor memory, std::span<const int32_t> blocks, int64_t first) {
  LOCKSTEP_CHECK(x.dim() == 4 && x.shape()[0] == 1, "[scatter_blocks] expected x (1, G, tokens, D), got ", x.shape());
  const int64_t tokens = x.shape()[2];
  check_blocks("scatter_blocks", memory, blocks, first + tokens, first);
  const int64_t size = memory.shape()[2];
  for (int64_t at = 0; at < tokens;) {
    const int64_t place = (first + at) % size, count = std::min(size - place, tokens - at);
    memory[blocks[size_t((first + at) / size)]].narrow(1, place, count).copy_(x[0].narrow(1, at, count));
    at += count;
  }
}

Tensor paged_attention(const Tensor& q, const Tensor& keys, const Tensor& values, std::span<const PagedRows> rows,
                       int64_t window) {
  const char* const op = "paged_attention";
  check_floating(op, q);
  check_defined(op, keys);
  LOCKSTEP_CHECK(q.dim() == 4 && q.shape()[0] == 1 && keys.dim() == 4 && values.shape() == keys.shape(), "[", op,
                 "] expected q (1, H, T, D), and keys and values both (blocks, G, tokens per block, D), got ",
                 q.shape(), ", ", keys.shape(), " and ", values.shape());
  check_same_device(op, q, keys);
  check_same_device(op, q, values);
  check_same_dtype(op, q, keys);
  check_same_dtype(op, q, values);
  const int64_t heads = q.shape()[1], groups = keys.shape()[1], size = keys.shape()[2], width = q.shape()[3];
  LOCKSTEP_CHECK(groups > 0 && heads % groups == 0 && keys.shape()[3] == width, "[", op,
                 "] expected keys whose number of heads divides ", heads, ", of width ", width, ", got ", keys.shape());
  LOCKSTEP_CHECK(size == 16 || size == 32 || size == 64, "[", op, "] expected blocks of 16, 32 or 64 tokens, got ",
                 size);
  LOCKSTEP_CHECK(window >= 0, "[", op, "] expected a window of at least one key, or 0 for none, got ", window);
  int64_t sum = 0;
  for (const PagedRows& r : rows) {
    LOCKSTEP_CHECK(r.queries > 0 && r.queries <= r.length, "[", op, "] expected 1 to ", r.length,
                   " queries in a row of ", r.length, " tokens, got ", r.queries);
    for (const Tensor* of : {&keys, &values})
      check_blocks(op, *of, r.blocks, r.length, before_window(r.length - r.queries, window));
    sum += r.queries;
  }
  LOCKSTEP_CHECK(sum == q.shape()[2], "[", op, "] expected q of ", sum, " queries, the rows' sum, got ", q.shape()[2]);
  if (!q.device().is_cpu()) {
    std::vector<Tensor> parts;
    int64_t first = 0;
    for (const PagedRows& r : rows) {
      const int64_t hidden = before_window(r.length - r.queries, window);
      const auto gathered = [&](const Tensor& of) {
        return gather_blocks(of, r.blocks.subspan(size_t(hidden / size)), r.length - hidden);
      };
      parts.push_back(attention(q.narrow(2, first, r.queries), gathered(keys), gathered(values), {},
                                {.scale = 0, .causal = true, .window = window})
                          .out);
      first += r.queries;
    }
    return parts.size() == 1 ? parts[0] : cat(parts, 2);
  }
  Tensor out = empty({1, sum, heads, width}, {q.dtype(), q.device()}).transpose(1, 2);
  const double scale = 1 / std::sqrt(double(std::max<int64_t>(width, 1)));
  const KernelScope scope(op);
  on_cpu::paged_attention(q.strides().back() == 1 ? q : q.contiguous(), keys, values, rows, scale, window, out);
  return out;
}

}  // namespace lockstep
