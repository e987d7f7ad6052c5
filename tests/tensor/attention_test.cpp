// Attention and rotary embedding against plain loops in f64: layouts, masks, causality, shared key heads, dropout,
// dtypes; gradients against the formula with the full T x S matrix; the same bits for any number of threads; memory.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <limits>
#include <random>

#include "tensor/block_layout.h"
#include "tensor/flops.h"
#include "tensor/ops.h"
#include "tests/messages.h"
#include "tests/threads.h"

using namespace lockstep;

namespace {

constexpr double inf = std::numeric_limits<double>::infinity();

Tensor random_tensor(const Shape& shape, DType dtype, uint32_t seed) {
  std::mt19937 engine(seed);
  std::vector<double> values(size_t(numel_of(shape)));
  for (double& value : values) value = double(engine()) / 2147483648.0 - 1;
  return Tensor::from(values, shape).to(dtype);
}

struct Case {
  int64_t batch, heads, groups, queries, keys, width;
  bool causal = false;
  // 1: bool (B, 1, T, S) with a fully masked row; 2: additive (H, 1, S); 3: additive (T, S) with -inf, transposed
  int mask = 0;
  double dropout = 0, scale = 0;
  int64_t window = 0;
  // a layout with one of `every` blocks, if block > 0
  int64_t block = 0, layouts = 1;
  unsigned every = 0;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << "B " << c.batch << " H " << c.heads << " G " << c.groups << " T " << c.queries << " S " << c.keys
             << " D " << c.width << " causal " << c.causal << " mask " << c.mask << " dropout " << c.dropout
             << " window " << c.window << " block " << c.block;
}

const Case cases[] = {
    {1, 1, 1, 1, 1, 1},
    {1, 1, 1, 1, 1, 4, true},
    {2, 3, 3, 5, 5, 4, true},
    {1, 3, 3, 13, 13, 12, true},
    {2, 2, 2, 7, 11, 16},
    {1, 2, 2, 67, 67, 8, true},
    {1, 2, 2, 130, 71, 20},
    {1, 1, 1, 300, 300, 32, true},
    {1, 1, 1, 259, 131, 64},
    // causal with more keys than queries (a cache), and with fewer: the first rows attend to nothing
    {1, 2, 2, 9, 80, 16, true},
    {1, 2, 2, 80, 9, 16, true},
    {1, 1, 1, 70, 197, 72, true},
    {1, 1, 1, 197, 70, 8, true},
    {2, 4, 2, 33, 33, 8, true},
    {1, 6, 1, 20, 90, 12},
    {1, 4, 2, 70, 70, 16, true, 2},  // shared key heads
    {2, 2, 2, 9, 9, 4, false, 1},
    {2, 2, 2, 70, 130, 16, false, 1},
    {2, 3, 3, 12, 65, 4, false, 2},
    {1, 2, 2, 66, 67, 4, true, 3},
    {1, 2, 2, 19, 19, 4, false, 0, 0.3},
    {2, 4, 2, 70, 67, 8, true, 1, 0.5},
    {1, 1, 1, 8, 8, 4, false, 0, 1.0},
    {1, 2, 2, 10, 10, 4, true, 0, 0, 0.3},
    {1, 1, 1, 65, 65, 260, true},
    {2, 2, 2, 0, 5, 4},
    {2, 2, 2, 5, 0, 4},
    {0, 2, 2, 5, 5, 4},
    {1, 2, 2, 3, 3, 0},
    // windows: about the size of a tile of keys, and wider than the sequence
    {2, 3, 3, 5, 5, 4, true, 0, 0, 0, 1},
    {1, 2, 2, 67, 67, 8, true, 0, 0, 0, 2},
    {1, 4, 2, 300, 300, 16, true, 0, 0, 0, 63},
    {1, 1, 1, 300, 300, 16, true, 0, 0, 0, 64},
    {1, 1, 1, 331, 331, 12, true, 0, 0, 0, 65},
    {1, 1, 1, 130, 130, 8, true, 0, 0, 0, 129},
    {1, 1, 1, 70, 70, 8, true, 0, 0, 0, 70},
    {1, 1, 1, 70, 70, 8, true, 0, 0, 0, int64_t(1) << 62},
    {1, 4, 1, 300, 300, 20, true, 0, 0, 0, 7},
    {1, 2, 2, 1, 200, 8, true, 0, 0, 0, 70},  // one query of a cache, and several
    {1, 4, 2, 9, 200, 16, true, 0, 0, 0, 3},
    {1, 2, 2, 70, 261, 8, true, 0, 0, 0, 100},
    {1, 1, 1, 197, 70, 8, true, 0, 0, 0, 5},  // the first queries attend to nothing
    {2, 4, 2, 140, 140, 8, true, 1, 0.3, 0, 20},
    {1, 2, 2, 66, 67, 4, true, 3, 0, 0.3, 33},
    // layouts of blocks
    {1, 2, 2, 64, 64, 8, true, 0, 0, 0, 0, 16, 1, 2},
    {2, 4, 2, 131, 131, 12, true, 0, 0, 0, 0, 16, 4, 3},  // a short last block, shared key heads, one layout per head
    {1, 2, 2, 300, 300, 16, false, 0, 0, 0, 0, 16, 2, 4},
    {1, 1, 1, 300, 300, 8, true, 0, 0, 0, 0, 64, 1, 2},
    {1, 2, 1, 333, 333, 8, true, 0, 0, 0, 0, 48, 1, 3},
    {1, 2, 2, 150, 150, 8, false, 0, 0, 0, 0, 1, 1, 40},
    {1, 2, 2, 150, 150, 72, true, 0, 0, 0, 0, 7, 2, 3},
    {1, 2, 2, 200, 200, 8, false, 0, 0, 0, 0, 1000, 2, 1},
    {1, 2, 2, 1, 77, 8, true, 0, 0, 0, 0, 16, 2, 2},  // one query of a cache
    {1, 2, 2, 70, 201, 8, true, 0, 0, 0, 0, 16, 1, 3},
    {1, 2, 2, 70, 70, 8, true, 1, 0, 0, 0, 16, 2, 2},  // with an additional mask
    {1, 2, 2, 70, 70, 8, true, 0, 0.4, 0, 0, 16, 1, 2},
    {1, 2, 2, 40, 40, 8, false, 0, 0, 0, 0, 16, 1, 0},
    {1, 2, 2, 0, 0, 8, false, 0, 0, 0, 0, 16, 1, 1},
};

/// A random layout with one of `every` blocks; every = 1: all; 0: none.
std::shared_ptr<const BlockLayout> random_layout(int64_t block, int64_t tokens, int64_t heads, unsigned every) {
  std::mt19937 engine(6);
  const int64_t blocks = (tokens + block - 1) / block;
  std::vector<std::vector<int32_t>> rows(size_t(heads * blocks));
  for (auto& row : rows)
    for (int32_t c = 0; c < blocks; ++c)
      if (every > 0 && engine() % every == 0) row.push_back(c);
  return std::make_shared<BlockLayout>(BlockLayout::of_rows(block, heads, rows).to(default_device()));
}

/// The layout as a mask (heads of the layout, T, S).
Tensor mask_of(const BlockLayout& layout, int64_t queries, int64_t keys) {
  const auto starts = layout.row_start.to_vector<double>(), columns = layout.columns.to_vector<double>();
  std::vector<double> mask(size_t(layout.heads * queries * keys));
  for (int64_t h = 0; h < layout.heads; ++h)
    for (int64_t i = 0; i < queries; ++i) {
      const int64_t row = h * (layout.blocks + 1) + (i + keys - queries) / layout.block;
      for (size_t at = size_t(starts[size_t(row)]); at < size_t(starts[size_t(row + 1)]); ++at)
        for (int64_t j = int64_t(columns[at]) * layout.block;
             j < std::min(keys, int64_t(columns[at] + 1) * layout.block); ++j)
          mask[size_t((h * queries + i) * keys + j)] = 1;
    }
  return Tensor::from(mask, {layout.heads, queries, keys}).to(boolean);
}

struct Problem {
  Tensor q, k, v, grad, mask;
  AttentionArgs args;
};

Problem make(const Case& c, DType dtype) {
  Problem p;
  // Views of a packed (B, T, heads, D) layout, as in a model.
  p.q = random_tensor({c.batch, c.queries, c.heads, c.width}, dtype, 1).transpose(1, 2);
  const Tensor kv = random_tensor({c.batch, c.keys, 2, c.groups, c.width}, dtype, 2);
  p.k = kv.select(2, 0).transpose(1, 2);
  p.v = kv.select(2, 1).transpose(1, 2);
  p.grad = random_tensor({c.batch, c.heads, c.queries, c.width}, dtype, 3);
  p.args = {.scale = c.scale, .causal = c.causal, .window = c.window, .dropout = c.dropout, .key = {42, 7}};
  std::mt19937 engine(4);
  if (c.mask == 1) {
    std::vector<double> values(size_t(c.batch * c.queries * c.keys));
    // Row 2 is fully masked.
    for (size_t i = 0; i < values.size(); ++i) values[i] = engine() % 3 != 0 && int64_t(i) / c.keys != 2;
    p.mask = Tensor::from(values, {c.batch, 1, c.queries, c.keys}).to(boolean);
  } else if (c.mask == 2) {
    p.mask = random_tensor({c.heads, 1, c.keys}, dtype, 5);
  } else if (c.mask == 3) {
    std::vector<double> values(size_t(c.queries * c.keys));
    for (double& value : values) value = engine() % 4 == 0 ? -inf : double(engine() % 8) / 4;
    p.mask = Tensor::from(values, {c.keys, c.queries}).to(dtype).t();
  }
  if (c.block > 0) p.args.layout = random_layout(c.block, c.keys, c.layouts, c.every);
  return p;
}

struct Reference {
  std::vector<double> out, lse, grad_q, grad_k, grad_v;
};

/// softmax(q k^T scale + mask) v and its gradients from the full matrix, in f64. A layout counts as a mask.
Reference reference(const Case& c, const Problem& p) {
  const auto [B, H, G, T, S, D] = std::tuple(c.batch, c.heads, c.groups, c.queries, c.keys, c.width);
  const auto q = p.q.to_vector<double>(), k = p.k.to_vector<double>(), v = p.v.to_vector<double>();
  const auto grad = p.grad.to_vector<double>();
  std::vector<double> mask(size_t(B * H * T * S), 0);
  if (p.mask.defined()) {
    mask = p.mask.expand({B, H, T, S}).to_vector<double>();
    if (p.mask.dtype() == boolean)
      for (double& m : mask) m = m != 0 ? 0 : -inf;
  }
  if (p.args.layout) {
    const auto visible = mask_of(*p.args.layout, T, S).expand({B, H, T, S}).to_vector<double>();
    for (size_t i = 0; i < mask.size(); ++i)
      if (visible[i] == 0) mask[i] = -inf;
  }
  const double scale = c.scale != 0 ? c.scale : 1 / std::sqrt(double(std::max<int64_t>(D, 1)));
  Reference r{std::vector<double>(q.size()), std::vector<double>(size_t(B * H * T)), std::vector<double>(q.size()),
              std::vector<double>(k.size()), std::vector<double>(k.size())};
  for (int64_t bh = 0; bh < B * H; ++bh)
    for (int64_t i = 0; i < T; ++i) {
      const int64_t kv = (bh / H * G + bh % H / (H / G)) * S * D, at = (bh * T + i) * D;
      std::vector<double> weight(size_t(S), -inf), keep(size_t(S), 1), slope(size_t(S), 0);
      double highest = -inf, sum = 0, delta = 0;
      for (int64_t j = 0; j < S; ++j) {
        if (c.causal && (j > i + S - T || (c.window > 0 && j <= i + S - T - c.window))) continue;
        double score = 0;
        for (int64_t d = 0; d < D; ++d) score += q[size_t(at + d)] * k[size_t(kv + j * D + d)];
        weight[size_t(j)] = score * scale + mask[size_t((bh * T + i) * S + j)];
        highest = std::max(highest, weight[size_t(j)]);
      }
      for (double& w : weight) sum += w = highest == -inf ? 0 : std::exp(w - highest);
      r.lse[size_t(bh * T + i)] = highest + std::log(sum);
      for (int64_t j = 0; j < S; ++j) {
        weight[size_t(j)] /= sum == 0 ? 1 : sum;
        const uint64_t place = uint64_t((bh * T + i) * S + j);
        if (c.dropout > 0)
          keep[size_t(j)] =
              c.dropout < 1 && philox(p.args.key, place / 4)[place % 4] >= c.dropout * 0x1p32 ? 1 / (1 - c.dropout) : 0;
        for (int64_t d = 0; d < D; ++d) {
          const size_t at_v = size_t(kv + j * D + d);
          r.out[size_t(at + d)] += weight[size_t(j)] * keep[size_t(j)] * v[at_v];
          r.grad_v[at_v] += weight[size_t(j)] * keep[size_t(j)] * grad[size_t(at + d)];
          slope[size_t(j)] += keep[size_t(j)] * grad[size_t(at + d)] * v[at_v];
        }
        delta += weight[size_t(j)] * slope[size_t(j)];
      }
      for (int64_t j = 0; j < S; ++j)
        for (int64_t d = 0; d < D; ++d) {
          const double factor = weight[size_t(j)] * (slope[size_t(j)] - delta) * scale;
          r.grad_q[size_t(at + d)] += factor * k[size_t(kv + j * D + d)];
          r.grad_k[size_t(kv + j * D + d)] += factor * q[size_t(at + d)];
        }
    }
  return r;
}

void check_attention(const Tensor& got, const std::vector<double>& wanted, double tolerance) {
  const auto v = got.to_vector<double>();
  REQUIRE(v.size() == wanted.size());
  double highest = 1;
  for (double w : wanted) highest = std::max(highest, std::isfinite(w) ? std::abs(w) : 0);
  int64_t wrong = 0;
  for (size_t i = 0; i < v.size(); ++i)
    wrong += !(v[i] == wanted[i] || std::abs(v[i] - wanted[i]) <= tolerance * highest);
  CHECK(wrong == 0);
}

/// Output, logarithms of sums, and the gradients of q, k and v.
struct Results {
  AttentionResult forward;
  AttentionGrad grad;
  explicit Results(const Problem& p)
      : forward(attention(p.q, p.k, p.v, p.mask, p.args)),
        grad(attention_grad(p.grad, p.q, p.k, p.v, p.mask, forward, p.args)) {}
  std::vector<Tensor> all() const { return {forward.out, forward.lse, grad.q, grad.k, grad.v}; }
};

}  // namespace

TEST_CASE("attention and its gradients equal the full matrix, for every dtype") {
  for (const DType dtype : {f64, f32, f16, bf16})
    for (const Case& c : cases) {
      INFO("c ", c, ", dtype ", name_of(dtype));
      const Problem p = make(c, dtype);
      const Reference wanted = reference(c, p);
      const double of_f32 = c.block > 0 ? 1e-6 : 3e-6, tolerance = dtype == f64   ? 1e-13
                                                                   : dtype == f32 ? of_f32
                                                                   : dtype == f16 ? 3e-3
                                                                                  : 2e-2;
      const Results r(p);
      CHECK(r.forward.out.transpose(1, 2).is_contiguous());
      check_attention(r.forward.out, wanted.out, tolerance);
      check_attention(r.forward.lse, wanted.lse, dtype == f64 ? 1e-13 : 3e-6);
      check_attention(r.grad.q, wanted.grad_q, tolerance);
      check_attention(r.grad.k, wanted.grad_k, tolerance);
      check_attention(r.grad.v, wanted.grad_v, tolerance);
    }
}

TEST_CASE("a layout of all blocks changes no bit") {
  for (const Case& c : {Case{2, 4, 2, 300, 300, 36, true}, Case{1, 2, 2, 130, 130, 64}, Case{1, 2, 2, 9, 80, 16, true}})
    for (const int64_t block : {1, 16, 50, 64, 512}) {
      INFO("c ", c, ", block ", block);
      Problem p = make(c, f32);
      const auto plain = Results(p).all();
      p.args.layout = random_layout(block, c.keys, 1, 1);
      const auto in_blocks = Results(p).all();
      for (size_t i = 0; i < plain.size(); ++i) CHECK(equal(in_blocks[i], plain[i]));
    }
}

TEST_CASE("a layout is counted, some heads take theirs, and one that does not fit is refused") {
  const Tensor q = random_tensor({2, 4, 40, 8}, f32, 1), grad = random_tensor({2, 4, 40, 8}, f32, 2);
  AttentionArgs args{.scale = 0, .causal = true, .layout = random_layout(16, 40, 4, 2)};
  MacCounter counter;
  const AttentionResult all = attention(q, q, q, {}, args);
  double pairs = 0;
  const auto mask = mask_of(*args.layout, 40, 40).to_vector<double>();
  for (size_t i = 0; i < mask.size(); ++i) pairs += i % 40 <= i / 40 % 40 ? mask[i] : 0;
  CHECK(counter.count() == int64_t(2 * 2 * pairs * 8));
  const AttentionGrad grads = attention_grad(grad, q, q, q, {}, all, args);
  args.first_head = 1, args.all_heads = 4;
  const auto some = [](const Tensor& x) { return x.narrow(1, 1, 2); };
  const AttentionResult mine = attention(some(q), some(q), some(q), {}, args);
  CHECK(equal(mine.out, some(all.out)));
  CHECK(equal(attention_grad(some(grad), some(q), some(q), some(q), {}, mine, args).k, some(grads.k)));

  const auto call = [&](int64_t keys, int64_t tokens, int64_t heads) {
    const Tensor k = q.narrow(2, 0, keys);
    attention(q, k, k, {}, {.scale = 0, .layout = random_layout(16, tokens, heads, 2)});
  };
  CHECK_ERROR(call(40, 64, 1), "[attention] expected a layout made for 40 keys, got one of 4 blocks of 16");
  CHECK_ERROR(call(40, 40, 2), "expected a layout of 1 head or at least 4 heads, got 2");
  CHECK_ERROR(call(8, 8, 1), "expected no more queries than keys with a layout, got 40 and 8");
  CHECK_ERROR(BlockLayout::of_rows(16, 1, {{0, 2}, {1}}), "ascending blocks in [0, 2) in row 0, got 2");
}

TEST_CASE("attention: the cost is proportional to the window, and the results equal those of a mask") {
  for (const auto& [queries, keys, window] : {std::array<int64_t, 3>{130, 130, 7}, {40, 200, 64}, {70, 40, 5}}) {
    CAPTURE(window);
    const Tensor q = random_tensor({1, 4, queries, 8}, f64, 1), k = random_tensor({1, 2, keys, 8}, f64, 2),
                 v = random_tensor({1, 2, keys, 8}, f64, 3), grad = random_tensor({1, 4, queries, 8}, f64, 4);
    const AttentionArgs args{.scale = 0, .causal = true, .window = window};
    const Tensor mask = causal_mask(queries, keys, window, default_device());
    double pairs = 0;
    for (const double visible : mask.to_vector<double>()) pairs += visible;
    CHECK(pairs == double(attended_pairs(queries, keys, true, window)));
    MacCounter counter;
    const AttentionResult mine = attention(q, k, v, {}, args);
    CHECK(double(counter.count()) == 2 * 4 * 8 * pairs);
    const AttentionResult wanted = attention(q, k, v, mask);
    check_attention(mine.out, wanted.out.to_vector<double>(), 1e-14);
    const AttentionGrad g = attention_grad(grad, q, k, v, {}, mine, args),
                        same = attention_grad(grad, q, k, v, mask, wanted, {.scale = 0});
    for (const auto& [a, b] : {std::pair{g.q, same.q}, {g.k, same.k}, {g.v, same.v}})
      check_attention(a, b.to_vector<double>(), 1e-14);
    // Keys and values before every window are never read.
    if (queries >= keys) continue;
    const int64_t hidden = (keys - queries - window + 1) / 64 * 64;
    Tensor far_k = k.clone(), far_v = v.clone();
    if (hidden > 0) far_k.narrow(2, 0, hidden).fill_(std::nan("")), far_v.narrow(2, 0, hidden).fill_(std::nan(""));
    CHECK(equal(attention(q, far_k, far_v, {}, args).out, mine.out));
  }
}

TEST_CASE("attention takes any layout and writes gradients into packed views") {
  const int64_t B = 2, H = 3, T = 37, D = 20;
  for (const DType dtype : {f64, f32, bf16}) {
    const Tensor packed = random_tensor({B, T, 3, H, D}, dtype, 1);
    const auto part = [](const Tensor& x, int64_t i) { return x.select(2, i).transpose(1, 2); };
    const Tensor q = part(packed, 0), k = part(packed, 1), v = part(packed, 2);
    const Tensor grad = random_tensor({B, H, D, T}, dtype, 2).transpose(2, 3);  // stride of D is not 1
    const AttentionArgs args{.scale = 0, .causal = true};
    const AttentionResult a = attention(q, k, v, {}, args);
    const AttentionResult b =
        attention(q.contiguous(), k.transpose(2, 3).contiguous().transpose(2, 3), v.clone(), {}, args);
    CHECK(equal(a.out, b.out));
    CHECK(equal(a.lse, b.lse));
    const AttentionGrad wanted =
        attention_grad(grad.contiguous(), q.contiguous(), k.contiguous(), v.contiguous(), {}, b, args);
    const Tensor into = full({B, T, 3, H, D}, 9, {.dtype = dtype});
    Tensor grad_q = part(into, 0), grad_k = part(into, 1), grad_v = part(into, 2);
    const uint32_t version = into.storage()->version();
    attention_grad_into(grad, q, k, v, {}, a, args, grad_q, grad_k, grad_v);
    CHECK(into.storage()->version() > version);
    for (const auto& [i, expected] : {std::pair{0, wanted.q}, {1, wanted.k}, {2, wanted.v}})
      CHECK(equal(part(into, i), expected));
    const Tensor one = random_tensor({1, 1, 1, D}, dtype, 3);  // expanded operands with strides 0
    const Tensor same = one.expand({B, H, T, D});
    check_attention(attention(q, k, same).out, same.to_vector<double>(), dtype == bf16 ? 1e-2 : 1e-6);
  }
}

TEST_CASE("the number of threads does not change a bit") {
  for (const Case& c :
       {Case{2, 4, 2, 300, 300, 36, true}, Case{3, 2, 2, 130, 260, 64, false, 1, 0.2},
        Case{1, 4, 2, 301, 301, 20, true, 0, 0, 0, 0, 16, 4, 3}, Case{1, 4, 2, 301, 301, 20, true, 0, 0, 0, 90}}) {
    const Problem p = make(c, f32);
    check_threads([&] { return Results(p).all(); }, {2, 3, 7});
  }
}

TEST_CASE("dropout keeps about 1 - p of the weights and depends on its key") {
  const Tensor q = zeros({1, 2, 64, 16}), k = q, v = ones({1, 2, 64, 16});
  AttentionArgs args{.scale = 0, .dropout = 0.25, .key = {1, 2}};
  const Tensor out = attention(q, k, v, {}, args).out;
  double mean = 0;
  for (double x : out.to_vector<double>()) mean += x / double(out.numel());
  CHECK(mean == doctest::Approx(1).epsilon(0.03));
  CHECK(equal(out, attention(q, k, v, {}, args).out));
  args.key.stream = 3;
  CHECK_FALSE(equal(out, attention(q, k, v, {}, args).out));
}

TEST_CASE("some of the heads lose the weights that they lose among all") {
  const Tensor q = random_tensor({2, 6, 9, 4}, f64, 1), k = random_tensor({2, 6, 13, 4}, f64, 2),
               v = random_tensor({2, 6, 13, 4}, f64, 3), grad = random_tensor({2, 6, 9, 4}, f64, 4);
  const AttentionArgs args{.scale = 0.5, .dropout = 0.4, .key = {1, 2}};
  const AttentionResult all = attention(q, k, v, {}, args);
  const AttentionGrad grads = attention_grad(grad, q, k, v, {}, all, args);
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 3}, {3, 3}, {5, 1}, {0, 6}}) {
    const auto some = [&, first = first, count = count](const Tensor& x) { return x.narrow(1, first, count); };
    AttentionArgs part = args;
    part.first_head = first, part.all_heads = 6;
    const AttentionResult mine = attention(some(q), some(k), some(v), {}, part);
    CHECK(equal(mine.out, some(all.out)));
    const AttentionGrad g = attention_grad(some(grad), some(q), some(k), some(v), {}, mine, part);
    CHECK(equal(g.q, some(grads.q)));
    CHECK(equal(g.v, some(grads.v)));
  }
}

TEST_CASE("attention allocates no T x S matrix") {
  const int64_t T = 2048, D = 16;
  const Tensor q = random_tensor({1, 2, T, D}, f32, 1);
  const int64_t before = memory_report().total.current;
  reset_peak_memory();
  const AttentionResult r = attention(q, q, q, {}, {.scale = 0, .causal = true});
  attention_grad(q, q, q, q, {}, r, {.scale = 0, .causal = true});
  CHECK(memory_report().total.peak - before < T * T * 4 / 8);
}

TEST_CASE("NaN and infinite scores spread as far as softmax says") {
  Tensor q = ones({1, 1, 3, 4}), k = ones({1, 1, 70, 4}), v = ones({1, 1, 70, 4});
  q.select(2, 1).fill_(std::nan(""));
  const auto out = attention(q, k, v).out.to_vector<double>();
  CHECK(out[0] == doctest::Approx(1));
  CHECK(std::isnan(out[4]));
  CHECK(out[8] == doctest::Approx(1));
}

TEST_CASE("rotary turns pairs and back") {
  for (const DType dtype : {f64, f32, f16, bf16})
    for (const auto& [T, D] : {std::pair<int64_t, int64_t>{1, 2}, {5, 8}, {7, 12}, {33, 64}, {3, 34}, {0, 4}, {4, 0}}) {
      const Tensor angle = random_tensor({T, D / 2}, f64, 1);
      const DType table = size_of(dtype) == 2 ? f32 : dtype;
      std::vector<double> c = angle.to_vector<double>(), s = c;
      for (double& x : c) x = std::cos(x);
      for (double& x : s) x = std::sin(x);
      const Tensor cosine = Tensor::from(c, {T, D / 2}).to(table), sine = Tensor::from(s, {T, D / 2}).to(table);
      const Tensor x = random_tensor({2, T, 3, D}, dtype, 2).transpose(1, 2);
      const auto in = x.to_vector<double>();
      auto wanted = in;
      for (size_t row = 0; row < size_t(6 * T); ++row)
        for (size_t i = 0; i < size_t(D / 2); ++i) {
          const size_t a = row * size_t(D) + i, b = a + size_t(D / 2), t = row % size_t(T) * size_t(D / 2) + i;
          wanted[a] = in[a] * c[t] - in[b] * s[t];
          wanted[b] = in[b] * c[t] + in[a] * s[t];
        }
      const double tolerance = dtype == f64 ? 1e-15 : dtype == f32 ? 1e-6 : dtype == f16 ? 2e-3 : 2e-2;
      const Tensor y = rotary(x, cosine, sine);
      check_attention(y, wanted, tolerance);
      check_attention(rotary(y, cosine, sine, true), in, tolerance);
      // Rotate packed heads; the last head is left alone.
      Tensor packed = x.transpose(1, 2).reshape({2, T, 3 * D});
      const Tensor before = packed.clone(), turned = rotary_packed(packed, 2, 3, cosine, sine),
                   by_head = turned.view({2, T, 3, D}).transpose(1, 2);
      CHECK(equal(packed, before));
      CHECK(equal(by_head.narrow(1, 0, 2), y.narrow(1, 0, 2)));
      CHECK(equal(by_head.narrow(1, 2, 1), x.narrow(1, 2, 1)));
      packed = before.clone();
      const void* const place = packed.raw_data();
      const Tensor over = rotary_packed(std::move(packed), 2, 3, cosine, sine);
      CHECK(over.raw_data() == place);
      CHECK(equal(over, turned));
      if (table == dtype) continue;
      check_attention(rotary(x, cosine.to(dtype), sine.to(dtype)), wanted, 2 * tolerance);
    }
}

TEST_CASE("wrong calls are named") {
  const Tensor q = zeros({2, 4, 5, 8}), k = zeros({2, 2, 6, 8}), v = k;
  const AttentionResult r = attention(q, k, v);
  CHECK_ERROR(attention(zeros({4, 5, 8}), k, v), "[attention] expected q (B, H, T, D)");
  CHECK_ERROR(attention(q, zeros({2, 3, 6, 8}), v), "multiple of the heads of k, got 4 and 3");
  CHECK_ERROR(attention(q, zeros({2, 2, 6, 4}), v), "expected k of shape (2, 2, 6, 8), got (2, 2, 6, 4)");
  CHECK_ERROR(attention(q, k, zeros({2, 2, 7, 8})), "expected v of shape (2, 2, 6, 8), got (2, 2, 7, 8)");
  CHECK_ERROR(attention(q, k.to(f64), v), "[attention] expected one dtype, got f32 and f64");
  CHECK_ERROR(attention(q.to(i64), k, v), "expected a floating dtype, got i64");
  CHECK_ERROR(attention(q, Tensor(), v), "undefined");
  CHECK_ERROR(attention(q, k, v, zeros({5, 5})), "= (2, 4, 5, 6), got (5, 5)");
  CHECK_ERROR(attention(q, k, v, zeros({5, 6}, {.dtype = i32})), "expected a mask of dtype bool or f32, got i32");
  CHECK_ERROR(attention(q, k, v, {}, {.scale = 0, .dropout = 1.5}), "from 0 to 1, got 1.5");
  CHECK_ERROR(attention(q, k, v, {}, {.scale = inf}), "finite scale");
  CHECK_ERROR(attention(q, k, v, {}, {.causal = true, .window = -1}),
              "expected a window of at least one key, with causal, or 0 for none, got -1");
  CHECK_ERROR(attention(q, k, v, {}, {.window = 3}), "got 3 without causal");
  CHECK_ERROR(attention(q, k, v, {}, {.causal = true, .window = 3, .layout = random_layout(16, 6, 1, 1)}),
              "a window cannot be combined with a block layout");
  CHECK_ERROR(attention_grad(zeros({2, 4, 5, 7}), q, k, v, {}, r, {.scale = 0}), "expected grad of shape (2, 4, 5, 8)");
  CHECK_ERROR(attention_grad(q, q, k, v, {}, {r.out, r.out}, {.scale = 0}),
              "expected the saved lse of shape (2, 4, 5)");
  CHECK(contains(message([&] {
                   Tensor gq = zeros({2, 4, 8, 5}).transpose(2, 3), gk = zeros({2, 2, 6, 8}), gv = gk.clone();
                   attention_grad_into(q, q, k, v, {}, r, {.scale = 0}, gq, gk, gv);
                 }),
                 "expected outputs with stride 1 in the last dim"));
  CHECK_ERROR(rotary(zeros({5, 7}), zeros({5, 3}), zeros({5, 3})),
              "[rotary] expected x of shape (..., T, D) with D even");
  CHECK_ERROR(rotary(zeros({5, 8}), zeros({4, 4}), zeros({5, 4})), "(T, D / 2) = (5, 4), got (4, 4)");
  CHECK_ERROR(rotary_packed(zeros({2, 5, 24}), 4, 3, zeros({5, 4}), zeros({5, 4})),
              "[rotary_packed] expected x (B, T, C), with C a multiple of heads = 3 and 0 to heads rotated");
  CHECK_ERROR(rotary_packed(zeros({2, 5, 24}), 2, 3, zeros({5, 5}), zeros({5, 5})),
              "[rotary_packed] expected a cosine (T, at most 4) for heads of 8, got (5, 5)");
}
