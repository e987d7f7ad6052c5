#pragma once
// Shared by the tests of data parallelism: a loss by micro-batch, and comparisons of parameters.
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "dist/process_group.h"
#include "nn/nn.h"
#include "parallel/ddp.h"
#include "tensor/random.h"
#include "tests/messages.h"
#include "tests/models.h"
#include "tests/ranks.h"

namespace testing {

using namespace lockstep;

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
  for (const auto& [name, tensor] : a)
    if (!b.count(name)) return name + " of one only";
    else if (!equal(tensor, b.at(name))) return name;
  for (const auto& [name, tensor] : b)
    if (!a.count(name)) return name + " of one only";
  return "";
}
/// Runs fn on n ranks, which must return the same tensors; returns these.
inline Tensors alike(int n, const std::function<Tensors(int rank)>& fn) {
  const std::vector<Tensors> all = on_ranks<Tensors>(n, fn);
  for (const Tensors& other : all) CHECK(differing(all[0], other) == "");
  return all[0];
}
/// Merges the tensors of all ranks by name; checks that those on several ranks are equal.
inline Tensors merged(const std::vector<Tensors>& all) {
  Tensors full;
  for (const Tensors& mine : all) {
    for (const auto& [name, tensor] : mine) {
      const auto [at, is_new] = full.emplace(name, tensor);
      CHECK_MESSAGE(equal(at->second, tensor), name);
    }
  }
  return full;
}
/// The largest absolute difference; 1e9 if names differ.
inline double distance(const Tensors& a, const Tensors& b) {
  double max_difference = a.size() == b.size() ? 0 : 1e9;
  for (const auto& [name, tensor] : a)
    max_difference = b.count(name) ? std::max(max_difference, max(abs(sub(tensor, b.at(name)))).item()) : 1e9;
  return max_difference;
}

}  // namespace testing
