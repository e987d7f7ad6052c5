// Attention, its gradient and rotary embedding on the device against the CPU.
#include "tensor/block_layout.h"
#include "tests/cuda/against_cpu.h"
#include "tests/environment.h"
#if defined(SIMT_CPU)
#include "tensor/cuda/runtime.h"
#include "tensor/cuda/tile_map.h"
#endif

using namespace lockstep;
using namespace testing;

namespace {

struct Case {
  int64_t batch, heads, groups, queries, keys, width;
  bool causal = false;
  int mask = 0;  // 1: a bool mask (T, S); 2: an additive mask (H, 1, S)
  double dropout = 0;
  bool transposed = false;  // true: tensors are stored with tokens before heads, and padding between rows
  int64_t window = 0;
};
const Case cases[] = {
    {1, 1, 1, 1, 1, 1},
    {0, 1, 1, 3, 3, 4},
    {1, 2, 2, 0, 5, 4},
    {2, 1, 1, 3, 0, 4},
    {1, 1, 1, 5, 4, 0},
    {2, 4, 2, 31, 33, 8, true},
    {1, 2, 1, 65, 33, 64, true, 0, 0, true},
    {1, 2, 2, 70, 130, 31, false, 1},
    {1, 3, 3, 33, 65, 5, true, 2, 0.3},
    {1, 2, 1, 33, 70, 96, true, 1, 0.1, true},
    {1, 2, 1, 40, 100, 72, false, 2},
    {1, 1, 1, 70, 66, 128, true, 0, 0.2},
    {1, 1, 1, 66, 65, 200, true},
    {1, 1, 1, 5, 67, 256, false, 2},
    {1, 1, 1, 3, 4, 300, true, 0, 1.0},
    {1, 1, 1, 130, 7, 16, true},
    // Blocks of keys add to the queries' gradient in a fixed order.
    {1, 4, 2, 140, 300, 16, true},
    {1, 2, 1, 290, 260, 8, true, 0, 0.1, true},
    {1, 1, 1, 40, 270, 128, false, 1},
    // Sliding windows, from one key to more than a tile.
    {1, 1, 1, 70, 70, 8, true, 0, 0, false, 1},
    {1, 2, 1, 140, 140, 16, true, 0, 0.1, true, 31},
    {1, 1, 1, 200, 200, 8, true, 0, 0, false, 64},
    {1, 2, 1, 290, 300, 8, true, 0, 0, true, 65},
    {1, 1, 1, 300, 300, 8, true, 0, 0, false, 130},
    {1, 2, 2, 3, 280, 16, true, 0, 0, false, 17},
    {1, 1, 1, 130, 66, 72, true, 1, 0, false, 3},
};
// Partial tiles, more and fewer keys than queries, fully masked rows, shared key heads, ordered accumulation, whole
// tiles.
const Case hopper_cases[] = {
    {1, 2, 1, 130, 300, 64, true},
    {2, 2, 2, 40, 129, 128, false, 0, 0, true},
    {1, 1, 1, 200, 150, 128, true},
    {1, 1, 1, 256, 384, 64, true, 0, 0, true},
    {1, 1, 1, 1, 1, 64},
};

Tensor heads_of(const Case& c, int64_t heads, int64_t tokens, DType dtype, uint32_t seed) {
  if (!c.transposed) return random_tensor({c.batch, heads, tokens, c.width}, dtype, seed);
  return random_tensor({c.batch, tokens, heads, c.width + (c.width % 16 == 0 ? 8 : 4)}, dtype, seed)
      .narrow(3, 0, c.width)
      .transpose(1, 2);
}

Tensor mask_of(const Case& c, DType dtype) {
  if (c.mask == 0) return {};
  if (c.mask == 2) return random_tensor({c.heads, 1, c.keys}, dtype, 9).expand({c.batch, c.heads, c.queries, c.keys});
  Tensor mask = gt(random_tensor({c.queries, c.keys}, f32, 9), full({}, -0.3, {.device = cpu}));
  if (c.queries > 3) mask.select(0, 3).fill_(0);  // query 3 attends to no key
  return mask.expand({c.batch, c.heads, c.queries, c.keys});
}

/// The arguments and expected results of forward and backward.
struct Call {
  std::string what;
  AttentionArgs args;
  Tensor q, k, v, mask, grad, out, lse;

  Call(const Case& c, DType dtype)
      : what(str("attention ", dtype, " (", c.batch, ", ", c.heads, "/", c.groups, ", ", c.queries, ", ", c.width,
                 ") to ", c.keys, c.causal ? " causal" : "", c.window > 0 ? str(" window ", c.window) : "",
                 c.mask ? " mask" : "", c.dropout > 0 ? " dropout" : "")),
        args{.scale = c.width > 0 ? 1 / std::sqrt(double(c.width)) : 1,
             .causal = c.causal,
             .window = c.window,
             .dropout = c.dropout,
             .key = {123, 456},
             .first_head = c.mask,
             .all_heads = c.mask > 0 ? c.heads + 3 : 0},
        q(heads_of(c, c.heads, c.queries, dtype, 1)),
        k(heads_of(c, c.groups, c.keys, dtype, 2)),
        v(heads_of(c, c.groups, c.keys, dtype, 3)),
        mask(mask_of(c, dtype)),
        grad(heads_of(c, c.heads, c.queries, dtype, 4)),
        out(heads_of(c, c.heads, c.queries, dtype, 5)),
        lse(empty({c.batch, c.heads, c.queries}, {dtype == f64 ? f64 : f32, cpu})) {}

  void compare() {
    check_kernel({what}, kernels::attention, q, k, v, mask, args, Out{out}, Out{lse});
    kernels::attention(cpu, q, k, v, mask, args, out, lse);
    check_kernel({what + " gradient", tolerance(Near::attention, q.dtype())}, kernels::attention_grad, grad, q, k, v,
                 mask, out, lse, args, Out{q}, Out{k}, Out{v});
  }
  /// Output, lse and the gradients, computed on the device.
  Arguments on_device() const {
    const auto there = [](const Tensor& x) { return like_on(x, cuda0); };
    const Tensor a = there(q), b = there(k), c = there(v), g = there(grad);
    Arguments all{there(out), there(lse), there(q).clone(), there(k).clone(), there(v).clone()};
    kernels::attention(cuda0, a, b, c, {}, args, all[0], all[1]);
    kernels::attention_grad(cuda0, g, a, b, c, {}, all[0], all[1], args, all[2], all[3], all[4]);
    return all;
  }
};

}  // namespace

TEST_CASE("cuda: attention and its gradient") {
  for (const Case& c : cases)
    for (const DType dtype : {f32, f64, f16, bf16}) Call(c, dtype).compare();
}

TEST_CASE("cuda: attention on Hopper's tensor cores, and on older ones") {
  const ::testing::EnvironmentVariable restored("LOCKSTEP_WGMMA", "1");
  for (const Case& c : hopper_cases)
    for (const DType dtype : {f16, bf16}) {
      Call call(c, dtype);
      setenv("LOCKSTEP_WGMMA", "1", 1);
      call.compare();
      const Arguments own = call.on_device();
      setenv("LOCKSTEP_WGMMA", "0", 1);
      const Arguments other = call.on_device();
      bool differs = false;
      for (size_t i = 0; i < own.size(); ++i) {
        check_close(own[i], other[i].to(cpu), tolerance(Near::attention, dtype), str(call.what, ", result ", i));
        differs |= bytes_of(own[i]) != bytes_of(other[i]);
      }
#if defined(SIMT_CPU)
      if (c.keys > 1 && cuda::limits().major == 9)
        CHECK_MESSAGE(differs, call.what << ": expected two kernels, and so other last bits");
#endif
    }
}

#if defined(SIMT_CPU)
TEST_CASE("cuda: attention on Hopper takes tensors that TMA takes, and leaves others to other kernels") {
  const auto made = [](const Shape& shape) { return random_tensor(shape, bf16, 1).to(cuda0); };
  const struct {
    const char* what;
    Tensor x;
    bool fits;
  } rows[] = {
      {"heads before tokens", made({2, 3, 70, 64}), true},
      {"packed", made({2, 70, 3, 3, 128}).select(2, 1).transpose(1, 2), true},
      {"one token, an odd stride", made({1, 70, 65}).narrow(2, 0, 64).unsqueeze(1).narrow(2, 0, 1), true},
      {"rows apart by no multiple of 16 bytes", made({1, 1, 70, 68}).narrow(3, 0, 64), false},
      {"begins inside 16 bytes", made({1, 1, 70, 72}).narrow(3, 4, 64), false},
      {"one head for all", made({1, 1, 70, 64}).expand({1, 4, 70, 64}), false},
      {"one batch for all", made({1, 2, 70, 64}).expand({3, 2, 70, 64}), false},
      {"no token", made({1, 2, 0, 64}), false},
      {"heads of 72", made({1, 2, 70, 72}), false},
  };
  for (const auto& row : rows) {
    CHECK_MESSAGE(on_cuda::fits_tiles(row.x) == row.fits, row.what);
    if (row.x.numel() == 0) continue;
    const Tensor x = row.x.to(cpu), query = random_tensor({x.shape()[0], x.shape()[1], 3, x.shape()[3]}, bf16, 2);
    Tensor out = empty_like(query), lse = empty({x.shape()[0], x.shape()[1], 3}, {f32, cpu});
    Tensor out_there = out.to(cuda0), lse_there = lse.to(cuda0);
    kernels::attention(cpu, query, x, x, {}, {.scale = 0.1}, out, lse);
    kernels::attention(cuda0, query.to(cuda0), row.x, row.x, {}, {.scale = 0.1}, out_there, lse_there);
    check_close(out, out_there.to(cpu), tolerance(bf16), row.what);
  }
}
#endif

TEST_CASE("cuda: attention and its gradient with a layout of blocks") {
  struct Sparse {
    int64_t queries, width, block;
    bool causal;
  };
  constexpr int64_t keys = 300, heads = 2;
  for (const auto& [queries, width, block, causal] : {Sparse{300, 16, 16, true}, Sparse{70, 72, 100, false}}) {
    const int64_t blocks = (keys + block - 1) / block;
    std::vector<std::vector<int32_t>> rows(static_cast<size_t>(heads * blocks));
    std::mt19937 engine(3);
    for (size_t r = 1; r < rows.size(); ++r)  // the first row attends to no key, some rows skip the first or last keys
      for (int32_t column = 0; column < blocks; ++column)
        if (engine() % 4 == 0) rows[r].push_back(column);
    const BlockLayout layout = BlockLayout::of_rows(block, heads, rows);
    const auto args_on = [&](Device device) {
      return AttentionArgs{
          .scale = 0.3, .causal = causal, .layout = std::make_shared<const BlockLayout>(layout.to(device))};
    };
    for (const DType dtype : {f32, f16, bf16}) {
      const Tensor q = random_tensor({1, heads, queries, width}, dtype, 1),
                   k = random_tensor({1, heads, keys, width}, dtype, 2),
                   v = random_tensor({1, heads, keys, width}, dtype, 3), grad = random_tensor(q.shape(), dtype, 4);
      Tensor out = random_tensor(q.shape(), dtype, 5), lse = empty({1, heads, queries}, {f32, cpu});
      const std::string what = str("attention ", dtype, " ", q.shape(), ", blocks of ", block);
      against_cpu(what, {q, k, v}, {out, lse}, [&](Device on, const Arguments& in, Arguments& to) {
        kernels::attention(on, in[0], in[1], in[2], {}, args_on(in[0].device()), to[0], to[1]);
      });
      kernels::attention(cpu, q, k, v, {}, args_on(cpu), out, lse);
      against_cpu(
          what + " gradient", {grad, q, k, v, out, lse}, {q, k, v},
          [&](Device on, const Arguments& in, Arguments& to) {
            kernels::attention_grad(on, in[0], in[1], in[2], in[3], {}, in[4], in[5], args_on(in[0].device()), to[0],
                                    to[1], to[2]);
          },
          tolerance(Near::attention, dtype));
    }
  }
}

TEST_CASE("cuda: rotary, of any rows") {
  struct Rows {
    Shape shape;
    bool transposed;
  };
  for (const auto& [shape, transposed] :
       {Rows{{1, 2}, false}, Rows{{0, 4}, false}, Rows{{5, 0}, false}, Rows{{3, 31, 6}, false},
        Rows{{2, 3, 33, 64}, true}, Rows{{2, 5, 7, 8}, true}, Rows{{2, 8, 5, 32}, true}, Rows{{2, 6, 5, 32}, true},
        Rows{{2, 2, 3, 17, 16}, false}})
    for (const DType dtype : {f32, f64, f16, bf16})
      for (const DType of_table : {dtype, f32}) {
        if (dtype == f64 && of_table != f64) continue;
        const int64_t tokens = shape[shape.rank() - 2], half = shape.back() / 2;
        Tensor x = random_tensor(shape, dtype, 1);
        if (transposed) x = random_tensor({shape[0], shape[2], shape[1], shape[3]}, dtype, 1).transpose(1, 2);
        const Tensor cosine = random_tensor({tokens, half}, of_table, 2),
                     sine = random_tensor({tokens, half}, of_table, 3);
        for (const bool inverse : {false, true})
          check_kernel({str("rotary ", dtype, " ", shape)}, kernels::rotary, x, cosine, sine, inverse,
                       Out{random_tensor(shape, dtype)});
      }
}
