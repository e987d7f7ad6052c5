#pragma once
// The models that tests train.

#include "nn/layer_list.h"
#include "nn/models/gpt.h"
#include "nn/nn.h"
#include "tensor/random.h"

namespace testing {

using namespace lockstep;

/// A Linear(in, out) with bias.
inline nn::Linear linear(int64_t in, int64_t out) {
  const nn::Linear::Options options{.in = in, .out = out};
  return nn::Linear(options);
}
/// A Linear(in, out) without bias.
inline nn::Linear matrix(int64_t in, int64_t out) {
  const nn::Linear::Options options{.in = in, .out = out, .bias = false};
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

/// 12610 + 780 + ... parameters, which each number of ranks divides differently. b.weight is cut into blocks; the other
/// parameters are smaller than a block. The last layer has no parameters.
struct Net : nn::Layer<Net> {
  nn::Linear a = linear(6, 130);
  nn::LayerNorm norm{130};
  nn::Linear b = linear(130, 97), c = linear(97, 3);
  double p = 0.2;
  Variable forward(const Variable& x) { return c(after_b(b(after_norm(norm(a(x)))))); }
  void fields(nn::Fields& f) override { f("a", a)("norm", norm)("b", b)("c", c); }
  nn::LayerList layers() override {
    nn::LayerList list;
    list.add(a);
    list.add("norm", {norm}, [this](const Variable& x) { return after_norm(norm(x)); });
    list.add("b", {b}, [this](const Variable& x) { return after_b(b(x)); });
    list.add(c);
    return std::move(list.add("same", {}, [](const Variable& x) { return x; }));
  }

 private:
  Variable after_norm(const Variable& x) { return dropout(gelu(x), p, norm.is_training()); }
  Variable after_b(const Variable& x) { return dropout(relu(x), p, b.is_training()); }
};

/// Sizes divisible by eight ranks and by blocks of norms, so there is no padding.
struct Even : nn::Layer<Even> {
  nn::Linear a = matrix(64, 512), b = matrix(512, 512), c = matrix(512, 64);
  Variable forward(const Variable& x) { return c(gelu(b(gelu(a(x))))); }
  void fields(nn::Fields& f) override { f("a", a)("b", b)("c", c); }
};
/// The number of parameters of Even.
constexpr int64_t psi = 64 * 512 + 512 * 512 + 512 * 64;

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

/// A classifier that tensor parallelism and pipelines divide.
struct Classifier : nn::Layer<Classifier> {
  nn::Linear up = linear(6, 16), down = linear(16, 3);
  Variable forward(const Variable& x) { return down(gelu(up(x))); }
  void fields(nn::Fields& f) override { f("up", up, nn::cut::columns)("down", down, nn::cut::rows); }
  nn::LayerList layers() override {
    nn::LayerList list;
    list.add("Up", {up}, [this](const Variable& x) { return gelu(up(x)); });
    return list.add(down);
  }
};

/// Two transformer blocks between linear layers, for sequences (batch, tokens, 3).
struct Blocks : nn::Layer<Blocks> {
  nn::Linear in = linear(3, 8), out = linear(8, 2);
  nn::ModuleList<nn::TransformerBlock> blocks;
  Blocks() {
    for (int i = 0; i < 2; ++i)
      blocks.emplace_back(nn::TransformerBlock::Options{.width = 8, .heads = 4, .dropout = 0.1});
  }
  void fields(nn::Fields& f) override { f("in", in)("blocks", blocks)("out", out); }
  nn::LayerList layers() override {
    return nn::LayerList().add(in).append(blocks[0].layers()).append(blocks[1].layers()).add(out);
  }
};

/// A function that makes an optimizer O for the parameters of a model.
template <class O, class Options> auto optimizer_of(const Options& options) {
  return [options](nn::Module& m) { return std::make_unique<O>(m.parameters(), options); };
}

/// A GPT in evaluation mode with large weights, so that scores of tokens are far apart.
inline nn::GPT random_gpt(const nn::GPT::Options& o, uint64_t seed = 3) {
  manual_seed(seed);
  nn::GPT model(o);
  for (const Variable& p : model.parameters()) p.tensor().copy_(randn(p.shape()));
  model.eval();
  return model;
}

/// The sizes of a Llama instead of a GPT.
inline nn::GPT::Options as_llama(nn::GPT::Options o) {
  o.kv_heads = 2, o.norm = nn::Norm::rms, o.feed_forward = nn::FeedForward::swiglu, o.rope = nn::Rope{};
  o.tied = o.bias = false;
  return o;
}

}  // namespace testing
