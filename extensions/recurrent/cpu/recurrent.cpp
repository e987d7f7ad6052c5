// Recurrent layers. The hidden weights W are packed once and multiplied by the states h of every step t. A step is one
// parallel loop over tiles of hidden units (two loops with a projection). For each tile it computes a product, and uses
// the product while it is still in cache:
//
//   forward    the product h[t-1] W^T for each gate, then the gates and the cell    -> h[t], c[t]
//   backward   the product grad gates[t+1] W, then the gradient of the cell         -> grad gates[t]
#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "extensions/recurrent/kernels.h"
#include "tensor/cpu/gemm_tile.h"
#include "tensor/cpu/parallel.h"
#include "tensor/math.h"
#include "tensor/ops.h"
#include "tensor/storage.h"

namespace lockstep::on_cpu {
namespace {

template <class T> inline constexpr int64_t high = tile_rows<T>;
template <class T> inline constexpr int64_t wide = tile_columns<T>;
template <class T> using Tile2d = std::array<T, size_t(tile_rows<T>* tile_columns<T>)>;

/// A k x n matrix, packed in strips (slivers) of `wide` columns. A strip is stored in blocks of at most `depth` rows.
template <class T> class Slivers {
 public:
  static constexpr int64_t depth = 2048 / int64_t(sizeof(T));

  /// Packs the matrix whose element (p, j) is data[p * row + j * col].
  Slivers(const T* data, int64_t k, int64_t n, int64_t row, int64_t col) : k_(k), n_(n) {
    storage_ = Storage::allocate((count() * wide<T> * k + 64) * int64_t(sizeof(T)), cpu);
    T* const out = reinterpret_cast<T*>(storage_->data());
    parallel_for(count(), std::max<int64_t>(1, (1 << 15) / (wide<T> * k)), [&](int64_t first, int64_t last) {
      for (int64_t s = first; s < last; ++s)
        for (int64_t p = 0; p < k; p += depth) {
          // Packs into a separate buffer, because pack() may write up to a vector past the end.
          T block[depth * wide<T> + 64];
          const int64_t here = std::min(depth, k - p);
          pack<int(wide<T>)>(data + p * row + s * wide<T> * col, col, row, std::min(wide<T>, n - s * wide<T>), here,
                             block);
          std::copy_n(block, here * wide<T>, out + (s * k + p) * wide<T>);
        }
    });
  }
  int64_t count() const { return (n_ + wide<T> - 1) / wide<T>; }

  /// to = x times strip s (`wide` columns) of the matrix, for at most `high` rows of x.
  void multiply(int64_t rows, const T* x, int64_t ldx, int64_t s, Tile2d<T>& to) const {
    const T* const sliver = reinterpret_cast<const T*>(storage_->data()) + s * k_ * wide<T>;
    for (int64_t p = 0; p < k_; p += depth) {
      const int64_t here = std::min(depth, k_ - p);
      const T beta = p == 0 ? T(0) : T(1);
      if constexpr (reads_rows<T>) {
        tiles<T, false>[size_t(rows - 1)](here, x + p, ldx, sliver + p * wide<T>, T(1), beta, to.data(), wide<T>);
      } else {
        T packed[depth * high<T> + 64];
        pack<int(high<T>)>(x + p, ldx, int64_t(1), rows, here, packed);
        tiles<T, true>[size_t(rows - 1)](here, packed, ldx, sliver + p * wide<T>, T(1), beta, to.data(), wide<T>);
      }
    }
  }

 private:
  int64_t k_, n_;
  Ref<Storage> storage_;
};

/// Divides a product of `rows` rows and n columns into tiles: strips of `wide` columns, cut every `high` rows. Calls
/// fn(first row of the tile, its number of rows, number of its strip) for each. The strips are divided among threads.
template <class T, class Fn> void each_tile(int64_t rows, int64_t n, int64_t work, const Fn& fn) {
  const int64_t slivers = (n + wide<T> - 1) / wide<T>;
  parallel_for(slivers, std::max<int64_t>(1, (1 << 18) / std::max<int64_t>(1, rows * wide<T> * work)),
               [&](int64_t first, int64_t last) {
                 for (int64_t s = first; s < last; ++s)
                   for (int64_t r = 0; r < rows; r += high<T>) fn(r, std::min(high<T>, rows - r), s);
               });
}

/// Cuts rows [r, r + rows) at row `split`. Calls fn(first row, number of rows, true) for the part before `split` and
/// fn(first row, number of rows, false) for the rest. Skips a part without rows.
template <class Fn> void in_two(int64_t r, int64_t rows, int64_t split, const Fn& fn) {
  const int64_t left = std::clamp<int64_t>(split - r, 0, rows);
  if (left > 0) fn(r, left, true);
  if (left < rows) fn(r + left, rows - left, false);
}

template <class T> struct Pass {
  const RecurrentArgs& args;
  const Tensor &w, &w_project;
  const int64_t gates = gates_of(args.cell), all = w.size(0), hidden = all / gates, fed = w.size(1);
  const std::vector<StepRows> steps = steps_of(args);

  /// Computes the cell for n hidden units of one sequence. `g` holds the products of the gates with the input, those of
  /// gate k from g + k * hidden on, and receives the gates. sums[k] holds gate k's products with h_old.
  void cell(int64_t n, T* g, const T* const* sums, const T* h_old, const T* c_old, T* fresh, T* c, T* h) const {
    const int64_t H = hidden;
    switch (args.cell) {
      case RecurrentCell::tanh:
        for (int64_t l = 0; l < n; ++l) g[l] = h[l] = math::tanh(g[l] + sums[0][l]);
        return;
      case RecurrentCell::relu:
        for (int64_t l = 0; l < n; ++l) {
          const T x = g[l] + sums[0][l];
          g[l] = h[l] = x < T(0) ? T(0) : x;
        }
        return;
      case RecurrentCell::lstm:
#pragma GCC ivdep
        for (int64_t l = 0; l < n; ++l) {
          const T i = math::sigmoid(g[l] + sums[0][l]), f = math::sigmoid(g[H + l] + sums[1][l]),
                  a = math::tanh(g[2 * H + l] + sums[2][l]), o = math::sigmoid(g[3 * H + l] + sums[3][l]),
                  next = f * c_old[l] + i * a;
          g[l] = i, g[H + l] = f, g[2 * H + l] = a, g[3 * H + l] = o;
          c[l] = next;
          h[l] = o * math::tanh(next);
        }
        return;
      case RecurrentCell::gru:
#pragma GCC ivdep
        for (int64_t l = 0; l < n; ++l) {
          const T r = math::sigmoid(g[l] + sums[0][l]), z = math::sigmoid(g[H + l] + sums[1][l]),
                  part = fresh[l] + sums[2][l], a = math::tanh(g[2 * H + l] + r * part);
          g[l] = r, g[H + l] = z, g[2 * H + l] = a;
          fresh[l] = part;
          h[l] = a + z * (h_old[l] - a);
        }
        return;
    }
  }

  /// The gradient of cell(). On entry, d and dc hold the gradients of h and c. They are replaced by the gradients of
  /// the previous h and c, without the part that flows through products with h_old. `to` receives the gradients of the
  /// gates' products with the input, `to_hidden` those of their products with h_old.
  void cell_grad(int64_t n, const T* g, const T* h_old, const T* c_old, const T* fresh, const T* c, T* d, T* dc, T* to,
                 T* to_hidden) const {
    const int64_t H = hidden;
    switch (args.cell) {
      case RecurrentCell::tanh:
        for (int64_t l = 0; l < n; ++l) to[l] = d[l] * (T(1) - g[l] * g[l]), d[l] = 0;
        return;
      case RecurrentCell::relu:
        for (int64_t l = 0; l < n; ++l) to[l] = g[l] > T(0) ? d[l] : T(0), d[l] = 0;
        return;
      case RecurrentCell::lstm:
#pragma GCC ivdep
        for (int64_t l = 0; l < n; ++l) {
          const T i = g[l], f = g[H + l], a = g[2 * H + l], o = g[3 * H + l], t = math::tanh(c[l]),
                  e = dc[l] + d[l] * o * (T(1) - t * t);
          to[l] = e * a * i * (T(1) - i);
          to[H + l] = e * c_old[l] * f * (T(1) - f);
          to[2 * H + l] = e * i * (T(1) - a * a);
          to[3 * H + l] = d[l] * t * o * (T(1) - o);
          dc[l] = e * f;
          d[l] = 0;
        }
        return;
      case RecurrentCell::gru:
#pragma GCC ivdep
        for (int64_t l = 0; l < n; ++l) {
          const T r = g[l], z = g[H + l], a = g[2 * H + l], da = d[l] * (T(1) - z) * (T(1) - a * a),
                  dr = da * fresh[l] * r * (T(1) - r), dz = d[l] * (h_old[l] - a) * z * (T(1) - z);
          to[l] = to_hidden[l] = dr;
          to[H + l] = to_hidden[H + l] = dz;
          to[2 * H + l] = da;
          to_hidden[2 * H + l] = da * r;
          d[l] *= z;
        }
        return;
    }
  }

  void forward(T* g, T* fresh, T* cells, const Tensor& h, const Tensor& c, T* out) const {
    const bool lstm = args.cell == RecurrentCell::lstm, projects = w_project.defined();
    // Each gate's columns have strips of their own, so that the tiles of all gates cover the same hidden units.
    std::vector<Slivers<T>> weights;
    for (int64_t k = 0; k < gates; ++k)
      weights.emplace_back(w.data<T>() + k * hidden * fed, fed, hidden, int64_t(1), fed);
    std::optional<Slivers<T>> down;
    if (projects) down.emplace(w_project.data<T>(), hidden, fed, int64_t(1), hidden);
    const int64_t batch = h.size(0);
    const Tensor raw = projects ? empty({batch, hidden}, {.dtype = h.dtype(), .device = cpu}) : Tensor();
    T* const first_h = h.data<T>();
    T* const first_c = lstm ? c.data<T>() : nullptr;
    for (const StepRows& s : steps) {
      each_tile<T>(s.rows, hidden, gates * fed, [&](int64_t r0, int64_t count, int64_t sliver) {
        const int64_t j = sliver * wide<T>, n = std::min(wide<T>, hidden - j);
        in_two(r0, count, s.shared, [&](int64_t r, int64_t rows, bool shared) {
          const T* const h_old = shared ? out + (s.before + r) * fed : first_h + r * fed;
          const T* const c_old =
              !lstm ? nullptr : (shared ? cells + (s.before + r) * hidden : first_c + r * hidden) + j;
          alignas(64) Tile2d<T> sums[4];
          for (int64_t k = 0; k < gates; ++k) weights[size_t(k)].multiply(rows, h_old, fed, sliver, sums[k]);
          for (int64_t i = 0; i < rows; ++i) {
            const int64_t row = s.at + r + i;
            const T* of[4];
            for (int64_t k = 0; k < gates; ++k) of[k] = sums[k].data() + i * wide<T>;
            T* const h_new = projects ? raw.template data<T>() + (r + i) * hidden : out + row * hidden;
            cell(n, g + row * all + j, of, projects ? nullptr : h_old + i * fed + j,
                 lstm ? c_old + i * hidden : nullptr, fresh ? fresh + row * hidden + j : nullptr,
                 lstm ? cells + row * hidden + j : nullptr, h_new + j);
          }
        });
      });
      if (projects)
        product(*down, s.rows, raw.template data<T>(), hidden, fed, [&](int64_t r, int64_t j, int64_t n, const T* sum) {
          std::copy_n(sum, n, out + (s.at + r) * fed + j);
        });
    }
    // The last states of a sequence are those of the last step that contains it.
    for (size_t i = 0; i < steps.size(); ++i) {
      const StepRows& s = steps[i];
      const int64_t on = i + 1 < steps.size() ? steps[i + 1].shared : 0;  // sequences that continue
      std::copy_n(out + (s.at + on) * fed, (s.rows - on) * fed, first_h + on * fed);
      if (lstm) std::copy_n(cells + (s.at + on) * hidden, (s.rows - on) * hidden, first_c + on * hidden);
    }
  }

  /// Multiplies x by b. Calls fn(row, column, count, sum) for pieces of the product: `count` numbers of one row.
  template <class Fn>
  void product(const Slivers<T>& b, int64_t rows, const T* x, int64_t ldx, int64_t columns, const Fn& fn) const {
    each_tile<T>(rows, columns, ldx, [&](int64_t r, int64_t count, int64_t sliver) {
      const int64_t j = sliver * wide<T>, n = std::min(wide<T>, columns - j);
      alignas(64) Tile2d<T> sum;
      b.multiply(count, x + r * ldx, ldx, sliver, sum);
      for (int64_t i = 0; i < count; ++i) fn(r + i, j, n, sum.data() + i * wide<T>);
    });
  }

  void backward(const T* g, const T* fresh, const T* cells, const T* out, const T* first_h, const T* first_c, T* grad,
                T* dh, T* dc, T* to, T* to_hidden) const {
    const bool lstm = args.cell == RecurrentCell::lstm, projects = w_project.defined();
    const Slivers<T> weights(w.data<T>(), all, fed, fed, int64_t(1));
    std::optional<Slivers<T>> up;
    if (projects) up.emplace(w_project.data<T>(), fed, hidden, hidden, int64_t(1));
    const StepRows* later = nullptr;  // the next time step: its gate gradients times the weights are added to dh
    for (int64_t i = int64_t(steps.size()) - 1; i >= -1; --i) {
      const StepRows* const s = i >= 0 ? &steps[size_t(i)] : nullptr;
      const auto cells_of = [&](int64_t r, int64_t j, int64_t n, T* d) {
        const int64_t row = s->at + r;
        const bool shared = r < s->shared;
        cell_grad(n, g + row * all + j,
                  projects ? nullptr : (shared ? out + (s->before + r) * fed : first_h + r * fed) + j,
                  lstm ? (shared ? cells + (s->before + r) * hidden : first_c + r * hidden) + j : nullptr,
                  fresh ? fresh + row * hidden + j : nullptr, lstm ? cells + row * hidden + j : nullptr, d,
                  lstm ? dc + r * hidden + j : nullptr, to + row * all + j, to_hidden + row * all + j);
      };
      // For a few columns of dh, adds the gradient from the later step, then that of this step's own output.
      const int64_t rows = std::max(later ? later->rows : 0, s ? s->rows : 0), slivers = weights.count();
      const int64_t work = rows * wide<T> * (later ? all : 1);
      parallel_for(slivers, std::max<int64_t>(1, (1 << 18) / work), [&](int64_t first, int64_t last) {
        for (int64_t sliver = first; sliver < last; ++sliver) {
          const int64_t j = sliver * wide<T>, n = std::min(wide<T>, fed - j);
          for (int64_t r = 0; later && r < later->rows; r += high<T>) {
            const int64_t tall = std::min(high<T>, later->rows - r);
            alignas(64) Tile2d<T> sum;
            weights.multiply(tall, to_hidden + (later->at + r) * all, all, sliver, sum);
            for (int64_t y = 0; y < tall; ++y)
              for (int64_t l = 0; l < n; ++l) dh[(r + y) * fed + j + l] += sum[size_t(y * wide<T> + l)];
          }
          for (int64_t r = 0; s && r < s->rows; ++r) {
            T* const own = dh + r * fed + j;
            T* const given = grad + (s->at + r) * fed + j;
            for (int64_t l = 0; l < n; ++l) own[l] = given[l] = own[l] + given[l];
            if (!projects) cells_of(r, j, n, own);
            else std::fill_n(own, n, T(0));
          }
        }
      });
      if (projects && s)
        product(*up, s->rows, grad + s->at * fed, fed, hidden,
                [&](int64_t r, int64_t j, int64_t n, T* sum) { cells_of(r, j, n, sum); });
      later = s;
    }
  }
};

template <class T> T* data_or_null(const Tensor& x) { return x.defined() ? x.data<T>() : nullptr; }

template <class Fn> void with_pass(const RecurrentArgs& args, const Tensor& w, const Tensor& w_project, const Fn& fn) {
  dispatch<float, double>(w.dtype(), "recurrent", [&]<class T> { fn(Pass<T>{args, w, w_project}); });
}

}  // namespace

void recurrent(const RecurrentArgs& args, const Tensor& w, const Tensor& w_project, Tensor& gates, Tensor& fresh,
               Tensor& cells, Tensor& h, Tensor& c, Tensor& out) {
  with_pass(args, w, w_project, [&]<class T>(const Pass<T>& pass) {
    pass.forward(gates.data<T>(), data_or_null<T>(fresh), data_or_null<T>(cells), h, c, out.data<T>());
  });
}

void recurrent_grad(const RecurrentArgs& args, const Tensor& w, const Tensor& w_project, const Tensor& gates,
                    const Tensor& fresh, const Tensor& cells, const Tensor& out, const Tensor& h, const Tensor& c,
                    Tensor& grad, Tensor& grad_h, Tensor& grad_c, Tensor& grad_gates, Tensor& grad_hidden) {
  with_pass(args, w, w_project, [&]<class T>(const Pass<T>& pass) {
    pass.backward(gates.data<T>(), data_or_null<T>(fresh), data_or_null<T>(cells), out.data<T>(), h.data<T>(),
                  data_or_null<T>(c), grad.data<T>(), grad_h.data<T>(), data_or_null<T>(grad_c), grad_gates.data<T>(),
                  grad_hidden.data<T>());
  });
}

}  // namespace lockstep::on_cpu
