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
  TokenOrder order = TokenOrder::contiguous;
  DType dtype = f64;
  int64_t window = 0;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << name_of(c.kind) << " P " << c.ranks << " B " << c.batch << " H " << c.heads << " G " << c.groups
             << " T " << c.tokens << " D " << c.width << (c.causal ? " causal " : " ") << name_of(c.order) << " "
             << name_of(c.dtype) << " window " << c.window;
}

struct Result {
  Tensor out, q, k, v;
  dist::Traffic forward, backward;
};

Result run(const Variable& q, const Variable& k, const Variable& v, const Tensor& grad,
           const std::function<Variable()>& attend, const dist::ProcessGroup* group = nullptr) {
  const Variable out = attend();
  Result r{.out = out.tensor()};
  if (group) r.forward = group->traffic();
  out.backward(grad);
  if (group) r.backward = group->traffic();
  r.q = q.grad();
  r.k = k.grad();
  r.v = v.grad();
  return r;
}

struct Inputs {
  Tensor q, k, v, grad;
};
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
  return c.kind == ContextKind::ring ? ring_attention(q, k, v, args, group, c.order)
                                     : ulysses_attention(q, k, v, args, group);
}

std::vector<Result> run_cut(const Case& c, const Inputs& in) {
  return on_ranks<Result>(c.ranks, [&](int rank) {
    const auto group = everyone();
    const auto mine = [&](const Tensor& x) { return slice(x, 2, c.ranks, rank, c.order); };
    const Variable q(mine(in.q), true), k(mine(in.k), true), v(mine(in.v), true);
    return run(
        q, k, v, mine(in.grad), [&] { return attend(c, q, k, v, group); }, group.get());
  });
}

}  // namespace

TEST_CASE("attention over ranks equals attention in one process, forward and backward") {
  std::vector<Case> cases;
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (const bool causal : {false, true}) {
      cases.push_back({ContextKind::ring, ranks, 1, 2, 2, 6 * ranks, 4, causal});
      cases.push_back({ContextKind::ring, ranks, 2, 4, 2, 4 * ranks, 8, causal, TokenOrder::zigzag});
      cases.push_back({ContextKind::ulysses, ranks, 1, 2 * ranks, 2 * ranks, 3 * ranks, 4, causal});
    }
  }
  for (const auto& [ranks, heads, groups] : {std::tuple{4, 8, 2}, {2, 6, 3}, {4, 4, 1}, {2, 8, 4}})
    cases.push_back({ContextKind::ulysses, ranks, 2, heads, groups, 8, 4, true});  // fewer key heads than query heads
  cases.push_back({ContextKind::ring, 3, 1, 3, 1, 9, 5, true});
  cases.push_back({ContextKind::ring, 2, 1, 1, 1, 2, 1, true});  // one token per rank
  cases.push_back({ContextKind::ring, 2, 0, 2, 2, 4, 4, true});  // an empty batch
  cases.push_back({ContextKind::ulysses, 2, 2, 4, 2, 20, 4, true, TokenOrder::contiguous, f64, 6});
  cases.push_back(
      {ContextKind::ring, 2, 1, 2, 2, 8, 4, true, TokenOrder::zigzag, f64, 8});  // a window as long as the sequence
  cases.push_back({ContextKind::ulysses, 2, 0, 2, 2, 4, 4, true});
  cases.push_back({ContextKind::ring, 4, 1, 2, 2, 520, 16, true, TokenOrder::zigzag});
  for (const DType dtype : {f32, bf16}) {
    cases.push_back({ContextKind::ring, 4, 2, 2, 2, 64, 8, true, TokenOrder::zigzag, dtype});
    cases.push_back({ContextKind::ring, 3, 2, 2, 2, 63, 8, false, TokenOrder::contiguous, dtype});
    cases.push_back({ContextKind::ulysses, 4, 2, 4, 4, 64, 8, true, TokenOrder::contiguous, dtype});
  }
  for (const Case& c : cases) {
    CAPTURE(c);
    const Inputs in = make(c);
    const Variable q(in.q, true), k(in.k, true), v(in.v, true);
    const Result full = run(
        q, k, v, in.grad, [&] { return attention(q, k, v, {}, {.scale = 0, .causal = c.causal, .window = c.window}); });
    const std::vector<Result> parts = run_cut(c, in);
    const double tolerance = c.dtype == f64 ? 1e-12 : c.dtype == f32 ? 1e-5 : 0.04;
    const auto joined = [&](Tensor Result::*field) {
      std::vector<Tensor> tensors;
      for (const Result& r : parts) tensors.push_back(r.*field);
      return join(tensors, 2, c.order);
    };
    CHECK(max_difference(joined(&Result::out), full.out) < tolerance);
    CHECK(max_difference(joined(&Result::q), full.q) < tolerance);
    CHECK(max_difference(joined(&Result::k), full.k) < tolerance);
    CHECK(max_difference(joined(&Result::v), full.v) < tolerance);
    // Bytes by the formulas of attention.h; heads sent to several ranks count each time.
    const int64_t e = size_of(c.dtype), w = std::max<int64_t>(e, 4), one = c.batch * c.tokens / c.ranks * c.width,
                  P = c.ranks;
    const int64_t sent_heads = c.groups % P == 0 ? c.groups : P % c.groups == 0 ? P : c.heads;
    const int64_t forward = c.kind == ContextKind::ring ? (P - 1) * 2 * c.groups * one * e
                                                        : (P - 1) * (2 * c.heads + 2 * sent_heads) * one / P * e;
    const int64_t backward = c.kind == ContextKind::ring && P > 1 ? forward + P * 2 * c.groups * one * w : forward;
    for (const Result& r : parts) {
      CHECK(r.forward.sent == forward);
      CHECK(r.backward.sent - r.forward.sent == backward);
    }
  }
}

TEST_CASE("dropout in shared attention: the backward uses the forward's masks, which differ from rank to rank") {
  for (const Case& c : {Case{ContextKind::ring, 3, 1, 2, 2, 12, 4, true, TokenOrder::zigzag},
                        Case{ContextKind::ulysses, 2, 1, 4, 4, 8, 4, false}}) {
    CAPTURE(c);
    const Inputs in = make(c);
    const auto slopes = on_ranks<std::vector<double>>(c.ranks, [&](int rank) {
      const auto group = everyone();
      const auto mine = [&](const Tensor& x) { return slice(x, 2, c.ranks, rank, c.order); };
      const auto loss = [&](double shift) {  // moves q and v along fixed directions
        manual_seed(3);
        const Variable q(add(mine(in.q), mul_scalar(mine(in.grad), shift)), true), k(mine(in.k), true),
            v(add(mine(in.v), mul_scalar(mine(in.k), shift)), true);
        const Variable out = attend(c, q, k, v, group, 0.4);
        out.backward(mine(in.grad));
        return std::pair(sum(mul(out.tensor(), mine(in.grad))).item(),
                         sum(mul(q.grad(), mine(in.grad))).item() + sum(mul(v.grad(), mine(in.k))).item());
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
  const Case c{ContextKind::ulysses, 2, 2, 4, 2, 8, 4, true};
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
  const auto error = [](int ranks, const std::function<void(const std::shared_ptr<dist::ProcessGroup>&, int)>& fn) {
    return message(
        [&] { dist::spawn(ranks, [&](int rank) { fn(everyone(), rank); }, {.timeout = dist::Seconds(20)}); });
  };
  const Tensor x = zeros({1, 6, 4, 2}), one_head = zeros({1, 1, 4, 2}), odd = zeros({1, 6, 3, 2});
  CHECK(contains(error(4, [&](auto group, int) { ulysses_attention(x, x, x, {}, group); }),
                 "expected a number of heads divisible by the 4 ranks, got 6; ring_attention takes any number"));
  CHECK(contains(error(2, [&](auto group, int) { ring_attention(odd, odd, odd, {}, group, TokenOrder::zigzag); }),
                 "expected an even number of tokens at each rank (zigzag), got 3"));
  CHECK(contains(error(2, [&](auto group, int) { ring_attention(x, odd, odd, {}, group); }),
                 "of the same tokens, got (1, 6, 4, 2), (1, 6, 3, 2)"));
  CHECK(contains(error(2, [&](auto group, int) { ring_attention(one_head, x, x, {}, group); }),
                 "multiple of the heads of k, got 1 and 6"));
  CHECK(contains(error(2, [&](auto group, int) { ring_attention(x, x.to(f64), x.to(f64), {}, group); }),
                 "of one dtype, got f32, f64"));
  CHECK(contains(error(2, [&](auto, int) { ring_attention(x, x, x, {}, nullptr); }),
                 "expected a process group, got none"));
  CHECK(contains(error(3,
                       [&](auto group, int rank) {
                         if (rank == 1) fail("oh no");  // the other ranks wait for rank 1's keys
                         ring_attention(x, x, x, {.scale = 1}, group);
                       }),
                 "oh no"));
  const std::string uneven = error(2, [&](auto group, int rank) {
    const Tensor& part = rank == 0 ? x : odd;
    ring_attention(part, part, part, {.scale = 1}, group);
  });
  CHECK_MESSAGE((contains(uneven, "f32 x 96") && contains(uneven, "f32 x 72")), uneven);
}

TEST_CASE("the plan: every token once, every score that is seen once, zigzag keeps ranks equally busy") {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (const TokenOrder order : {TokenOrder::contiguous, TokenOrder::zigzag}) {
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
          if (order == TokenOrder::zigzag)
            for (const double w : work) CHECK(w == work[0]);
        }
        bool right = true;
        for (int64_t i = 0; i < full; ++i)
          for (int64_t j = 0; j < full; ++j) right &= visible[size_t(i * full + j)] == (!causal || j <= i);
        CHECK(right);
      }
    }
  }
  CHECK_ERROR(positions(12, 4, 0, TokenOrder::zigzag),
              "divisible by 8 (4 ranks, zigzag), got 12; the next such number is 16");
  CHECK_ERROR(positions(12, 4, 4, TokenOrder::zigzag), "a rank from 0 to ranks - 1 = 3, got 4");
}
