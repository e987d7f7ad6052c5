// See products.h. All memory is allocated with the block emulator, because kernel threads must not allocate; its pages
// are committed when touched.
#include "tests/cudasim/products.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "tests/cudasim/block.h"
#include "tests/cudasim/clocks.h"

namespace simt {
namespace {

constexpr unsigned group_threads = 128, max_columns = 256, max_live = 64, max_groups = 16, max_accumulators = 8,
                   max_fenced = 16, max_registers = 512, max_warpgroups = max_threads / group_threads;
constexpr unsigned by_tma = max_threads;  // TMA, as the writer of memory

/// A product in flight. Product number n of a warpgroup is at n % max_live.
struct Live {
  Product as;  // the product as the first thread issued it
  unsigned asked, waited;
  Chunk operands[max_chunks];
  float* c[group_threads];
  const uint32_t* a_at[group_threads];
  uint32_t a[group_threads][4];
};
/// The products of a warpgroup.
struct Warpgroup {
  uint64_t begun, done, checked;  // products issued by some thread; by all, and run; waited for by all, and checked
  Live live[max_live];
};
/// The accumulators of a thread. In its registers they are NaN until it waits; the sums are kept here.
struct Accumulators {
  float* at;
  unsigned columns;
  uint64_t last;  // one past the number of the last product
  float sums[max_columns / 2];
};
/// Registers at the last wgmma.fence.
struct Fenced {
  const unsigned char* at;
  unsigned bytes;
  unsigned char value[max_registers];
};
/// A thread's products, counted.
struct ThreadState {
  uint64_t asked, waited, wants;
  uint64_t groups[max_groups];  // for each group, one past the number of its last product
  unsigned group_count, accumulator_count, fenced_count;
  Accumulators accumulators[max_accumulators];
  Fenced fenced[max_fenced];
};
/// The last write to a word of shared memory. Times continue from block to block.
struct Write {
  uint64_t time;
  unsigned thread;
  bool under_way;
};

/// Zeroed memory; calloc leaves large pieces uncommitted until they are touched.
template <class T> std::unique_ptr<T[], void (*)(void*)> zeros(size_t n) {
  return {static_cast<T*>(std::calloc(n, sizeof(T))), std::free};
}

struct Products {
  decltype(zeros<Warpgroup>(1)) warpgroups = zeros<Warpgroup>(max_warpgroups);
  decltype(zeros<ThreadState>(1)) threads = zeros<ThreadState>(max_threads);
  decltype(zeros<Write>(1)) writes = zeros<Write>(shared_arena_bytes / 4);
  uint64_t time = 1, block_began = 1;
  uint64_t fenced_at[max_threads] = {};
  bool used = false;  // true after the first product on this OS thread
  float a[64][16], b[16][max_columns], c[64][max_columns];

  ThreadState& self() { return threads[here->linear]; }
  Warpgroup& warpgroup() { return warpgroups[here->linear / group_threads]; }
};
Products& all() {
  static thread_local const auto made = std::make_unique<Products>();
  return *made;
}

bool same(const void* a, const void* b, size_t bytes) { return __builtin_memcmp(a, b, bytes) == 0; }
constexpr uint32_t poison_word = 0xffbfffffu;  // a signalling NaN: arithmetic on it gives a quiet NaN

bool is_poison(const float* values, unsigned n) {
  return std::all_of(values, values + n, [](const float& x) { return same(&x, &poison_word, 4); });
}

// --- operands in shared memory ---

/// Chunk (i, j) of an operand. Along k it holds elements 8 j to 8 j + 7 of row i; turned, rows 8 j to 8 j + 7 at place
/// i along k.
const Chunk* chunk_of(uint64_t matrix, bool turned, unsigned i, unsigned j) {
  const auto field = [&](int bit) { return unsigned(matrix >> bit & 0x3fff) << 4; };
  const unsigned start = field(0), leading = field(16), stride = field(32);
  // 128 bytes of a row are contiguous; eight rows of 128 bytes form the pattern.
  const unsigned place = turned ? start + j / 8 * leading + j % 8 * 16 + i / 8 * stride + i % 8 * 128
                                : start + i / 8 * stride + i % 8 * 128 + j * 16;
  return reinterpret_cast<const Chunk*>(shared_arena() + (place ^ (place >> 3 & 0x70)));
}

template <class Fn> unsigned each_chunk(const Product& p, Fn fn) {
  unsigned n = 0;
  const auto operand = [&](uint64_t matrix, bool turned, unsigned rows) {
    for (unsigned i = 0; i < (turned ? 16 : rows); ++i)
      for (unsigned j = 0; j < (turned ? rows / 8 : 2); ++j) fn(n++, chunk_of(matrix, turned, i, j));
  };
  if (!p.a) operand(p.a_matrix, p.a_turned, 64);
  operand(p.b_matrix, p.b_turned, p.columns);
  return n;
}

void check_matrix(uint64_t matrix) {
  if (matrix >> 62 != 1) fault("wgmma: expected the descriptor of a matrix in the 128-byte swizzle");
  if ((matrix >> 49 & 7) != 0)
    fault("wgmma: expected a base offset of 0: a pattern begins at a multiple of 1024 bytes");
}

/// Checks that copies and writes of a chunk are complete and followed by a proxy fence.
void check_chunk(const Chunk* chunk) {
  Products& p = all();
  if (!is_shared(chunk) || !is_shared(chunk->bytes + 15)) fault("wgmma: an operand lies outside shared memory");
  const size_t word = size_t(chunk->bytes - shared_arena()) / 4;
  for (size_t i = word; i < word + 4; ++i) {
    const Write& write = p.writes[i];
    if (write.time < p.block_began)
      fault("wgmma: an operand in shared memory that neither a copy nor store_shared() wrote");
    if (write.under_way) fault("wgmma: an operand in shared memory that is still being copied");
  }
  check_visible(chunk, sizeof(Chunk), "an operand in shared memory");
}

// --- products ---

/// Runs a product that all threads have issued, and wakes the threads that wait for it.
void complete(Warpgroup& group, Live& product) {
  Products& p = all();
  const Product& as = product.as;
  const unsigned columns = as.columns, first = here->linear / group_threads * group_threads;
  // where element e of a thread's registers lies, in fragments of a and in accumulators
  const auto place = [](unsigned t, unsigned e) {
    return std::pair(t / 32 * 16 + t % 32 / 4 + e / 2 % 2 * 8, t % 4 * 2 + e % 2 + e / 4 * 8);
  };
  const Chunk* chunk = product.operands;
  const auto decode = [&](bool turned, unsigned rows, auto put) {
    for (unsigned i = 0; i < (turned ? 16 : rows); ++i)
      for (unsigned j = 0; j < (turned ? rows / 8 : 2); ++j, ++chunk)
        for (unsigned e = 0; e < 8; ++e) {
          uint16_t bits;
          __builtin_memcpy(&bits, chunk->bytes + 2 * e, 2);
          turned ? put(8 * j + e, i, as.number(bits)) : put(i, 8 * j + e, as.number(bits));
        }
  };
  if (as.a) {
    for (unsigned t = 0; t < group_threads; ++t)
      for (unsigned e = 0; e < 8; ++e) {
        const auto [row, k] = place(t, e);
        p.a[row][k] = as.number(uint16_t(product.a[t][e / 2] >> e % 2 * 16));
      }
  } else {
    decode(as.a_turned, 64, [&](unsigned row, unsigned k, float x) { p.a[row][k] = x; });
  }
  decode(as.b_turned, columns, [&](unsigned column, unsigned k, float x) { p.b[k][column] = x; });
  const auto each_element = [&](auto fn) {
    for (unsigned t = 0; t < group_threads; ++t) {
      ThreadState& thread = p.threads[first + t];
      Accumulators* const sums = std::find_if(thread.accumulators, thread.accumulators + thread.accumulator_count,
                                              [&](const Accumulators& x) { return x.at == product.c[t]; });
      for (unsigned e = 0; e < columns / 2; ++e) {
        const auto [row, column] = place(t, e);
        fn(sums->sums[e], p.c[row][column]);
      }
    }
  };
  if (as.adds) {
    each_element([](float& sum, float& c) { c = sum; });
  } else {
    begin_ignore();  // ThreadSanitizer sees memset
    std::fill_n(p.c[0], 64 * max_columns, 0.f);
    end_ignore();
  }
  for (unsigned i = 0; i < 64; ++i)
    for (unsigned k = 0; k < 16; ++k)
      for (unsigned j = 0; j < columns; ++j) p.c[i][j] += p.a[i][k] * p.b[k][j];
  each_element([](float& sum, float& c) { sum = c; });

  ++group.done;
  for (unsigned t = first; t < first + group_threads; ++t) {
    ThreadState& thread = p.threads[t];
    if (thread.wants != 0 && thread.wants <= group.done) {
      thread.wants = 0;
      wake(t);
    }
  }
}

/// Checks that registers have not changed since the last wgmma.fence.
void check_fenced(const void* registers, unsigned bytes, const char* what) {
  const ThreadState& self = all().self();
  const auto* const at = static_cast<const unsigned char*>(registers);
  for (unsigned i = 0; i < self.fenced_count; ++i) {
    const Fenced& fenced = self.fenced[i];
    if (at < fenced.at || at + bytes > fenced.at + fenced.bytes) continue;
    if (!same(at, fenced.value + (at - fenced.at), bytes))
      fault(std::string("wgmma: ") + what + " in registers that were written since the last wgmma.fence");
    return;
  }
  fault(std::string("wgmma: ") + what + " in registers that no wgmma.fence covers");
}

/// Takes over the accumulators of a thread and fills its registers with NaN.
void hold_accumulators(const Product& product) {
  ThreadState& self = all().self();
  const unsigned n = product.columns / 2;
  Accumulators* const end = self.accumulators + self.accumulator_count;
  Accumulators* found = std::find_if(self.accumulators, end, [&](const Accumulators& x) { return x.at == product.c; });
  if (found == end) {
    check_fenced(product.c, n * 4, "accumulators");
    if (self.accumulator_count == max_accumulators) fault("wgmma: the emulator supports at most 8 accumulators");
    ++self.accumulator_count;
    found->at = product.c;
    found->columns = product.columns;
    std::copy_n(product.c, n, found->sums);
    for (unsigned e = 0; e < n; ++e) std::memcpy(product.c + e, &poison_word, 4);
  } else if (found->columns != product.columns) {
    fault("wgmma: accumulators of another shape that nobody has waited for");
  }
  found->last = self.asked + 1;
}

}  // namespace

unsigned begin_product(const Product& product, const Chunk** places) {
  Products& p = all();
  p.used = true;
  ThreadState& self = p.self();
  Warpgroup& group = p.warpgroup();
  if (here->linear / group_threads * group_threads + group_threads > block_size())
    fault("wgmma: expected four whole warps in the warpgroup");
  if (!product.a) check_matrix(product.a_matrix);
  check_matrix(product.b_matrix);
  if (self.asked < group.begun) {
    const Product& first = group.live[self.asked % max_live].as;
    if (first.a_matrix != product.a_matrix || first.b_matrix != product.b_matrix || first.columns != product.columns ||
        !first.a != !product.a || first.a_turned != product.a_turned || first.b_turned != product.b_turned ||
        first.adds != product.adds || first.number != product.number)
      fault("wgmma: the threads of a warpgroup disagree on the product");
    return 0;
  }
  if (group.begun - group.checked == max_live)
    fault("wgmma: the emulator supports at most 64 products that nobody has waited for");
  Live& live = group.live[group.begun++ % max_live];
  live.as = product;
  live.asked = live.waited = 0;
  return each_chunk(product, [&](unsigned n, const Chunk* place) {
    check_chunk(place);
    places[n] = place;
  });
}

void issue_product(const Product& product, const Chunk* operands) {
  Products& p = all();
  ThreadState& self = p.self();
  Warpgroup& group = p.warpgroup();
  Live& live = group.live[self.asked % max_live];
  if (operands) each_chunk(product, [&](unsigned n, const Chunk*) { live.operands[n] = operands[n]; });
  const unsigned t = here->linear % group_threads;
  hold_accumulators(product);
  live.c[t] = product.c;
  live.a_at[t] = product.a;
  if (product.a) {
    check_fenced(product.a, 16, "fragments of a");
    std::copy_n(product.a, 4, live.a[t]);
  }
  ++self.asked;
  if (++live.asked == group_threads) complete(group, live);
}

void forget_fenced() { all().self().fenced_count = 0; }
void fence_registers(const void* registers, unsigned bytes) {
  ThreadState& self = all().self();
  if (bytes > max_registers || self.fenced_count == max_fenced)
    fault("wgmma.fence: the emulator supports at most 16 arrays of 128 registers");
  Fenced& fenced = self.fenced[self.fenced_count++];
  fenced.at = static_cast<const unsigned char*>(registers);
  fenced.bytes = bytes;
  std::copy_n(fenced.at, bytes, fenced.value);
}

void commit_products() {
  ThreadState& self = all().self();
  if (self.group_count == max_groups)
    fault("wgmma: the emulator supports at most 16 groups that nobody has waited for");
  self.groups[self.group_count++] = self.asked;
}

void wait_for_products(unsigned left) {
  Products& p = all();
  ThreadState& self = p.self();
  if (self.group_count <= left) return;
  const unsigned finished = self.group_count - left;
  const uint64_t until = self.groups[finished - 1];
  std::copy(self.groups + finished, self.groups + self.group_count, self.groups);
  self.group_count = left;
  Warpgroup& group = p.warpgroup();
  if (group.done < until) {
    self.wants = until;
    park();
  }
  const unsigned t = here->linear % group_threads;
  for (; self.waited < until; ++self.waited) {
    Live& live = group.live[self.waited % max_live];
    if (live.a_at[t] && !same(live.a_at[t], live.a[t], 16))
      fault("wgmma: fragments of a were written before the product was waited for");
    ++live.waited;
  }
  unsigned kept = 0;
  for (unsigned i = 0; i < self.accumulator_count; ++i) {
    Accumulators& x = self.accumulators[i];
    if (!is_poison(x.at, x.columns / 2)) fault("wgmma: accumulators were written before the product was waited for");
    if (x.last <= until) std::copy_n(x.sums, x.columns / 2, x.at);
    else if (kept++ != i) self.accumulators[kept - 1] = x;
  }
  self.accumulator_count = kept;
}

unsigned end_product(const Chunk** places) {
  Warpgroup& group = all().warpgroup();
  if (group.checked == group.done || group.live[group.checked % max_live].waited < group_threads) return 0;
  return each_chunk(group.live[group.checked % max_live].as,
                    [&](unsigned n, const Chunk* place) { places[n] = place; });
}
void check_product(const Chunk* operands) {
  Warpgroup& group = all().warpgroup();
  const Live& live = group.live[group.checked++ % max_live];
  each_chunk(live.as, [&](unsigned n, const Chunk*) {
    if (!same(&live.operands[n], &operands[n], sizeof(Chunk)))
      fault("wgmma: an operand in shared memory was written before all threads had waited for the product");
  });
}

// --- shared memory ---

namespace {
template <class Fn> void each_write(const void* at, unsigned bytes, Fn fn) {
  Products& p = all();
  const size_t first = size_t(static_cast<const unsigned char*>(at) - shared_arena());
  for (size_t word = first / 4; word < (first + bytes + 3) / 4; ++word) fn(p.writes[word]);
}
void note(const void* to, unsigned bytes, Write by) {
  each_write(to, bytes, [&](Write& write) { write = by; });
}
}  // namespace
void copy_begins(const void* to, unsigned bytes) { note(to, bytes, {++all().time, here->linear, true}); }
void was_written(const void* to, unsigned bytes) { note(to, bytes, {++all().time, here->linear, false}); }
void fence_proxy() { all().fenced_at[here->linear] = ++all().time; }
void check_visible(const void* at, unsigned bytes, const char* what) {
  const Products& p = all();
  each_write(at, bytes, [&](const Write& write) {
    if (write.thread != by_tma && write.time >= p.block_began && p.fenced_at[write.thread] <= write.time)
      fault(std::string("no fence.proxy.async between the write of ") + what + ", by thread " +
            std::to_string(write.thread) + ", and its use by the asynchronous proxy");
  });
}
void tile_begins(const void* to, unsigned bytes) {
  each_write(to, bytes, [](const Write& write) {
    if (write.under_way && write.time >= all().block_began)
      fault("copy of a tile: to memory that another copy is still writing");
  });
  check_visible(to, bytes, "what the copy of a tile overwrites");
  note(to, bytes, {++all().time, by_tma, true});
}
void tile_arrived(const void* to, unsigned bytes) { note(to, bytes, {++all().time, by_tma, false}); }

void products_of_block() {
  Products& p = all();
  p.block_began = ++p.time;
  if (!p.used) return;
  for (unsigned i = 0; i < max_warpgroups; ++i)
    p.warpgroups[i].begun = p.warpgroups[i].done = p.warpgroups[i].checked = 0;
  for (unsigned i = 0; i < block_size(); ++i) {
    ThreadState& thread = p.threads[i];
    thread.asked = thread.waited = thread.wants = 0;
    thread.group_count = thread.accumulator_count = thread.fenced_count = 0;
  }
}
void products_of_thread() {
  const Products& p = all();
  if (!p.used) return;
  const ThreadState& self = p.threads[here->linear];
  if (self.waited < self.asked) fault("wgmma: the thread ends before it has waited for its products");
}

}  // namespace simt
