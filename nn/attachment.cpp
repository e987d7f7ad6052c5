// The products of layers with attachments. See attachment.h.
#include "nn/attachment.h"

namespace lockstep::nn {

Variable multiply(const Product& p) {
  if (p.arithmetic && p.arithmetic->takes(p.x, p.weight)) return p.arithmetic->linear(p, {});
  return linear(p.x, p.weight, p.bias, p.activation);
}

Variable Attachment::product(const Variable& x, const Variable& weight, const Variable& bias, Activation activation,
                             bool training) const {
  const Variable stored = store ? store->weight() : Variable();
  const std::shared_ptr<Arithmetic> locked = arithmetic.lock();
  const Product product{x, store ? stored : weight, bias, activation, locked.get(), training};
  return place ? place(product) : multiply(product);
}

}  // namespace lockstep::nn
