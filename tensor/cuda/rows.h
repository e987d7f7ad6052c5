#pragma once
// The two engines of kernels that work along rows (norms, softmax, loss). Threads share a row by vectors of V elements:
// thread t of `threads` owns vectors t, t + threads, ... Only this thread reads and keeps them and writes the results
// for them, so a row needs no barrier except for its sums. The order of every sum depends only on the row's length.
//
//   WarpRow   up to 1,024 columns: a warp keeps a row in registers. In 16 bits, or if only one tensor is read, it reads
//             its next row before it writes this one
//   BlockRow  longer rows: a block of up to 512 threads keeps the row in shared memory. It takes half of this memory,
//             so that two blocks share a multiprocessor. The row is copied there asynchronously, in two halves. If two
//             rows fit, the next one is copied while this one is worked on. The rest of a row that does not fit is read
//             with two loads in flight for each thread, and later read again, mostly from L2: 128,256 logits in bf16
//             take 251 KiB, a multiprocessor has 227.
//
// A kernel walks along its rows like this; `In` has the vectors read, `Kept` those that later walks need:
//
//   Row row(size, {x});
//   for (row.begin(); row.more(); row.advance()) {
//     row.read([&](int64_t i, int k, In in, Kept kept) { ... });   // i: first column, k: number of the thread's vector
//     row.each([&](int64_t i, int k, Kept kept) { ... });
//   }
#include "tensor/cuda/async_copy.h"
#include "tensor/cuda/ragged.h"

namespace lockstep::on_cuda {

/// The most columns that a warp keeps in registers.
// It depends on the number of kept rows too, but not on the inputs, so that a fused kernel and the separate kernel keep
// their rows in the same way.
template <class T, int kept>
inline constexpr int warp_columns = sizeof(T) == 8               ? 256
                                    : sizeof(T) == 4 && kept > 1 ? 512
                                                                 : 1024;

/// The rows of a launch: `columns` elements each, `stride` elements apart.
struct RowSize {
  int64_t rows, columns, stride;
  int room = 0;   ///< BlockRow: vectors of each row in shared memory
  int ahead = 0;  ///< BlockRow: vectors from a row's place to the next row's; 0: there is no room for the next row
};

/// The elements of a vector in the type that they are computed in.
template <class T, int V, class A> __device__ inline void widen(const Vector<T, V>& x, A* values) {
#pragma unroll
  for (int j = 0; j < V; ++j) values[j] = A(Compute<T>(x.v[j]));
}

/// Makes the compiler believe that x has changed, so that it computes again from x what it would keep in registers.
template <class T, int V> __device__ inline void forget(Vector<T, V>& x) {
#if defined(__CUDA_ARCH__)
  uint32_t words[sizeof(x) / 4];
  memcpy(words, &x, sizeof(x));
#pragma unroll
  for (uint32_t& word : words) asm volatile("" : "+r"(word));
  memcpy(&x, words, sizeof(x));
#else
  (void)x;
#endif
}

/// The number of inputs that read() passes to fn. It does not pass a third input: the engines keep it for each().
constexpr int passed_on(int inputs) { return inputs < 2 ? inputs : 2; }

/// A row that a warp processes. read() reads it from `inputs` tensors and keeps `kept` rows in registers for each().
template <class T_, int V_, int inputs, int kept_, bool ragged_ = false> class WarpRow {
 public:
  using T = T_;
  using A = Compute<T>;
  static constexpr int V = V_, kept = kept_, steps = warp_columns<T, kept_> / (warp * V);
  static constexpr bool in_registers = true, ragged = ragged_;
  static constexpr int threads = 4 * warp;  ///< threads of a block: a warp for each of four rows
  using In = const Vector<T, V> (&)[passed_on(inputs)];
  using Kept = Vector<T, V> (&)[kept];

  __device__ WarpRow(const RowSize& size, const T* const (&from)[inputs], T beyond = T(0.f))
      : size_(size), beyond_(beyond), r_(int64_t(blockIdx.x) * 4 + threadIdx.y) {
    for (int s = 0; s < inputs; ++s) from_[s] = from[s];
  }
  __device__ void begin() {
    if (more()) load<0, ahead>(r_, coming_);
  }
  __device__ bool more() const { return r_ < size_.rows; }
  __device__ void advance() { r_ += int64_t(gridDim.x) * 4; }
  /// The index of the row, and where it starts in a tensor of the same shape and stride.
  __device__ int64_t number() const { return r_; }
  __device__ int64_t start() const { return r_ * size_.stride; }
  /// The index of this thread within the row, and the index of the thread that owns column i.
  __device__ int thread() const { return int(threadIdx.x); }
  __device__ int owner(int64_t i) const { return int(i / V % warp); }

  /// Reads the row and begins to read this warp's next one.
  template <class Fn> __device__ void read(Fn fn) {
    constexpr int passed = passed_on(inputs);
    Vector<T, V> in[passed][steps];
#pragma unroll
    for (int s = 0; s < ahead; ++s) {
#pragma unroll
      for (int k = 0; k < steps; ++k) in[s][k] = coming_[s][k];
    }
    load<ahead, passed>(r_, in);
    const int64_t next = r_ + int64_t(gridDim.x) * 4;
    if (next < size_.rows) load<0, ahead>(next, coming_);
    walk([&](int i, int k) {
      Vector<T, V> mine[passed], keep[kept];
#pragma unroll
      for (int s = 0; s < passed; ++s) {
        forget(in[s][k]);
        mine[s] = in[s][k];
      }
      fn(int64_t(i), k, mine, keep);
#pragma unroll
      for (int s = 0; s < kept && s < passed; ++s) held_[s][k] = keep[s];
    });
    load<passed, inputs>(r_, held_);
  }
  /// Walks along the row again.
  template <class Fn> __device__ void each(Fn fn) {
    walk([&](int i, int k) {
      Vector<T, V> keep[kept];
#pragma unroll
      for (int s = 0; s < kept; ++s) {
        forget(held_[s][k]);
        keep[s] = held_[s][k];
      }
      fn(int64_t(i), k, keep);
    });
  }

  /// Sums and the maximum over the row's threads; every thread gets the results.
  __device__ A sum(A x) { return warp_sum(x); }
  __device__ void sum(A& x, A& y) { x = warp_sum(x), y = warp_sum(y); }
  __device__ A max(A x) { return warp_max(x); }

 private:
  // Inputs that are read one row ahead: as many as registers allow beside the row itself.
  static constexpr int ahead = inputs == 1 ? 1 : sizeof(T) == 2 ? 2 : 0;

  template <class Fn> __device__ void walk(Fn fn) const {
#pragma unroll
    for (int k = 0; k < steps; ++k) {
      const int i = (k * warp + int(threadIdx.x)) * V;
      if (i < int(size_.columns)) fn(i, k);
    }
  }
  template <int first, int end, class To> __device__ void load(int64_t r, To& to) const {
    walk([&](int i, int k) {
#pragma unroll
      for (int s = first; s < end; ++s)
        to[s][k] = load_part<V, ragged>(from_[s] + r * size_.stride, i, size_.columns, beyond_);
    });
  }

  RowSize size_;
  T beyond_;
  int64_t r_;
  const T* from_[inputs];
  Vector<T, V> coming_[ahead > 0 ? ahead : 1][steps], held_[kept][steps];
};

/// A row in the shared memory of a block, from `shared` on.
template <class T_, int V_, int inputs, int kept_, bool ragged_ = false> class BlockRow {
 public:
  using T = T_;
  using A = Compute<T>;
  static constexpr int V = V_, kept = kept_;
  static constexpr bool in_registers = false, ragged = ragged_;
  static constexpr bool copies = V * sizeof(T) == 16;   ///< true: rows are copied asynchronously
  static constexpr int slots = copies ? inputs : kept;  ///< rows of T in shared memory
  static constexpr int threads = 512;                   ///< threads of the largest block
  using In = const Vector<T, V> (&)[passed_on(inputs)];
  using Kept = Vector<T, V> (&)[kept];

  /// If shared memory has no room for all of kept row s, the rest is read again from again[s].
  __device__ BlockRow(const RowSize& size, const T* const (&from)[inputs], void* shared, const T* const (&again)[kept],
                      T beyond = T(0.f))
      : size_(size), beyond_(beyond), r_(blockIdx.x), held_(static_cast<Vector<T, V>*>(shared)) {
    for (int s = 0; s < inputs; ++s) from_[s] = from[s];
    for (int s = 0; s < kept; ++s) again_[s] = again[s];
  }
  __device__ void begin() { bring(r_, 0); }
  __device__ bool more() const { return r_ < size_.rows; }
  __device__ void advance() {
    r_ += gridDim.x;
    at_ = size_.ahead - at_;
    if (size_.ahead == 0) bring(r_, 0);
  }
  __device__ int64_t number() const { return r_; }
  __device__ int64_t start() const { return r_ * size_.stride; }
  __device__ int thread() const { return int(threadIdx.x); }
  __device__ int owner(int64_t i) const { return int(i / V % blockDim.x); }

  template <class Fn> __device__ void read(Fn fn) {
    const int64_t full = full_vectors(), step = blockDim.x;
    const auto load = [&](int64_t vector, Vector<T, V>(&to)[inputs]) {
      if (vector >= full) return;
#pragma unroll
      for (int s = 0; s < inputs; ++s) to[s] = *reinterpret_cast<const Vector<T, V>*>(from_[s] + start() + vector * V);
    };
    const auto use = [&](int64_t vector, int k, const Vector<T, V>(&now)[inputs]) {
      Vector<T, V> keep[kept], passed[passed_on(inputs)];
#pragma unroll
      for (int s = 0; s < inputs; ++s) {
        if (s < passed_on(inputs)) passed[s] = now[s];
        else keep[s] = now[s];
      }
      fn(vector * V, k, passed, keep);
      if (vector >= size_.room) return;
#pragma unroll
      for (int s = 0; s < kept; ++s) *place(s, vector, at_) = keep[s];
    };
    int64_t next = threadIdx.x;
    int k = 0;
    if constexpr (copies) {
      if (size_.ahead > 0) bring(r_ + gridDim.x, size_.ahead - at_);
#pragma unroll 1
      for (int part = 0; part < parts; ++part) {
        wait_for(part);
#pragma unroll 1
        for (const int end = end_of(part); next < end; next += step, ++k) {
          Vector<T, V> now[inputs];
#pragma unroll
          for (int s = 0; s < inputs; ++s) now[s] = *place(s, next, at_);
          use(next, k, now);
        }
      }
    }
    Vector<T, V> in[flight][inputs];
#pragma unroll
    for (int f = 0; f < flight; ++f) load(next + f * step, in[f]);
#pragma unroll 1
    for (int64_t first = next; first < full; first += flight * step, k += flight) {
#pragma unroll
      for (int f = 0; f < flight; ++f) {
        const int64_t vector = first + f * step;
        if (vector >= full) break;
        Vector<T, V> now[inputs];
#pragma unroll
        for (int s = 0; s < inputs; ++s) now[s] = in[f][s];
        load(vector + flight * step, in[f]);
        use(vector, k + f, now);
      }
    }
    if constexpr (ragged) {  // the row ends within this vector; handling it in the loop would cost registers
      if (size_.columns == full * V || threadIdx.x != full % step) return;
      Vector<T, V> now[inputs];
#pragma unroll
      for (int s = 0; s < inputs; ++s)
        now[s] = load_part<V, ragged>(from_[s] + start(), full * V, size_.columns, beyond_);
      use(full, int(full / step), now);
    }
  }
  template <class Fn> __device__ void each(Fn fn) {
    const int64_t vectors = (size_.columns + V - 1) / V;
    int k = 0;
#pragma unroll 1
    for (int64_t vector = threadIdx.x; vector < vectors; vector += blockDim.x, ++k) {
      Vector<T, V> keep[kept];
#pragma unroll
      for (int s = 0; s < kept; ++s) {
        if (vector < size_.room) keep[s] = *place(s, vector, at_);
        else keep[s] = load_part<V, ragged>(again_[s] + start(), vector * V, size_.columns, beyond_);
      }
      fn(vector * V, k, keep);
    }
  }

  __device__ A sum(A x) {
    A none = 0;
    sum(x, none);
    return x;
  }
  __device__ void sum(A& x, A& y) {
    join(warp_sum(x), warp_sum(y), x, y, [](A a, A b) { return a + b; });
  }
  __device__ A max(A x) {
    A none = x;
    join(warp_max(x), none, x, none, [](A a, A b) { return larger_of(a, b); });
    return x;
  }

 private:
  static constexpr int flight = 2, parts = 2;  // flight: loads in flight; parts: each has its own group of copies

  __device__ int64_t full_vectors() const { return ragged ? size_.columns / V : (size_.columns + V - 1) / V; }
  /// The address of vector i in slot s (see `slots`) of the row that begins at held_[at].
  __device__ Vector<T, V>* place(int s, int64_t i, int at) const { return held_ + at + s * size_.room + int(i); }
  /// One past the index of the last vector in a part of the row.
  __device__ int end_of(int part) const {
    return int(full_vectors() < size_.room ? full_vectors() : size_.room) * (part + 1) / parts;
  }
  /// Starts copying row r, as far as it fits. A thread copies only its own vectors, which no other thread reads.
  __device__ void bring(int64_t r, int at) const {
    if constexpr (copies) {
      int vector = threadIdx.x;
#pragma unroll 1
      for (int part = 0; part < parts; ++part) {
        const int end = r < size_.rows ? end_of(part) : 0;
#pragma unroll 1
        for (; vector < end; vector += blockDim.x) {
#pragma unroll
          for (int s = 0; s < inputs; ++s)
            copy_async<16>(place(s, vector, at), from_[s] + r * size_.stride + int64_t(vector) * V);
        }
        end_group_of_copies();
      }
    }
  }
  /// Waits until a part of this row has been copied. Later groups of copies, such as the next row's, may still run.
  __device__ void wait_for(int part) const {
    if (size_.ahead > 0) part == 0 ? wait_for_groups<3>() : wait_for_groups<2>();
    else part == 0 ? wait_for_groups<1>() : wait_for_groups<0>();
  }

  /// Joins the warps' values in order. Consecutive calls use different memory, so one barrier is enough.
  template <class Join> __device__ void join(A of_x, A of_y, A& x, A& y, Join join) {
    LOCKSTEP_SHARED(A, of_warps, [2][2][threads / warp]);
    A(&to)[2][threads / warp] = of_warps[stage_ ^= 1];
    if (threadIdx.x % warp == 0) to[0][threadIdx.x / warp] = of_x, to[1][threadIdx.x / warp] = of_y;
    __syncthreads();
    x = to[0][0], y = to[1][0];
    for (int w = 1; w < int(blockDim.x) / warp; ++w) x = join(x, to[0][w]), y = join(y, to[1][w]);
  }

  RowSize size_;
  T beyond_;
  int64_t r_;
  const T *from_[inputs], *again_[kept];
  Vector<T, V>* held_;
  int at_ = 0;  // this row's place, from held_ on
  int stage_ = 0;
};

/// Makes the Row of a kernel. The memory of a BlockRow begins after `extra` bytes of dynamic shared memory.
template <class Row, class T, int inputs, int kept>
__device__ inline Row rows_of(const RowSize& size, const T* const (&from)[inputs], const T* const (&again)[kept],
                              int64_t extra = 0, T beyond = T(0.f)) {
  if constexpr (Row::in_registers) {
    return Row(size, from, beyond);
  } else {
    LOCKSTEP_DYNAMIC_SHARED(unsigned char, shared);
    return Row(size, from, shared + extra, again, beyond);
  }
}

/// How rows are launched: the engine's grid, block and shared memory.
struct RowLaunch {
  dim3 grid, block;
  size_t shared = 0;
  RowSize size;
};

/// Bytes of dynamic shared memory that leave room for a second block on the multiprocessor.
inline int64_t half_of_shared() {
  constexpr int64_t fixed = 1024 + 1024;  // static arrays, and what CUDA reserves for each block
  return (int64_t(cuda::limits().shared_per_block) + 1024) / 2 - fixed;
}

/// The number of threads of a block for rows of `vectors` vectors: one for every two vectors, at most `limit`.
inline int threads_for(int64_t vectors, int limit) {
  return int(std::clamp<int64_t>((vectors / 2 + warp - 1) / warp * warp, warp, limit));
}

/// The launch of an engine over all rows; `extra` bytes of shared memory come before the rows. `resident`: blocks of a
/// WarpRow that a multiprocessor holds.
template <class Row> RowLaunch launch_of(const RowSize& size, int resident, int64_t extra = 0) {
  RowLaunch launch{dim3(), dim3(), 0, size};
  if constexpr (Row::in_registers) {
    const int64_t blocks = (size.rows + 3) / 4;
    launch.grid = dim3(unsigned(std::min<int64_t>(blocks, int64_t(cuda::limits().multiprocessors) * resident)));
    launch.block = dim3(warp, 4);
  } else {
    constexpr int64_t bytes = Row::V * sizeof(typename Row::T) * Row::slots;
    const int64_t vectors = (size.columns + Row::V - 1) / Row::V,
                  fits = std::max<int64_t>(half_of_shared() - extra, 0) / bytes;
    const bool twice = Row::copies && 2 * vectors <= fits;
    launch.size.room = int(std::min(vectors, fits));
    launch.size.ahead = twice ? int(vectors) * Row::slots : 0;
    launch.shared = size_t((extra + 15) / 16 * 16 + launch.size.room * bytes * (twice ? 2 : 1));
    launch.grid = dim3(cuda::blocks_for(size.rows, 1));
    launch.block = dim3(unsigned(threads_for(vectors, Row::threads)));
  }
  return launch;
}

using Pointers = std::initializer_list<const void*>;

/// Calls fn.template operator()<Row>() with the engine for rows of n elements of T, `stride` elements apart. A
/// row is read from `inputs` tensors; `kept` rows are kept. `pointers`: the start of the first row of each tensor (null
/// counts as aligned). No tensor has elements wider than T.
template <class T, int inputs, int kept, bool ragged = false, class Fn>
void with_rows(int64_t n, int64_t stride, Pointers pointers, Fn&& fn) {
  constexpr int wide = int(16 / sizeof(T));
  bool aligned = stride % wide == 0;
  for (const void* p : pointers) aligned &= reinterpret_cast<uintptr_t>(p) % 16 == 0;
  // Without alignment, a block reads and writes single elements (V = 1).
  if (!aligned) return fn.template operator()<BlockRow<T, 1, inputs, kept>>();
  if (n <= warp_columns<T, kept>) return fn.template operator()<WarpRow<T, wide, inputs, kept, ragged>>();
  fn.template operator()<BlockRow<T, wide, inputs, kept, ragged>>();
}

}  // namespace lockstep::on_cuda
