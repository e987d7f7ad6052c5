// Batch norm of x (N, C, S): each channel over its images and positions. Two layouts have separate loops: planes (the S
// positions of a channel are adjacent) and columns (the C channels are adjacent: channels last, and plain (N, C)).
// To read x from memory only once, the mean and variance are computed for groups of elements that fit in cache. The
// results of the groups are then merged in f64.
#include "tensor/cpu/rows.h"
#include "tensor/kernels.h"

namespace lockstep {
namespace {

using namespace on_cpu;

/// Count, mean and sum of squared deviations of a group. add() merges two groups as in Chan, Golub & LeVeque 1979.
struct Moments {
  double count = 0, mean = 0, deviation = 0;
  void add(const Moments& other) {
    if (other.count == 0) return;
    const double sum = count + other.count, delta = other.mean - mean;
    mean += delta * other.count / sum;
    deviation += other.deviation + delta * delta * count * other.count / sum;
    count = sum;
  }
};

struct Geometry {
  explicit Geometry(const Tensor& x)
      : images(x.size(0)),
        channels(x.size(1)),
        plane(x.size(2)),
        image_stride(x.strides()[0]),
        channel_stride(x.strides()[1]),
        // A contiguous (N, C, 1) tensor has both layouts. It counts as columns, because that loop is faster.
        columns(channels > 0 && (channel_stride == 1 || channels == 1) && (plane == 1 || x.strides()[2] == channels)) {}
  int64_t images, channels, plane, image_stride, channel_stride;
  bool columns;
  /// Number of images in a group: as many as possible whose elements of one channel fit in the cache together.
  int64_t group() const { return std::max<int64_t>(1, 8192 / std::max<int64_t>(plane, 1)); }
  int64_t rows() const { return images * plane; }
  int64_t blocks() const { return (rows() + row_block - 1) / row_block; }
};

template <class T> Moments channel_moments(const T* x, const Geometry& at) {
  using A = Acc<T>;
  Moments all;
  for (int64_t first = 0; first < at.images; first += at.group()) {
    const int64_t last = std::min(at.images, first + at.group());
    const double count = double((last - first) * at.plane);
    Lanes<A> sum[4] = {}, rest[4] = {}, squares[4] = {};
    for (int64_t n = first; n < last; ++n) {
      const T* plane = x + n * at.image_stride;
      each_vector<A>(at.plane, [&](int64_t i, auto length, auto k) { sum[k] += load(plane + i, length); });
    }
    const A mean = A(double(sum_lanes<A>(sum)) / count);
    for (int64_t n = first; n < last; ++n) {
      const T* plane = x + n * at.image_stride;
      each_vector<A>(at.plane, [&](int64_t i, auto length, auto k) {
        const Lanes<A> d = load(plane + i, length, mean) - mean;
        rest[k] += d;
        squares[k] += d * d;
      });
    }
    const double shift = double(sum_lanes<A>(rest)) / count;
    all.add({count, double(mean) + shift, double(sum_lanes<A>(squares)) - shift * shift * count});
  }
  return all;
}

template <class T> std::vector<Moments> column_moments(const T* x, const Geometry& at) {
  using A = Acc<T>;
  const int64_t channels = at.channels, rows = at.rows(), blocks = at.blocks();
  std::vector<A> partial(size_t(blocks * 2 * channels), 0);  // (block, {mean, deviation}, C)
  parallel_for(blocks, std::max<int64_t>(1, row_grain(channels) / row_block), [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; ++b) {
      const int64_t begin = b * row_block, end = std::min(begin + row_block, rows);
      A* __restrict mean = partial.data() + b * 2 * channels;
      A* __restrict deviation = mean + channels;
      for (int64_t r = begin; r < end; ++r)
        for (int64_t c = 0; c < channels; ++c) mean[c] += A(x[r * channels + c]);
      for (int64_t c = 0; c < channels; ++c) mean[c] /= A(end - begin);
      for (int64_t r = begin; r < end; ++r)
        for (int64_t c = 0; c < channels; ++c) {
          const A d = A(x[r * channels + c]) - mean[c];
          deviation[c] += d * d;
        }
    }
  });
  std::vector<Moments> all(static_cast<size_t>(channels));
  for (int64_t b = 0; b < blocks; ++b) {
    const A* mean = partial.data() + b * 2 * channels;
    const double count = double(std::min(row_block, rows - b * row_block));
    for (int64_t c = 0; c < channels; ++c) all[size_t(c)].add({count, double(mean[c]), double(mean[channels + c])});
  }
  return all;
}

/// out = (x - mean) * rstd * weight + bias in every channel. If `training`, first computes mean, rstd and var from x.
template <class T>
void batch_norm_values(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, bool training,
                       Tensor& mean, Tensor& rstd, Tensor& var, Tensor& out) {
  using A = Acc<T>;
  const Geometry at(x);
  const int64_t channels = at.channels, plane = at.plane;
  const std::vector<A> w = widen<A>(weight, channels, 1), b = widen<A>(bias, channels, 0);
  const T* source = static_cast<const T*>(x.raw_data());
  T* result = static_cast<T*>(out.raw_data());
  A *means = mean.data<A>(), *rstds = rstd.data<A>(), *variances = training ? var.data<A>() : nullptr;
  const auto keep = [&](int64_t c, const Moments& moments) {
    const double variance = moments.deviation / moments.count;
    means[c] = A(moments.mean);
    variances[c] = A(variance);
    rstds[c] = A(1 / std::sqrt(variance + eps));
  };
  if (at.columns) {
    if (training) {
      const std::vector<Moments> moments = column_moments(source, at);
      for (int64_t c = 0; c < channels; ++c) keep(c, moments[size_t(c)]);
    }
    std::vector<A> scale(static_cast<size_t>(channels));
    for (int64_t c = 0; c < channels; ++c) scale[size_t(c)] = w[size_t(c)] * rstds[c];
    parallel_for(at.rows(), row_grain(channels), [&](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r) {
        const T* row = source + r * channels;
        T* to = result + r * channels;
        each_vector<A>(channels, [&](int64_t i, auto count, auto) {
          store(to + i,
                (load(row + i, count) - load(means + i, count)) * load(&scale[size_t(i)], count) +
                    load(&b[size_t(i)], count),
                count);
        });
      }
    });
    return;
  }
  parallel_for(channels, row_grain(at.rows()), [&](int64_t first, int64_t last) {
    for (int64_t c = first; c < last; ++c) {
      if (training) keep(c, channel_moments(source + c * at.channel_stride, at));
      const A m = means[c], scale = w[size_t(c)] * rstds[c], offset = b[size_t(c)];
      for (int64_t n = 0; n < at.images; ++n) {
        const T* from = source + n * at.image_stride + c * at.channel_stride;
        T* to = result + n * at.image_stride + c * at.channel_stride;
        each_vector<A>(plane, [&](int64_t i, auto count, auto) {
          store(to + i, (load(from + i, count) - m) * scale + offset, count);
        });
      }
    }
  });
}

/// With g the gradient of the output and y = (x - mean) * rstd: grad_weight = sum(g * y), grad_bias = sum(g), and
/// grad_x = weight * rstd * (g - (grad_bias + y * grad_weight) / count). If not training, grad_x = weight * rstd * g.
template <class T>
void batch_norm_grads(const Tensor& grad, const Tensor& x, const Tensor& weight, const Tensor& mean, const Tensor& rstd,
                      bool training, Tensor& grad_x, Tensor& grad_weight, Tensor& grad_bias) {
  using A = Acc<T>;
  const Geometry at(x);
  const int64_t channels = at.channels, plane = at.plane, rows = at.rows();
  const std::vector<A> w = widen<A>(weight, channels, 1);
  const T *g = static_cast<const T*>(grad.raw_data()), *source = static_cast<const T*>(x.raw_data());
  T* result = static_cast<T*>(grad_x.raw_data());
  const A *means = mean.data<A>(), *rstds = rstd.data<A>();
  std::vector<A> sums(size_t(2 * channels));  // dw, db
  A *dw = sums.data(), *db = dw + channels;
  const A share = training ? A(1) / A(rows) : A(0);
  if (at.columns) {
    const int64_t blocks = at.blocks();
    std::vector<A> partial(size_t(blocks * 2 * channels), 0);
    parallel_for(blocks, std::max<int64_t>(1, row_grain(channels) / row_block), [&](int64_t first, int64_t last) {
      for (int64_t r = first * row_block; r < std::min(last * row_block, rows); ++r) {
        A* __restrict pw = partial.data() + r / row_block * 2 * channels;
        A* __restrict pb = pw + channels;
        for (int64_t c = 0; c < channels; ++c) {
          const A gradient = A(g[r * channels + c]);
          pw[c] += gradient * ((A(source[r * channels + c]) - means[c]) * rstds[c]);
          pb[c] += gradient;
        }
      }
    });
    sum_blocks(partial, blocks, 2 * channels, sums.data());
    parallel_for(rows, row_grain(channels), [&](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r) {
        const T *from = g + r * channels, *row = source + r * channels;
        T* to = result + r * channels;
        each_vector<A>(channels, [&](int64_t i, auto count, auto) {
          const Lanes<A> s = load(rstds + i, count), y = (load(row + i, count) - load(means + i, count)) * s;
          const Lanes<A> mean_part = (load(db + i, count) + y * load(dw + i, count)) * share;
          store(to + i, (load(from + i, count) - mean_part) * (s * load(&w[size_t(i)], count)), count);
        });
      }
    });
  } else {
    parallel_for(channels, row_grain(rows), [&](int64_t first, int64_t last) {
      for (int64_t c = first; c < last; ++c) {
        const A m = means[c], s = rstds[c], scale = w[size_t(c)] * s;
        double total_gy = 0, total_g = 0;
        for (int64_t start = 0; start < at.images; start += at.group()) {
          Lanes<A> gy[4] = {}, gs[4] = {};
          for (int64_t n = start; n < std::min(at.images, start + at.group()); ++n) {
            const int64_t place = n * at.image_stride + c * at.channel_stride;
            each_vector<A>(plane, [&](int64_t i, auto count, auto k) {
              const Lanes<A> gradient = load(g + place + i, count);
              gs[k] += gradient;
              gy[k] += gradient * ((load(source + place + i, count) - m) * s);
            });
          }
          total_gy += double(sum_lanes<A>(gy));
          total_g += double(sum_lanes<A>(gs));
        }
        dw[c] = A(total_gy);
        db[c] = A(total_g);
        const A mean_g = A(total_g) * share, mean_gy = A(total_gy) * share;
        for (int64_t n = 0; n < at.images; ++n) {
          const int64_t place = n * at.image_stride + c * at.channel_stride;
          each_vector<A>(plane, [&](int64_t i, auto count, auto) {
            const Lanes<A> y = (load(source + place + i, count) - m) * s;
            store(result + place + i, (load(g + place + i, count) - mean_g - y * mean_gy) * scale, count);
          });
        }
      }
    });
  }
  narrow(dw, channels, grad_weight);
  narrow(db, channels, grad_bias);
}

}  // namespace

void on_cpu::batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, bool training,
                        Tensor& mean, Tensor& rstd, Tensor& var, Tensor& out) {
  for_floats("batch_norm", x,
             [&]<class T> { batch_norm_values<T>(x, weight, bias, eps, training, mean, rstd, var, out); });
}

void on_cpu::batch_norm_grad(const Tensor& grad, const Tensor& x, const Tensor& weight, const Tensor& mean,
                             const Tensor& rstd, bool training, Tensor& grad_x, Tensor& grad_weight,
                             Tensor& grad_bias) {
  for_floats("batch_norm_grad", x, [&]<class T> {
    batch_norm_grads<T>(grad, x, weight, mean, rstd, training, grad_x, grad_weight, grad_bias);
  });
}

}  // namespace lockstep
