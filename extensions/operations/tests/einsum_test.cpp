// Einstein summation against products and sums, and rejected arguments.
#include <doctest/doctest.h>

#include "extensions/operations/operations.h"
#include "tests/devices.h"
#include "tests/messages.h"
#include "tests/tensor/products.h"

using namespace lockstep;
using namespace testing::products;

TEST_CASE("einsum") {
  const Tensor a = values({3, 4}, 1), b = values({4, 5}, 2), c = values({5, 2}, 3), s = values({4, 4}, 4),
               v = values({4}, 5);
  struct Row {
    const char* equation;
    std::vector<Tensor> in;
    Tensor wanted;
  };
  const Tensor q = values({2, 3, 4, 5}, 6), k = values({2, 3, 6, 5}, 7);
  const Row rows[] = {
      {"ij,jk->ik", {a, b}, matmul(a, b)},
      {" ij , jk ", {a, b}, matmul(a, b)},
      {"ij,jk->ki", {a, b}, matmul(a, b).t()},
      {"ij,jk,kl->il", {a, b, c}, matmul(matmul(a, b), c)},
      {"ij->ji", {a}, a.t()},
      {"ba", {a}, a.t()},
      {"ij->", {a}, sum(a)},
      {"ij->j", {a}, sum(a, {0})},
      {"ii->i", {s}, s.diagonal()},
      {"ii", {s}, sum(s.diagonal())},
      {"ij,j->i", {a, v}, matmul(a, v)},
      {"i,i->", {v, v}, matmul(v, v)},
      {"i,j->ij", {v, v}, outer(v, v)},
      {"i,i->i", {v, v}, mul(v, v)},
      {"ij,kj->i", {a, s}, matmul(a, sum(s, {0}))},
      {"bhqd,bhkd->bhqk", {q, k}, matmul(q, k.transpose(2, 3))},
      {"bhqd,bhkd->bqhk", {q, k}, matmul(q, k.transpose(2, 3)).transpose(1, 2)},
      {"...qd,...kd->...qk", {q, k}, matmul(q, k.transpose(2, 3))},
      {"... d , ...d", {q, q}, sum(mul(q, q), {3})},
      {"...d->d", {q}, sum(q, {0, 1, 2})},
      {"i...->...i", {q}, q.permute({1, 2, 3, 0})},
      {"...ij,jk", {q, b.t()}, matmul(q, b.t())},
      // sizes of 1 broadcast, as in PyTorch: summed letters, kept ones, diagonals
      {"ij,jk->ik", {a.narrow(1, 0, 1), b}, matmul(a.narrow(1, 0, 1).expand({3, 4}), b)},
      {"ij,jk->ijk", {a.narrow(0, 0, 1), b.narrow(0, 0, 1)}, mul(a.narrow(0, 0, 1).unsqueeze(-1), b.narrow(0, 0, 1))},
      {"i,i->", {v, v.narrow(0, 1, 1)}, sum(v) * v[1]},
      {"i,i->i", {v.narrow(0, 1, 1), v}, v[1] * v},
      {"ii,i->i", {s.narrow(0, 0, 1).narrow(1, 0, 1), v}, s[0][0] * v},
      {"bhqd,bhkd->bhqk",
       {q.narrow(0, 0, 1), k.narrow(1, 0, 1)},
       matmul(q.narrow(0, 0, 1), k.narrow(1, 0, 1).transpose(2, 3))}};
  for (const Row& r : rows) {
    CAPTURE(r.equation);
    const Tensor out = einsum(r.equation, r.in);
    CHECK(out.shape() == r.wanted.shape());
    CHECK(out.is_contiguous());
    check_close(out, r.wanted.to_vector<double>(), 1e-6);
  }
}

TEST_CASE_FIXTURE(OnCpu, "einsum: integers in every dtype") {
  for (const DType dtype : {i64, i32, i8, u8}) {
    const Tensor a = remainder(arange(350, {.dtype = i64}) * 7919, 251).to(dtype).reshape({5, 70}),
                 b = remainder(arange(2310, {.dtype = i64}) * 7907, 251).to(dtype).reshape({70, 33});
    CAPTURE(dtype);
    CHECK(equal(einsum("ij, jk -> ki", std::vector<Tensor>{a, b}), matmul(a, b).t().contiguous()));
    CHECK(equal(einsum("ij, jk -> i", std::vector<Tensor>{a, b}), sum(matmul(a, b), {1}).to(dtype)));
  }
}

TEST_CASE("einsum: Errors name the wrong argument") {
  const Tensor a = zeros({3, 4}), b = zeros({5, 6});
  CHECK_REJECTED(einsum, ("i..,ij", {a, b}), "an ellipsis of three dots, once in an operand, got \"i..,ij\"");
  CHECK_REJECTED(einsum, ("ijk...->i", {a}), "operand 0 to have at least 3 dims");
  CHECK_REJECTED(einsum, ("...i,...j->ij", {zeros({2, 3}), zeros({4, 3})}),
                 "the dims of ... to broadcast in \"...i,...j->ij\", got sizes 2 and 4");
  CHECK_REJECTED(einsum, ("ij,jk->ik", {a, b}), "j to have size 4 everywhere (or 1, which broadcasts), got (5, 6)");
  CHECK_REJECTED(einsum, ("ii->i", {a}), "i to have size 3 everywhere in an operand, got (3, 4)");
  CHECK_REJECTED(einsum, ("ii,i->i", {zeros({1, 3}), zeros({3})}), "i to have size 1 everywhere in an operand");
  CHECK_REJECTED(einsum, ("ij,jk->ik", {a}), "2 operands");
  CHECK_REJECTED(einsum, ("ijk->i", {a}), "operand 0 to have 3 dims");
  CHECK_REJECTED(einsum, ("ij->ik", {a}), "output letters that occur");
  CHECK_ERROR(einsum("ij->ii", {a}), "twice");
  CHECK_REJECTED(einsum, ("i1->i", {a}), "letters");
  const Devices two;
  CHECK_ERROR(einsum("ij,ij->i", {a, a.to(second)}), "expected one device, got (3, 4)");
}
