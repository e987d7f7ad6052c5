// Ulysses and ring attention against attention in one process: values, gradients, bytes, dropout, errors; and the
// ring's schedule.
#include <doctest/doctest.h>

#include "tests/parallel/sequence/util.h"

using namespace testing;

namespace {

struct Case {
  ContextKind kind;
  int ranks;
  int64_t batch, heads, groups, tokens, width;
  bool causal;
  TokenOrder order = contiguous;
  DType dtype = f64;
  int64_t window = 0;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << name_of(c.kind) << " P " << c.ranks << " B " << c.batch << " H " << c.heads << " G " << c.groups
             << " T " << c.tokens << " D " << c.width << (c.causal ? " causal " : " ") << name_of(c.order) << " "
             << name_of(c.dtype) << " window " << c.window;
}

struct Inputs {
  Tensor q, k, v, grad;
};
/// The output, the gradients of q, k and v, and the bytes that forward and backward sent.
struct Result {
  std::vector<Tensor> tensors;
  int64_t forward = 0, backward = 0;
};
using Attend = std::function<Variable(const Variable& q, const Variable& k, const Variable& v)>;

Result run(const Inputs& in, const Attend& attend, const dist::ProcessGroup* group = nullptr) {
  const auto sent = [&] { return group ? group->traffic().sent : 0; };
  const Variable q(in.q, true), k(in.k, true), v(in.v, true), out = attend(q, k, v);
  const int64_t forward = sent();
  out.backward(in.grad);
  return {{out.tensor(), q.grad(), k.grad(), v.grad()}, forward, sent() - forward};
}

Inputs make(const Case& c) {
  manual_seed(7);
  const auto draw = [&](int64_t heads) {
    return randn({c.batch, heads, c.tokens, c.width}, {.dtype = f64}).to(c.dtype);
  };
  return {draw(c.heads), draw(c.groups), draw(c.groups), draw(c.heads)};
}

Variable attend(const Case& c, const Variable& q, const Variable& k, const Variable& v,
                const std::shared_ptr<dist::ProcessGroup>& group, double dropout = 0) {
  const AttentionArgs args{.scale = 0, .causal = c.causal, .window = c.window, .dropout = dropout};
  return c.kind == ring ? ring_attention(q, k, v, args, group, c.order) : ulysses_attention(q, k, v, args, group);
}

std::vector<Result> run_cut(const Case& c, const Inputs& in) {
  return on_ranks<Result>(c.ranks, [&](int rank) {
    const auto group = everyone();
    const auto mine = [&](const Tensor& x) { return slice(x, 2, c.ranks, rank, c.order); };
    return run(
        {mine(in.q), mine(in.k), mine(in.v), mine(in.grad)},
        [&](auto& q, auto& k, auto& v) { return attend(c, q, k, v, group); }, group.get());
  });
}

}  // namespace

TEST_CASE("attention over ranks equals attention in one process, forward and backward") {
  std::vector<Case> cases{{ring, 3, 1, 3, 1, 9, 5, true},
                          {ring, 2, 1, 1, 1, 2, 1, true},  // one token per rank
                          {ring, 2, 0, 2, 2, 4, 4, true},  // an empty batch
                          {ulysses, 2, 0, 2, 2, 4, 4, true},
                          {ulysses, 2, 2, 4, 2, 20, 4, true, contiguous, f64, 6},
                          {ring, 2, 1, 2, 2, 8, 4, true, zigzag, f64, 8},  // a window as long as the sequence
                          {ring, 4, 1, 2, 2, 520, 16, true, zigzag}};
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (const bool causal : {false, true}) {
      cases.push_back({ring, ranks, 1, 2, 2, 6 * ranks, 4, causal});
      cases.push_back({ring, ranks, 2, 4, 2, 4 * ranks, 8, causal, zigzag});
      cases.push_back({ulysses, ranks, 1, 2 * ranks, 2 * ranks, 3 * ranks, 4, causal});
    }
  }
  for (const auto& [ranks, heads, groups] : {std::tuple{4, 8, 2}, {2, 6, 3}, {4, 4, 1}, {2, 8, 4}})
    cases.push_back({ulysses, ranks, 2, heads, groups, 8, 4, true});  // fewer key heads than query heads
  for (const DType dtype : {f32, bf16})
    cases.insert(cases.end(), {{ring, 4, 2, 2, 2, 64, 8, true, zigzag, dtype},
                               {ring, 3, 2, 2, 2, 63, 8, false, contiguous, dtype},
                               {ulysses, 4, 2, 4, 4, 64, 8, true, contiguous, dtype}});
  for (const Case& c : cases) {
    CAPTURE(c);
    const Inputs in = make(c);
    const Result full = run(in, [&](auto& q, auto& k, auto& v) {
      return attention(q, k, v, {}, {.scale = 0, .causal = c.causal, .window = c.window});
    });
    const std::vector<Result> parts = run_cut(c, in);
    const double tolerance = c.dtype == f64 ? 1e-12 : c.dtype == f32 ? 1e-5 : 0.04;
    for (size_t i = 0; i < full.tensors.size(); ++i) {
      CAPTURE(i);
      std::vector<Tensor> of_ranks;
      for (const Result& r : parts) of_ranks.push_back(r.tensors[i]);
      CHECK(max_difference(join(of_ranks, 2, c.order), full.tensors[i]) < tolerance);
    }
    // Bytes by the formulas of attention.h; heads sent to several ranks count each time.
    const int64_t e = size_of(c.dtype), w = std::max<int64_t>(e, 4), one = c.batch * c.tokens / c.ranks * c.width,
                  P = c.ranks;
    const int64_t sent_heads = c.groups % P == 0 ? c.groups : P % c.groups == 0 ? P : c.heads;
    const int64_t forward =
        c.kind == ring ? (P - 1) * 2 * c.groups * one * e : (P - 1) * (2 * c.heads + 2 * sent_heads) * one / P * e;
    const int64_t backward = c.kind == ring && P > 1 ? forward + P * 2 * c.groups * one * w : forward;
    for (const Result& r : parts) {
      CHECK(r.forward == forward);
      CHECK(r.backward == backward);
    }
  }
}

TEST_CASE("dropout in shared attention: the backward uses the forward's masks, which differ from rank to rank") {
  for (const Case& c : {Case{ring, 3, 1, 2, 2, 12, 4, true, zigzag}, Case{ulysses, 2, 1, 4, 4, 8, 4, false}}) {
    CAPTURE(c);
    const Inputs in = make(c);
    const auto slopes = on_ranks<std::vector<double>>(c.ranks, [&](int rank) {
      const auto group = everyone();
      const auto mine = [&](const Tensor& x) { return slice(x, 2, c.ranks, rank, c.order); };
      const auto along = [&](const Tensor& a, const Tensor& b) { return sum(mul(a, mine(b))).item(); };
      const auto loss = [&](double shift) {  // moves q and v along fixed directions
        manual_seed(3);
        const Variable q(add(mine(in.q), mul_scalar(mine(in.grad), shift)), true), k(mine(in.k), true),
            v(add(mine(in.v), mul_scalar(mine(in.k), shift)), true);
        const Variable out = attend(c, q, k, v, group, 0.4);
        out.backward(mine(in.grad));
        return std::pair(along(out.tensor(), in.grad), along(q.grad(), in.grad) + along(v.grad(), in.k));
      };
      const double step = 1e-5;
      return std::vector<double>{(loss(step).first - loss(-step).first) / (2 * step), loss(0).second};
    });
    double numeric = 0, analytic = 0;
    for (const auto& s : slopes) numeric += s[0], analytic += s[1];
    CHECK(numeric == doctest::Approx(analytic).epsilon(1e-7));
    // With v = 1 an output is the sum of the kept weights, so equal inputs reveal the masks.
    const auto masks = on_ranks<Tensor>(c.ranks, [&](int) {
      const auto group = everyone();
      manual_seed(3);
      const Tensor q = zeros({1, 4, 8, 4}), v = ones({1, 4, 8, 4});
      return attend({c.kind, c.ranks, 1, 4, 4, 8, 4, false, c.order}, q, q, v, group, 0.5).tensor();
    });
    CHECK(!equal(masks[0], masks[1]));
  }
}

TEST_CASE("dropout in Ulysses: the masks of one process that draws the same key, of slices of heads, too") {
  const Case c{ulysses, 2, 2, 4, 2, 8, 4, true};
  const Inputs in = make(c);
  const AttentionArgs args{.scale = 0, .causal = true, .dropout = 0.4};
  for (const int64_t first : {0, 2}) {  // heads 0 to 3 and 2 to 5 of 6
    AttentionArgs sharded = args;
    if (first > 0) sharded.first_head = first, sharded.all_heads = 6;
    manual_seed(3);
    const Tensor full = attention(Variable(in.q), in.k, in.v, {}, sharded).tensor();
    const std::vector<Tensor> parts = on_ranks<Tensor>(2, [&](int rank) {
      const auto group = everyone();
      const auto mine = [&](const Tensor& x) { return Variable(slice(x, 2, 2, rank, c.order)); };
      manual_seed(3);
      return ulysses_attention(mine(in.q), mine(in.k), mine(in.v), sharded, group).tensor();
    });
    CHECK(max_difference(join(parts, 2, c.order), full) < 1e-12);
  }
}

TEST_CASE("shared attention rejects unsupported arguments on all ranks") {
  const Tensor x = zeros({1, 6, 4, 2}), one_head = zeros({1, 1, 4, 2}), odd = zeros({1, 6, 3, 2});
  struct Row {
    ContextKind kind;
    int ranks;
    Tensor q, kv;
    const char* part;  // of the message
    TokenOrder order = contiguous;
  };
  const Row rows[] = {
      {ulysses, 4, x, x, "expected a number of heads divisible by the 4 ranks, got 6; ring_attention takes any number"},
      {ring, 2, odd, odd, "expected an even number of tokens at each rank (zigzag), got 3", zigzag},
      {ring, 2, x, odd, "of the same tokens, got (1, 6, 4, 2), (1, 6, 3, 2)"},
      {ring, 2, one_head, x, "multiple of the heads of k, got 1 and 6"},
      {ring, 2, x, x.to(f64), "of one dtype, got f32, f64"}};
  for (const Row& row : rows) {
    const auto call = [&](int) { attend({.kind = row.kind, .order = row.order}, row.q, row.kv, row.kv, everyone()); };
    CHECK_ERROR(on_ranks(row.ranks, call), row.part);
  }
  CHECK_ERROR(on_ranks(2, [&](int) { ring_attention(x, x, x, {}, nullptr); }), "expected a process group, got none");
  const auto one_fails = [&](int rank) {
    const auto group = everyone();
    if (rank == 1) fail("oh no");  // the other ranks wait for rank 1's keys
    ring_attention(x, x, x, {.scale = 1}, group);
  };
  CHECK_ERROR(on_ranks(3, one_fails), "oh no");
  const std::string uneven = message([&] {
    on_ranks(2, [&](int rank) {
      const Tensor& part = rank == 0 ? x : odd;
      ring_attention(part, part, part, {.scale = 1}, everyone());
    });
  });
  CHECK_MESSAGE((contains(uneven, "f32 x 96") && contains(uneven, "f32 x 72")), uneven);
}

TEST_CASE("the plan: every token once, every score that is seen once, zigzag keeps ranks equally busy") {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (const TokenOrder order : {contiguous, zigzag}) {
      for (const bool causal : {false, true}) {
        const int64_t tokens = 4, full = tokens * ranks;
        std::vector<int> visible(size_t(full * full), 0);
        std::vector<std::vector<int64_t>> places;
        std::vector<Tensor> parts;
        const Tensor all = arange(double(full));
        for (int r = 0; r < ranks; ++r) {
          places.push_back(positions(full, ranks, r, order).to_vector<int64_t>());
          parts.push_back(slice(all, 0, ranks, r, order));
        }
        CHECK(equal(join(parts, 0, order), all));
        for (int step = 0; step < ranks; ++step) {
          std::vector<double> work;
          for (int r = 0; r < ranks; ++r) {
            const auto p = piece(tokens, ranks, r, step, order, causal);
            work.push_back(scores(p));
            if (!p) continue;
            const auto& keys = places[size_t(owner(ranks, r, step))];
            for (int64_t i = 0; i < p->queries; ++i)
              for (int64_t j = 0; j < (p->causal ? i + 1 : p->keys); ++j)
                ++visible[size_t(places[size_t(r)][size_t(p->query + i)] * full + keys[size_t(p->key + j)])];
          }
          if (order == zigzag)
            for (const double w : work) CHECK(w == work[0]);
        }
        bool right = true;
        for (int64_t i = 0; i < full; ++i)
          for (int64_t j = 0; j < full; ++j) right &= visible[size_t(i * full + j)] == (!causal || j <= i);
        CHECK(right);
      }
    }
  }
  CHECK_ERROR(positions(12, 4, 0, zigzag), "divisible by 8 (4 ranks, zigzag), got 12; the next such number is 16");
  CHECK_ERROR(positions(12, 4, 4, zigzag), "a rank from 0 to ranks - 1 = 3, got 4");
}
