#pragma once
// A model for tests of pipelines, with features that are hard for stages: a tied weight, dropout, tensors of several
// dtypes.
#include <doctest/doctest.h>

#include <optional>
#include <vector>

#include "optim/optim.h"
#include "pipeline/engine.h"
#include "tensor/ops.h"
#include "tests/parallel/util.h"

namespace testing {

using namespace lockstep::pipeline;

/// Sizes of the model and of a micro-batch.
constexpr int64_t vocab = 11, width = 8, micro_batch = 4;

/// A single value.
inline Values one(Variable v) { return {std::move(v)}; }

/// A small language model: an embedding table tied to the head, layers with dropout, and two that pass on a second
/// tensor.
inline std::vector<LayerSpec> model(double p = 0.25) {
  const nn::Linear::Options linear{.in = width, .out = width};
  const auto with_dropout = [p](nn::Module* m, const Values& in) {
    return one(dropout(gelu(m->call(in[0])), p, m->is_training()));
  };
  std::vector<LayerSpec> layers;
  layers.push_back(layer<nn::Embedding>({.num = vocab, .dim = width}).tie("table"));
  layers.push_back(layer<nn::Linear>(linear).with(with_dropout));
  layers.push_back(
      // sends several tensors, some without gradients
      layer("split", LayerSpec::Forward([](nn::Module*, const Values& in) {
              return Values{in[0], in[0] * 0.5, Tensor::from(std::vector<int64_t>{3, 1, 2}, {3}),
                            Variable(in[0].tensor().to(boolean))};
            })));
  layers.push_back(layer<nn::Linear>(linear).with([](nn::Module* m, const Values& in) {
    LOCKSTEP_CHECK(in.size() == 4 && in[2].dtype() == i64 && in[3].dtype() == boolean &&
                       in[2].tensor().to_vector<int64_t>()[0] == 3,
                   "what was sent did not arrive");
    return Values{m->call(in[0]), in[1]};
  }));
  layers.push_back(
      layer("join", LayerSpec::Forward([](nn::Module*, const Values& in) { return one(add(in[0], in[1])); })));
  layers.push_back(layer<nn::LayerNorm>({.shape = {width}}));
  layers.push_back(layer<nn::Linear>(linear).with(with_dropout));
  layers.push_back(
      layer<nn::Embedding>({.num = vocab, .dim = width}).tie("table").with([](nn::Module* m, const Values& in) {
        return one(lockstep::linear(in[0], m->parameters()[0]));
      }));
  return layers;
}

/// Cross entropy of the outputs.
inline Variable loss_of_tokens(const Values& outputs, const std::vector<Tensor>& targets) {
  return cross_entropy(outputs[0], targets[0]);
}

/// Inputs and targets of a micro-batch, which depend on step and micro-batch only.
inline std::optional<Sample> sample_of(int step, int64_t micro, int64_t size = micro_batch) {
  std::vector<int64_t> x, y;
  for (int64_t i = 0; i < size; ++i) {
    const auto words = philox({7, uint64_t(step)}, uint64_t(micro * 100 + i));
    x.push_back(words[0] % vocab);
    y.push_back(words[1] % vocab);
  }
  return Sample{{Tensor::from(x, {size})}, {Tensor::from(y, {size})}};
}

/// Training steps of each run.
constexpr int steps = 3;

/// AdamW, or nothing for a stage without parameters.
struct Optimizer {
  explicit Optimizer(nn::Module& m) {
    if (!m.parameters().empty()) adamw.emplace(m.parameters(), optim::AdamWOptions{.lr = 1e-2, .weight_decay = 0.1});
  }
  /// A step, and zero_grad().
  void step() {
    if (!adamw) return;
    adamw->step();
    adamw->zero_grad();
  }
  std::optional<optim::AdamW> adamw;
};

}  // namespace testing
