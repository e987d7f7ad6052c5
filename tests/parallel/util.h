#pragma once
// Shared by the tests of data parallelism: small models, and a short training distributed over ranks and accumulation.
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "dist/process_group.h"
#include "nn/nn.h"
#include "parallel/ddp.h"
#include "tensor/random.h"
#include "tests/messages.h"
#include "tests/ranks.h"

namespace testing {

using namespace lockstep;

/// A Linear(in, out) with bias.
inline nn::Linear linear(int64_t in, int64_t out) {
  const nn::Linear::Options options{.in = in, .out = out};
  return nn::Linear(options);
}

/// Two hidden layers with dropout. Its bits reveal whether dropout is keyed by micro-batch.
struct Mlp : nn::Layer<Mlp> {
  nn::Linear a = linear(6, 40), b = linear(40, 24), c = linear(24, 3);
  double p = 0;
  Variable forward(const Variable& x) {
    return c(dropout(relu(b(dropout(gelu(a(x)), p, is_training()))), p, is_training()));
  }
  void fields(nn::Fields& f) override { f("a", a)("b", b)("c", c); }
};

/// A model whose forward uses only the branches that its flags select.
struct Branches : nn::Layer<Branches> {
  nn::Linear left = linear(3, 2), right = linear(3, 2), never = linear(3, 2);
  bool use_left = true, use_right = true, use_never = false;
  Variable forward(const Variable& x) {
    Variable y = x.narrow(1, 0, 2) * 0.5;
    if (use_left) y = y + left(x);
    if (use_right) y = y + right(x);
    if (use_never) y = y + never(x);
    return y;
  }
  void fields(nn::Fields& f) override { f("left", left)("right", right)("never", never); }
};

/// The loss of a micro-batch. Data and dropout depend on `step` and `micro_batch` only.
inline Variable loss_of(Mlp& net, int step, int micro_batch,
                        const std::function<Variable(const Variable&)>& forward = {}) {
  manual_seed(99);
  set_random_step(1000 + uint64_t(step), uint64_t(micro_batch));
  const Tensor x = randn({4, 6}), y = randint(0, 3, {4});
  manual_seed(5);
  set_random_step(uint64_t(step), uint64_t(micro_batch));
  return cross_entropy(forward ? forward(x) : net(x), y);
}

/// Tensors by name.
using Tensors = std::map<std::string, Tensor>;

/// Copies of all parameters.
inline Tensors copy_parameters(nn::Module& module) {
  Tensors all;
  for (auto& p : module.named_parameters()) all[p.name] = p.variable.tensor().clone();
  return all;
}
/// Copies of all gradients that are defined.
inline Tensors copy_gradients(nn::Module& module) {
  Tensors all;
  for (auto& p : module.named_parameters())
    if (p.variable.grad().defined()) all[p.name] = p.variable.grad().clone();
  return all;
}

/// The first name whose tensors differ in any bit; "" if none does.
inline std::string differing(const Tensors& a, const Tensors& b) {
  if (a.size() != b.size()) return "sizes";
  for (const auto& [name, tensor] : a)
    if (!b.count(name) || !equal(tensor, b.at(name))) return name;
  return "";
}
/// The largest absolute difference; 1e9 if names differ.
inline double distance(const Tensors& a, const Tensors& b) {
  double most = a.size() == b.size() ? 0 : 1e9;
  for (const auto& [name, tensor] : a)
    most = b.count(name) ? std::max(most, max(abs(sub(tensor, b.at(name)))).item()) : 1e9;
  return most;
}

}  // namespace testing
