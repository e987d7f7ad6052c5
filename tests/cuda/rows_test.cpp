// Softmax, norms, sums of columns, batch norm and cross entropy on the device against the CPU: rows in a warp's
// registers and in a block's shared memory, and longer ones, aligned and unaligned, in every dtype.
#include "tensor/graph.h"
#include "tensor/padded.h"
#include "tests/cuda/against_cpu.h"
#include "tests/messages.h"

using namespace lockstep;
using namespace testing;

namespace {

struct Rows {
  int64_t rows, n;
};
constexpr Rows row_shapes[] = {{0, 8},    {1, 1},    {3, 2},    {5, 31},   {7, 33},
                               {130, 64}, {3, 1000}, {2, 4099}, {2, 8192}, {1, 9001}};

Tensor statistics(int64_t n, DType dtype) { return empty({n}, {dtype == f64 ? f64 : f32, cpu}); }
std::string named(const char* op, DType dtype, int64_t rows, int64_t n) {
  return str(op, " ", dtype, " (", rows, ", ", n, ")");
}

double bound_of(DType dtype, int64_t n) { return tolerance(n > 1000 ? Near::long_row : Near::kernel, dtype); }

}  // namespace

TEST_CASE("cuda: softmax and its gradient") {
  for (const DType dtype : float_dtypes)
    for (const auto [rows, n] : row_shapes)
      for (const bool log : {false, true}) {
        const Tensor x = random_tensor({rows, n}, dtype, 1, 5), g = random_tensor({rows, n}, dtype, 2),
                     out = empty_like(x);
        check_kernel({named(log ? "log_softmax" : "softmax", dtype, rows, n), bound_of(dtype, n)}, kernels::softmax,
                     log, x, Out{out});
        Tensor y = empty_like(x);
        kernels::softmax(cpu, log, x, y);
        check_kernel({named(log ? "log_softmax_grad" : "softmax_grad", dtype, rows, n), bound_of(dtype, n) * 2},
                     kernels::softmax_grad, log, g, y, Out{out});
      }
}

TEST_CASE("cuda: softmax of masked, huge and NaN rows") {
  const double inf = INFINITY;
  for (const int64_t n : {4, 1000, 9001}) {
    Tensor x = empty({6, n}, {f32, cpu});
    x.fill_(-inf);
    x.select(0, 1).fill_(1e30), x.select(0, 2).fill_(3e4), x.select(0, 3).fill_(-1e30);
    x.narrow(0, 1, 4).narrow(1, 0, 2).fill_(-inf);
    x.select(0, 4).fill_(0), x.select(0, 4).narrow(0, n - 1, 1).fill_(std::nan(""));
    x.select(0, 5).narrow(0, n / 2, 1).fill_(inf);
    for (const bool log : {false, true})
      check_kernel({str("hard rows of ", n)}, kernels::softmax, log, x, Out{empty_like(x)});
  }
}

TEST_CASE("cuda: layer norm, rms norm and their gradients") {
  for (const DType dtype : float_dtypes)
    for (const auto [rows, n] : row_shapes)
      for (const bool affine : {true, false}) {
        const Tensor x = random_tensor({rows, n}, dtype, 1), g = random_tensor({rows, n}, dtype, 2),
                     out = empty_like(x);
        const Tensor w = affine ? random_tensor({n}, dtype, 3) : Tensor(),
                     b = affine ? random_tensor({n}, dtype, 4) : Tensor();
        const double bound = bound_of(dtype, n) * (n < 4 ? 50 : 1);
        check_kernel({named("layer_norm", dtype, rows, n), bound}, kernels::layer_norm, x, w, b, 1e-3, Out{out},
                     Out{statistics(rows, dtype)}, Out{statistics(rows, dtype)});
        check_kernel({named("rms_norm", dtype, rows, n), bound}, kernels::rms_norm, x, w, 1e-3, Out{out},
                     Out{statistics(rows, dtype)});
        Tensor y = empty_like(x), mean = statistics(rows, dtype), rstd = statistics(rows, dtype),
               root = statistics(rows, dtype);
        kernels::layer_norm(cpu, x, w, b, 1e-3, y, mean, rstd);
        kernels::rms_norm(cpu, x, w, 1e-3, y, root);
        check_kernel({named("layer_norm_grad", dtype, rows, n), bound * 2}, kernels::layer_norm_grad, g, x, mean, rstd,
                     w, Out{out}, Out{affine ? empty_like(w) : w}, Out{affine ? empty_like(b) : b});
        check_kernel({named("rms_norm_grad", dtype, rows, n), bound * 2}, kernels::rms_norm_grad, g, x, root, w,
                     Out{out}, Out{affine ? empty_like(w) : w});
      }
}

TEST_CASE("cuda: a NaN or an infinity in a row is in all that its norm gives") {
  for (const int64_t n : {5, 1000, 9001}) {
    const Tensor x = random_tensor({4, n}, f32, 1);
    x.select(0, 1).narrow(0, n / 2, 1).fill_(std::nan("")), x.select(0, 2).narrow(0, n - 1, 1).fill_(INFINITY);
    check_kernel({named("layer_norm", f32, 4, n)}, kernels::layer_norm, x, Tensor(), Tensor(), 1e-3, Out{empty_like(x)},
                 Out{statistics(4, f32)}, Out{statistics(4, f32)});
    check_kernel({named("rms_norm", f32, 4, n)}, kernels::rms_norm, x, Tensor(), 1e-3, Out{empty_like(x)},
                 Out{statistics(4, f32)});
  }
}

TEST_CASE("cuda: the norm of a sum with dropout, and its gradient") {
  const PhiloxKey key{0x123456789abcdefull, 77};
  for (const DType dtype : float_dtypes)
    for (const auto [rows, n] : row_shapes)
      for (const bool centered : {true, false})
        for (const double p : {0., 0.3, 1.}) {
          const AddNormArgs args{.centered = centered, .eps = 1e-3, .p = p, .key = key};
          const Tensor x = random_tensor({rows, n}, dtype, 1), add = random_tensor({rows, n}, dtype, 2),
                       g = random_tensor({rows, n}, dtype, 5), out = empty_like(x), w = random_tensor({n}, dtype, 3),
                       b = centered ? random_tensor({n}, dtype, 4) : Tensor(),
                       means = centered ? statistics(rows, dtype) : Tensor();
          const double bound = bound_of(dtype, n) * (n < 4 ? 50 : 2);
          const std::string what = named(centered ? "add_norm" : "add_norm rms", dtype, rows, n) + str(" p ", p);
          check_kernel({what, bound}, kernels::add_norm, x, add, w, b, args, Out{out}, Out{out}, Out{means},
                       Out{statistics(rows, dtype)});
          Tensor sum = empty_like(x), y = empty_like(x), mean = centered ? statistics(rows, dtype) : Tensor(),
                 rstd = statistics(rows, dtype);
          kernels::add_norm(cpu, x, add, w, b, args, sum, y, mean, rstd);
          for (const bool adds : {true, false})
            check_kernel({what + (adds ? " gradient" : " gradient alone"), bound * 2}, kernels::add_norm_grad, g,
                         adds ? add : Tensor(), sum, mean, rstd, w, args, Out{out}, Out{p > 0 ? out : Tensor()}, Out{w},
                         Out{b}, Out{w});
          // The fused kernels are bit-identical to the separate ones, also if the gradient is accumulated in place.
          const auto on = [](const Tensor& t) { return like_on(t, cuda0); };
          const auto fresh = [](const Tensor& t) { return t.defined() ? empty(t.shape(), {t.dtype(), cuda0}) : t; };
          Tensor sums[2] = {fresh(x), fresh(x)}, outs[2] = {fresh(x), fresh(x)}, m[2] = {fresh(mean), fresh(mean)},
                 r[2] = {fresh(rstd), fresh(rstd)}, gx[2] = {fresh(x), on(add).clone()},
                 dropped[2] = {fresh(x), fresh(x)}, gw[2] = {fresh(w), fresh(w)}, gb[2] = {fresh(b), fresh(b)},
                 gs[2] = {fresh(w), fresh(w)};
          if (p > 0) kernels::dropout(cuda0, on(x), p, key, {}, on(add), sums[0]);
          else sums[0] = lockstep::add(on(add), on(x));
          if (centered) kernels::layer_norm(cuda0, sums[0], on(w), on(b), args.eps, outs[0], m[0], r[0]);
          else kernels::rms_norm(cuda0, sums[0], on(w), args.eps, outs[0], r[0]);
          kernels::add_norm(cuda0, on(x), on(add), on(w), on(b), args, sums[1], outs[1], m[1], r[1]);
          if (centered) kernels::layer_norm_grad(cuda0, on(g), sums[0], m[0], r[0], on(w), gx[0], gw[0], gb[0]);
          else kernels::rms_norm_grad(cuda0, on(g), sums[0], r[0], on(w), gx[0], gw[0]);
          gx[0] = lockstep::add(on(add), gx[0]);
          kernels::dropout(cuda0, gx[0], p, key, {}, {}, dropped[0]);
          kernels::column_sums(cuda0, dropped[0], gs[0]);
          kernels::add_norm_grad(cuda0, on(g), gx[1], sums[1], m[1], r[1], on(w), args, gx[1], dropped[1], gw[1], gb[1],
                                 gs[1]);
          for (const Tensor* pair : {sums, outs, m, r, gx, dropped, gw, gb, gs})
            CHECK_MESSAGE(bytes_of(pair[0]) == bytes_of(pair[1]), what);
        }
}

TEST_CASE("cuda: a norm has the same bits wherever its inputs lie") {
  for (const DType dtype : float_dtypes)
    for (const auto [rows, n] : {Rows{5, 64}, Rows{3, 1000}, Rows{2, 4096}})
      for (const bool centered : {true, false}) {
        const AddNormArgs args{.centered = centered, .eps = 1e-3, .p = 0.3, .key = {77, 5}};
        std::vector<unsigned char> first;
        for (const int64_t offset : {0, 1}) {  // in elements
          const auto at = [&](const Shape& shape, uint32_t seed) {
            Tensor x = empty({numel_of(shape) + offset}, {dtype, cuda0}).narrow(0, offset, numel_of(shape)).view(shape);
            x.copy_(random_tensor(shape, dtype, seed).to(cuda0));
            return x;
          };
          const Tensor x = at({rows, n}, 1), add = at({rows, n}, 2), g = at({rows, n}, 3), w = at({n}, 4),
                       b = centered ? at({n}, 5) : Tensor();
          Tensor of_rows[4], of_columns[6];
          for (Tensor& t : of_rows) t = statistics(rows, dtype).to(cuda0);
          for (Tensor& t : of_columns) t = at({n}, 6);
          Tensor sum = empty({rows, n}, {dtype, cuda0}), out[] = {empty_like(sum), empty_like(sum)},
                 dropped = empty_like(sum), grad_x[] = {at({rows, n}, 2), empty_like(sum)};
          kernels::add_norm(cuda0, x, add, w, b, args, sum, out[0], of_rows[0], of_rows[1]);
          kernels::add_norm_grad(cuda0, g, grad_x[0], sum, of_rows[0], of_rows[1], w, args, grad_x[0], dropped,
                                 of_columns[0], of_columns[1], of_columns[4]);
          kernels::column_sums(cuda0, x, of_columns[5]);
          if (centered) {
            kernels::layer_norm(cuda0, x, w, b, args.eps, out[1], of_rows[2], of_rows[3]);
            kernels::layer_norm_grad(cuda0, g, x, of_rows[2], of_rows[3], w, grad_x[1], of_columns[2], of_columns[3]);
          } else {
            kernels::rms_norm(cuda0, x, w, args.eps, out[1], of_rows[3]);
            kernels::rms_norm_grad(cuda0, g, x, of_rows[3], w, grad_x[1], of_columns[2]);
          }
          std::vector<Tensor> made = {sum,           out[0],        out[1],        dropped,
                                      grad_x[0],     grad_x[1],     of_columns[0], of_columns[2],
                                      of_columns[4], of_columns[5], of_rows[1],    of_rows[3]};
          if (centered) made.insert(made.end(), {of_columns[1], of_columns[3], of_rows[0], of_rows[2]});
          std::vector<unsigned char> bits;
          for (const Tensor& t : made)
            for (const unsigned char byte : bytes_of(t)) bits.push_back(byte);
          if (offset == 0) first = bits;
          CHECK_MESSAGE(bits == first, named(centered ? "layer_norm" : "rms_norm", dtype, rows, n));
        }
      }
}

TEST_CASE("cuda: sums of columns, and the same bits from the norm that writes the columns") {
  // Few and many blocks, which finish in one group or in several; wide rows, which are cut into strips.
  constexpr Rows shapes[] = {{0, 5},   {1, 1},    {7, 13},     {40, 1},    {513, 8},   {600, 40},
                             {300, 3}, {33, 768}, {290, 1032}, {17, 2304}, {5, 13001}, {3, 40000}};
  for (const DType dtype : float_dtypes)
    for (const auto [rows, n] : shapes) {
      const Tensor x = random_tensor({rows, n}, dtype, 1), w = random_tensor({n}, dtype, 2);
      const double bound = tolerance(Near::kernel, dtype) * 4;
      check_kernel({named("column_sums", dtype, rows, n), bound}, kernels::column_sums, x, Out{w});
      const Tensor turned = random_tensor({n, rows}, dtype, 3).t();
      check_kernel({named("column_sums of a transposed matrix", dtype, rows, n), bound}, kernels::column_sums, turned,
                   Out{w});
      if (n > 13001) continue;
      const auto there = [](const Tensor& t) { return like_on(t, cuda0); };
      const Tensor g = there(random_tensor({rows, n}, dtype, 4)), sum = there(x), mean = there(statistics(rows, dtype)),
                   rstd = there(statistics(rows, dtype));
      mean.fill_(0.25), rstd.fill_(1.5);
      Tensor grad_x = empty_like(sum), of_weight = empty_like(there(w)), of_bias = empty_like(of_weight), none,
             sums[3] = {empty_like(of_weight), empty_like(of_weight), empty_like(of_weight)};
      const AddNormArgs args{.centered = true, .eps = 1e-3};
      // The second time without gradients of weight and bias.
      kernels::add_norm_grad(cuda0, g, {}, sum, mean, rstd, there(w), args, grad_x, none, of_weight, of_bias, sums[0]);
      kernels::add_norm_grad(cuda0, g, {}, sum, mean, rstd, there(w), args, grad_x, none, none, none, sums[1]);
      kernels::column_sums(cuda0, grad_x, sums[2]);
      for (const Tensor& other : {sums[1], sums[2]})
        CHECK_MESSAGE(bytes_of(sums[0]) == bytes_of(other), named("sums of a norm", dtype, rows, n));
    }
}

TEST_CASE("cuda: sums of columns from several streams and in a replayed graph") {
  // Blocks count who finishes last. Nothing may count with the same counters at the same time, and each kernel has to
  // leave them as it found them.
  const Tensor x = random_tensor({700, 24}, f32, 1).to(cuda0), y = random_tensor({700, 24}, f32, 2).to(cuda0);
  const auto expected_x = bytes_of(column_sums(x)), expected_y = bytes_of(column_sums(y));
  Tensor recorded;
  Graph graph(cuda0);
  graph.capture([&] {
    const Tensor first = column_sums(x);
    recorded = column_sums(y);
  });
  const Stream side(cuda0);
  for (int i = 0; i < 3; ++i) {
    graph.replay();
    Tensor beside, here;
    {
      const StreamScope on(side);
      beside = column_sums(y);
    }
    here = column_sums(x);
    synchronize(cuda0);
    CHECK(bytes_of(recorded) == expected_y);
    CHECK(bytes_of(beside) == expected_y);
    CHECK(bytes_of(here) == expected_x);
    recorded.fill_(0);
    synchronize(cuda0);
  }
}

TEST_CASE("cuda: a row has the same bits whichever rows its block has had before") {
  struct Several {
    int64_t rows, n;
    DType dtype;
  };
  // A block takes every 64th row or more of them. Short rows are in shared memory twice, longer ones once, and of the
  // longest ones a part.
  for (const auto [rows, n, dtype] :
       {Several{130, 2056, f32}, Several{130, 2056, bf16}, Several{67, 15'004, f32}, Several{65, 30'012, f32}}) {
    const auto on_device = [&](const Shape& shape, uint32_t seed) {
      return random_tensor(shape, dtype, seed).to(cuda0);
    };
    const Tensor x = on_device({rows, n}, 1), g = on_device({rows, n}, 2), w = on_device({n}, 3),
                 upstream = random_tensor({rows}, f32, 4).to(cuda0), target = random_integers({rows}, n).to(cuda0);
    const AddNormArgs args{.centered = true, .eps = 1e-3, .p = 0, .key = {}};
    const auto of = [&](int64_t first, int64_t count) {
      const auto part = [&](const Tensor& t) { return t.narrow(0, first, count); };
      const auto made = [&] { return empty({count, n}, {dtype, cuda0}); };
      const auto numbers = [&] { return empty({count}, {f32, cuda0}); };
      Tensor y = made(), dy = made(), normed = made(), mean = numbers(), rstd = numbers(), dx = made(), sum = made(),
             out = made(), loss = numbers(), lse = numbers(), dlogits = part(x).clone(), dw = empty_like(w),
             db = empty_like(w), none;
      kernels::softmax(cuda0, false, part(x), y);
      kernels::softmax_grad(cuda0, false, part(g), y, dy);
      kernels::layer_norm(cuda0, part(x), w, w, 1e-3, normed, mean, rstd);
      kernels::layer_norm_grad(cuda0, part(g), part(x), mean, rstd, w, dx, dw, db);
      kernels::add_norm(cuda0, part(x), part(g), w, w, args, sum, out, mean, rstd);
      Tensor dsum = part(g).clone();
      kernels::add_norm_grad(cuda0, part(g), dsum, sum, mean, rstd, w, args, dsum, none, dw, db, none);
      kernels::cross_entropy(cuda0, dlogits, part(target), {}, {}, part(upstream), loss, lse, dlogits);
      return std::vector<Tensor>{y, dy, normed, mean, rstd, dx, sum, out, dsum, loss, lse, dlogits};
    };
    const std::vector<Tensor> all = of(0, rows);
    for (const int64_t r : {int64_t(0), int64_t(33), int64_t(64), rows - 1}) {
      const std::vector<Tensor> single = of(r, 1);
      for (size_t i = 0; i < all.size(); ++i) {
        const std::string what = named("several rows", dtype, rows, n) + str(", row ", r, ", result ", i);
        CHECK_MESSAGE(bytes_of(all[i].narrow(0, r, 1)) == bytes_of(single[i]), what);
      }
    }
  }
}

TEST_CASE("cuda: layer norm around a large mean") {
  const Tensor x = add_scalar(random_tensor({3, 700}, f32, 1), 1e4);
  check_kernel({"large mean", tolerance(Near::large_mean, f32)}, kernels::layer_norm, x, Tensor(), Tensor(), 0,
               Out{empty_like(x)}, Out{statistics(3, f32)}, Out{statistics(3, f32)});
}

TEST_CASE("cuda: batch norm and its gradient in both layouts") {
  struct Images {
    int64_t n, c, s;
  };
  for (const auto [n, c, s] : {Images{2, 1, 1}, Images{0, 3, 4}, Images{2, 0, 4}, Images{4, 3, 5}, Images{33, 40, 1},
                               Images{3, 31, 33}, Images{2, 8, 64}, Images{1, 2, 9001}, Images{40, 16, 31}})
    for (const DType dtype : float_dtypes)
      for (const bool last : {false, true})
        for (const bool training : {true, false}) {
          if (training && n * s < 2) continue;
          const auto images = [&](uint32_t seed) {
            return last ? random_tensor({n, s, c}, dtype, seed).transpose(1, 2) : random_tensor({n, c, s}, dtype, seed);
          };
          const Tensor x = images(1), g = images(2), w = random_tensor({c}, dtype, 3), b = random_tensor({c}, dtype, 4);
          Tensor mean = random_tensor({c}, dtype == f64 ? f64 : f32, 5, 0.1),
                 rstd = add_scalar(random_tensor({c}, dtype == f64 ? f64 : f32, 6, 0.5), 1.5);
          const Tensor out = images(7), of_channel = statistics(c, dtype);
          const std::string what = str("batch_norm ", dtype, " (", n, ", ", c, ", ", s, last ? ") channels last" : ")");
          if (training) {
            check_kernel({what}, kernels::batch_norm, x, w, b, 1e-3, true, Out{of_channel}, Out{of_channel},
                         Out{of_channel}, Out{out});
          } else {
            against_cpu(what, {x, w, mean, rstd}, {out}, [&](Device on, const Arguments& in, Arguments& to) {
              Tensor m = in[2], r = in[3], none;
              kernels::batch_norm(on, in[0], in[1], {}, 1e-3, false, m, r, none, to[0]);
            });
          }
          check_kernel({what + " gradient", tolerance(Near::batch_norm, dtype)}, kernels::batch_norm_grad, g, x, w,
                       mean, rstd, training, Out{out}, Out{empty_like(w)}, Out{empty_like(b)});
        }
}

TEST_CASE("cuda: cross entropy of some of the classes, of targets that are elsewhere") {
  for (const DType dtype : float_dtypes)
    for (const auto [rows, n] : row_shapes) {
      const Tensor x = random_tensor({rows, n}, dtype, 1, 20);
      Tensor target = random_integers({rows}, n);
      target.narrow(0, 0, (rows + 1) / 2).fill_(-1);
      if (rows > 2) target.narrow(0, 1, 1).fill_(-7);
      const CrossEntropyArgs args{.ignore_index = -7, .elsewhere = true};
      const std::string what = named("cross_entropy elsewhere", dtype, rows, n);
      Tensor loss = statistics(rows, dtype), lse = statistics(rows, dtype), none;
      kernels::cross_entropy(cpu, x, full_like(target, -7), {}, {.ignore_index = -7}, none, loss, lse, none);
      check_kernel({what + " gradient", bound_of(dtype, n)}, kernels::cross_entropy_grad,
                   random_tensor({rows}, loss.dtype(), 5), x, add_scalar(lse, 1), target, Tensor(), args,
                   Out{empty_like(x)});
    }
}

TEST_CASE("cuda: cross entropy and its gradient, also in place") {
  for (const DType dtype : float_dtypes)
    for (const auto [rows, n] : row_shapes)
      for (const double smoothing : {0.0, 0.1})
        for (const bool weighted : {false, true})
          for (const double scale : {1.0, 60.0}) {
            const Tensor x = random_tensor({rows, n}, dtype, 1, scale),
                         w = weighted ? add_scalar(random_tensor({n}, dtype, 2, 0.5), 1) : Tensor();
            Tensor target = random_integers({rows}, n);
            if (rows > 2) target.narrow(0, 1, 1).fill_(-7);
            const CrossEntropyArgs args{.ignore_index = -7, .label_smoothing = smoothing};
            const std::string what = named("cross_entropy", dtype, rows, n);
            against_cpu(
                what, {x, target, w}, {statistics(rows, dtype), statistics(rows, dtype)},
                [&](Device on, const Arguments& in, Arguments& to) {
                  Tensor none;
                  kernels::cross_entropy(on, in[0], in[1], in[2], args, none, to[0], to[1], none);
                },
                tolerance(Near::loss, dtype));
            Tensor loss = statistics(rows, dtype), lse = statistics(rows, dtype), none;
            kernels::cross_entropy(cpu, x, target, w, args, none, loss, lse, none);
            const Tensor upstream = random_tensor({rows}, loss.dtype(), 5);
            against_cpu(
                what + " with its gradient", {upstream, x, target, w},
                {statistics(rows, dtype), statistics(rows, dtype), empty_like(x)},
                [&](Device on, const Arguments& in, Arguments& to) {
                  Tensor separate[] = {empty_like(to[0]), empty_like(to[1]), empty_like(to[2])}, nothing;
                  kernels::cross_entropy(on, in[1], in[2], in[3], args, nothing, separate[0], separate[1], nothing);
                  kernels::cross_entropy_grad(on, in[0], in[1], separate[1], in[2], in[3], args, separate[2]);
                  to[2] = in[1].clone();
                  kernels::cross_entropy(on, to[2], in[2], in[3], args, in[0], to[0], to[1], to[2]);
                  for (size_t i = 0; i < 3; ++i) CHECK_MESSAGE(bytes_of(to[i]) == bytes_of(separate[i]), what);
                },
                std::max(bound_of(dtype, n), 5e-5));
            against_cpu(
                what + " gradient", {upstream, x, lse, target, w}, {empty_like(x)},
                [&](Device on, const Arguments& in, Arguments& to) {
                  to[0] = in[1].clone();
                  kernels::cross_entropy_grad(on, in[0], to[0], in[2], in[3], in[4], args, to[0]);
                },
                bound_of(dtype, n));
          }
}

TEST_CASE("cuda: cross entropy neither reads nor writes what lies between rows") {
  const auto between = [](const Tensor& x) {  // the rows' padding, on the CPU
    const Tensor entire = Tensor(x.storage(), 0, {x.size(0), x.strides()[0]}, {x.strides()[0], 1}, x.dtype());
    return entire.narrow(1, x.size(1), x.strides()[0] - x.size(1)).to(cpu).contiguous();
  };
  for (const DType dtype : float_dtypes) {
    // Rows in registers and in shared memory, some longer than it, that end within a vector of 16 bytes.
    for (const auto [rows, n] : {Rows{3, 1}, Rows{9, 33}, Rows{700, 61}, Rows{6, 997}, Rows{3, 2001}, Rows{2, 60001}}) {
      const auto padded = [&, rows = rows, n = n](double behind, Device device) {
        return full({rows, padded_columns(n)}, behind, {dtype, device}).narrow(1, 0, n);
      };
      const Tensor x = padded(std::nan(""), cpu), upstream = random_tensor({rows}, dtype == f64 ? f64 : f32, 5),
                   w = add_scalar(random_tensor({n}, dtype, 2, 0.5), 1);
      Tensor target = random_integers({rows}, n), values = x;
      values.copy_(random_tensor({rows, n}, dtype, 1, 5));
      target.narrow(0, 0, 1).fill_(n - 1), target.narrow(0, 1, 1).fill_(-7);
      for (const double smoothing : {0.0, 0.1}) {
        const CrossEntropyArgs args{.ignore_index = -7, .label_smoothing = smoothing};
        const std::string what = named("cross_entropy of padded rows,", dtype, rows, n);
        against_cpu(
            what, {upstream, x, target, w},
            {statistics(rows, dtype), statistics(rows, dtype), empty({rows, n}, {dtype, cpu})},
            [&](Device on, const Arguments& in, Arguments& to) {
              Tensor apart = padded(3, in[1].device()), within = padded(3, in[1].device());
              kernels::cross_entropy(on, in[1], in[2], in[3], args, in[0], to[0], to[1], apart);
              to[2] = apart.contiguous();
              within.copy_(in[1]);
              kernels::cross_entropy_grad(on, in[0], within, to[1], in[2], in[3], args, within);
              CHECK_MESSAGE(bytes_of(within) == bytes_of(apart), what);
              for (const Tensor& made : {apart, within})
                CHECK_MESSAGE(sum(abs(add_scalar(between(made).to(f32), -3))).item() == 0, what);
            },
            std::max(bound_of(dtype, n), 5e-5));
      }
    }
  }
}

TEST_CASE("cuda: cross entropy reports a target outside the classes and leaves its row alone") {
  const Tensor x = random_tensor({3, 5}, f32).to(cuda0), target = Tensor::from<int64_t>({1, 5, 2}, {3}).to(cuda0);
  Tensor loss = empty({3}, {f32, cuda0}), lse = empty({3}, {f32, cuda0}), grad = empty({3, 5}, {f32, cuda0}), none;
  const auto of_row_1 = [&](const std::string& op, const std::function<void()>& call) {
    CHECK_ERROR_BEGINS((call(), synchronize(cuda0)), op + " expected targets in [0, 5), got 5 in row 1");
  };
  of_row_1("[cross_entropy]", [&] { kernels::cross_entropy(cuda0, x, target, {}, {}, none, loss, lse, none); });
  of_row_1("[cross_entropy_grad]", [&] { kernels::cross_entropy_grad(cuda0, loss, x, lse, target, {}, {}, grad); });
  CHECK(loss.to(cpu).to_vector<float>()[1] == 0);
  CHECK(grad.to(cpu).to_vector<float>()[7] == 0);
}
