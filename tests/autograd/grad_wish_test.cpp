// A norm's backward sums the gradient of a bias beside the gradient that it writes (autograd/grad_wish.h). Whatever
// comes between norm and layer, the bias gets the bits of column_sums() of the gradient that its layer gets.
#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <vector>

#include "autograd/activation_checkpoint.h"
#include "autograd/ops.h"
#include "autograd/split_backward.h"
#include "tensor/ops.h"
#include "tensor/random.h"

using namespace lockstep;

namespace {

/// The inputs of the rows below. All of them require a gradient.
struct Model {
  Variable x, w, b, residual, scale, shift;

  explicit Model(DType dtype) {
    manual_seed(11);
    const auto leaf = [dtype](const Shape& shape) { return Variable(randn(shape).to(dtype), true); };
    x = leaf({5, 9, 16}), w = leaf({24, 16}), b = leaf({24}), residual = leaf({5, 9, 24});
    scale = leaf({24}), shift = leaf({24});
  }
  std::vector<Variable> leaves() const { return {x, w, b, residual, scale, shift}; }
};

/// The output of the layer with the bias, the sum that the norm reads, and the norm.
struct Results {
  Variable layer, sum, norm;
};
struct WishRow {
  const char* name;
  std::function<SumAndNorm(const Model& m, const Variable& y)> norm;  // y: the layer's output
  bool adds = false;                                                  // the layer is linear_add(), not linear()

  Results run(const Model& m) const {
    const Variable y = adds ? linear_add(m.residual, m.x, m.w, m.b) : linear(m.x, m.w, m.b);
    const SumAndNorm both = norm(m, y);
    return {y, both.sum, both.norm};
  }
};
using At = const Variable&;
const WishRow wish_rows[] = {
    {"linear_add, layer_norm",
     [](const Model& m, At y) {
       return SumAndNorm{y, layer_norm(y, {24}, m.scale, m.shift)};
     },
     true},
    {"linear, rms_norm",
     [](const Model& m, At y) {
       return SumAndNorm{y, rms_norm(y, m.scale)};
     }},
    {"linear, add_norm", [](const Model& m, At y) { return add_norm(m.residual, y, {24}, m.scale, m.shift, {}); }},
    {"linear, add_norm with dropout",
     [](const Model& m, At y) { return add_norm(m.residual, y, {24}, m.scale, m.shift, {.p = 0.3}); }},
    {"linear, add_dropout, rms_norm",
     [](const Model& m, At y) {
       const Variable sum = add_dropout(m.residual, y, 0.3);
       return SumAndNorm{sum, rms_norm(sum, m.scale)};
     }},
    {"linear, layer_norm over two dims",
     [](const Model&, At y) {
       return SumAndNorm{y, layer_norm(y, {9, 24})};
     }},
    {"linear, two norms",
     [](const Model& m, At y) {
       return SumAndNorm{y, add(layer_norm(y, {24}, m.scale), rms_norm(y, m.shift))};
     }},
};

/// Says if another operation reads the sum, too, and if it is recorded before or after the norm.
enum class Reader { none, first, last };

Variable loss_of(const Results& r, Reader reader) {
  const Tensor a = randn(r.norm.shape()).to(r.norm.dtype());
  Variable loss = sum(mul(r.norm, a));
  if (reader == Reader::last) loss = add(loss, sum(mul(r.sum, a)));
  return loss;
}

void check_bias(const Model& m, const Tensor& of_layer, const std::string& what) {
  REQUIRE(m.b.grad().defined());
  CHECK_MESSAGE(equal(m.b.grad(), column_sums(as_matrix(of_layer))), what);
}

}  // namespace

TEST_CASE("gradient of a bias: the norm's sums are those of the gradient that arrives") {
  enum class Hook { none, clone, change, in_place, view };
  for (const DType dtype : {f32, bf16}) {
    for (const WishRow& row : wish_rows) {
      for (const Reader reader : {Reader::none, Reader::first, Reader::last}) {
        std::vector<Tensor> plain;
        for (const Hook hook : {Hook::none, Hook::clone, Hook::change, Hook::in_place, Hook::view}) {
          const Model m(dtype);
          manual_seed(5);
          Results r = row.run(m);
          const Variable early = reader == Reader::first ? sum(square(r.sum)) : Variable();
          if (hook != Hook::none)
            r.sum.on_grad([hook](const Tensor& grad) {
              if (hook == Hook::clone) return grad.clone();
              if (hook == Hook::change) return mul_scalar(grad, 2);
              if (hook == Hook::view) return grad.transpose(0, 0).narrow(0, 0, 1).expand(grad.shape());
              mul_scalar_(grad, -1);
              return Tensor();
            });
          Tensor of_layer;  // what the layer gets, after the hook
          r.layer.on_grad([&](const Tensor& grad) {
            of_layer = grad.clone();
            return Tensor();
          });
          manual_seed(6);
          Variable loss = loss_of(r, reader);
          if (early.defined()) loss = add(loss, early);
          loss.backward();
          const std::string what =
              std::string(row.name) + ", reader " + std::to_string(int(reader)) + ", hook " + std::to_string(int(hook));
          check_bias(m, of_layer, what);
          if (hook == Hook::none)
            for (const Variable& leaf : m.leaves()) plain.push_back(leaf.grad());
          if (hook != Hook::clone) continue;
          for (size_t i = 0; i < plain.size(); ++i) {
            const Tensor grad = m.leaves()[i].grad();
            CHECK_MESSAGE((plain[i].defined() ? equal(plain[i], grad) : !grad.defined()), what, ", leaf ", i);
          }
        }
      }
    }
  }
}

TEST_CASE("gradient of a bias: the same bits in two passes, in a second pass, recomputed and across a boundary") {
  for (const WishRow& row : wish_rows) {
    CAPTURE(row.name);
    const auto run = [&](const Model& m) {
      manual_seed(5);
      const Results r = row.run(m);
      manual_seed(6);
      return loss_of(r, Reader::last);
    };
    const Model full(f32), parts(f32), twice(f32), again(f32), cut(f32);
    run(full).backward();
    {
      SplitBackward split(run(parts), {parts.x, parts.residual});
      split.finish();
    }
    const Variable loss = run(twice);
    loss.backward({}, true);
    for (Variable leaf : twice.leaves()) leaf.clear_grad();
    loss.backward();
    checkpoint([&](const Variable&) { return run(again); }, again.x).backward();
    {  // as a stage of a pipeline: the norm belongs to the next stage
      manual_seed(5);
      const Results r = row.run(cut);
      manual_seed(6);
      Variable root = loss_of(r, Reader::last);
      const std::vector<Tensor> grads = gradients(root, {r.layer}, {}, true);
      r.layer.backward(grads[0], true);
    }
    for (const Model* other : {&parts, &twice, &again, &cut}) CHECK(equal(full.b.grad(), other->b.grad()));
    CHECK(equal(full.w.grad(), parts.w.grad()));
    CHECK(equal(full.w.grad(), cut.w.grad()));
  }
}
