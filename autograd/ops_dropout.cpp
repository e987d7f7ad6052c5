// Derivatives of dropout and embedding.
#include "autograd/grad_wish.h"
#include "autograd/recorded.h"
#include "autograd/tape.h"

namespace lockstep {

Variable dropout(const Variable& x, double p, bool training, const PartOf& part) {
  LOCKSTEP_CHECK(p >= 0 && p <= 1, "[dropout] expected p in [0, 1], got ", p);
  if (!training || p == 0) return x;
  return dropout(x, p, next_random_key(x.device()), part);  // backward draws the mask again from the key
}

Variable dropout(const Variable& x, double p, const PhiloxKey& key, const PartOf& part) {
  return on_tape("dropout", {&x}, dropout(x.tensor(), p, key, part),
                 [p, key, part](auto& back) { back.give(0, dropout(back.grad(), p, key, part)); });
}

Variable add_dropout(const Variable& residual, const Variable& x, double p, bool training, const PartOf& part) {
  LOCKSTEP_CHECK(p >= 0 && p <= 1, "[add_dropout] expected p in [0, 1], got ", p);
  if (!training || p == 0) return add(residual, x);
  if (residual.dtype() != x.dtype() || residual.shape() != x.shape()) return add(residual, dropout(x, p, true, part));
  const PhiloxKey key = next_random_key(x.device());
  return record_add_dropout(residual, x, add_dropout(residual.tensor(), x.tensor(), p, key, part), p, key, part);
}

namespace {
struct AddDropoutBackward {
  double p;
  PhiloxKey key;
  PartOf part;
  std::shared_ptr<GradWish> wish;

  void operator()(Backward& back) const {
    back.give(0, back.grad());
    const Tensor dropped = wish ? wish->take(back.grad()) : Tensor();
    if (back.needs(1)) back.give(1, dropped.defined() ? dropped : dropout(back.grad(), p, key, part));
  }
  void operator()(RecordedBackward& back) const {
    back.give(0, back.grad());
    if (back.needs(1)) back.give(1, dropout(back.grad(), p, key, part));
  }
};

struct EmbeddingBackward {
  Saved index;
  Shape shape;
  int64_t padding_index;

  /// Few rows get a gradient: add them to the gradient so far (e.g. of a tied output layer), not to zeros.
  void operator()(Backward& back) const {
    const Tensor sum = back.partial(0);
    const Tensor entire = sum.defined() ? sum : zeros(shape, {back.grad().dtype(), back.grad().device()});
    embedding_grad_(entire, back.grad(), index.get("embedding"), padding_index);
    if (!sum.defined()) back.give(0, entire);
  }
  void operator()(RecordedBackward& back) const {
    const Tensor rows = index.get("embedding").reshape({index.get("embedding").numel(), 1});
    const Variable grad = back.grad().reshape({rows.size(0), shape[1]});
    const Tensor padded = eq(rows, full({}, padding_index, {i64, rows.device()}));
    const Variable none = zeros(shape, {grad.dtype(), grad.device()});
    back.give(0, scatter_add(none, 0, rows.expand(grad.shape()), masked_fill(grad, padded, 0)));
  }
};
}  // namespace

Variable record_add_dropout(const Variable& residual, const Variable& x, Tensor out, double p, const PhiloxKey& key,
                            const PartOf& part) {
  if (!needs_grad({&residual, &x})) return out;
  std::shared_ptr<GradWish> wish;
  if (x.requires_grad() && part.count == 1) {
    wish = std::make_shared<GradWish>();
    wish->p = p, wish->key = key;
    if (const auto of_x = wish_of(x); of_x && of_x->p == 0) wish->next = of_x;
  }
  return with_wish(record("add_dropout", {&residual, &x}, std::move(out), AddDropoutBackward{p, key, part, wish}),
                   wish);
}

Variable embedding(const Variable& weight, const Tensor& index, int64_t padding_index) {
  Tensor out = embedding(weight.tensor(), index);
  LOCKSTEP_CHECK(padding_index >= -1 && padding_index < weight.size(0), "[embedding] expected padding_index in [-1, ",
                 weight.size(0), "), got ", padding_index);
  if (!needs_grad({&weight})) return out;
  return record("embedding", {&weight}, std::move(out), EmbeddingBackward{index, weight.shape(), padding_index});
}

}  // namespace lockstep
