#include "pipeline/gpt.h"

#include "autograd/checkpoint.h"
#include "autograd/ops.h"
#include "moe/layer.h"

namespace lockstep::pipeline {
namespace {

/// x + attention(norm(x)), or x + mlp(norm(x)): taken out of a block.
struct HalfBlock : nn::Layer<HalfBlock> {
  HalfBlock(std::string name, nn::TransformerBlock& of, bool is_second)
      : block(std::move(name)), second(is_second), norm(std::move(second ? of.norm2 : of.norm1)), dropout({.p = of.dropout.p}) {
    if (!second) inner = std::make_shared<nn::MultiHeadAttention>(std::move(of.attention));
    else if (of.feed_forward) inner = of.feed_forward;
    else inner = std::make_shared<nn::Mlp>(std::move(of.mlp));
    dropout.part = of.dropout.part;
    dropout.train(of.dropout.is_training());
  }
  Variable forward(const Variable& x) { return add(x, dropout(inner->call(norm(x)))); }
  void fields(nn::Fields& f) override { f(block + (second ? ".norm2" : ".norm1"), norm)(block + (second ? ".mlp" : ".attention"), *inner)(block + ".dropout", dropout); }

  std::string block;
  bool second;
  nn::LayerNorm norm;
  std::shared_ptr<nn::Module> inner;
  nn::Dropout dropout;
};

}  // namespace

std::vector<LayerSpec> gpt_layers(const std::shared_ptr<nn::GPT>& model, bool recompute) {
  const auto spec = [](const char* kind, const std::string& name, LayerSpec::Make make, LayerSpec::Forward forward, int64_t parameters) {
    return LayerSpec{.kind = kind, .make = std::move(make), .forward = std::move(forward), .parameters = parameters, .key = {}, .name = name};
  };
  const auto on_one = [](auto fn) { return [fn](nn::Module* m, const Values& in) { return Values{fn(m, in.at(0))}; }; };
  const nn::GPT::Options o = model->o;
  std::vector<LayerSpec> layers;
  const LayerSpec::Make tokens = [model] { return std::make_unique<nn::Embedding>(std::move(model->tokens_table)); };
  layers.push_back(spec("Embedding", "tokens", tokens, {}, model->tokens_table.weight.numel()));
  if (o.tied) layers.back().tie("tokens");
  layers.push_back(spec("Positions", "positions", [model] { return std::make_unique<nn::Embedding>(std::move(model->position_table)); }, on_one([p = o.dropout, part = model->part](nn::Module* m, const Variable& x) {
    return dropout(add(x, nn::positions_of(static_cast<nn::Embedding&>(*m), x.size(1), 0, part.get())), p, m->is_training());
  }), model->position_table.weight.numel()));
  for (size_t i = 0; i < model->blocks.size(); ++i) {
    nn::TransformerBlock& block = model->blocks[i];
    const auto half = [&](const char* kind, bool second, nn::Module& norm, nn::Module& inner) {
      const LayerSpec::Make make = [model, i, second] { return std::make_unique<HalfBlock>(str("blocks.", i), model->blocks[i], second); };
      // Experts' own loss goes along, added up as moe::aux_loss() of the whole model does.
      layers.push_back(spec(kind, "", make, [recompute, experts = second && block.feed_forward](nn::Module* m, const Values& in) {
        const auto run = [m, experts](const Values& in) {
          Values out{m->call(in.at(0))};
          const Variable aux = experts ? moe::aux_loss(*m) : Variable();  // which looks through all that is below
          if (aux.defined()) out.push_back(in.size() > 1 ? add(in[1], aux) : aux);
          else out.insert(out.end(), in.begin() + 1, in.end());
          return out;
        };
        return recompute ? checkpoint_many(run, in) : run(in);
      }, norm.parameter_count() + inner.parameter_count()));
    };
    half("TransformerBlock.attention", false, block.norm1, block.attention);
    half("TransformerBlock.mlp", true, block.norm2, block.feed_forward ? *block.feed_forward : block.mlp);
  }
  layers.push_back(spec("LayerNorm", "norm", [model] { return std::make_unique<nn::LayerNorm>(std::move(model->norm)); }, [](nn::Module* m, const Values& in) {
    Values out = in;
    out[0] = m->call(in.at(0));
    return out;
  }, model->norm.parameter_count()));
  struct Head : nn::Module {
    explicit Head(Variable w) : weight(std::move(w)) {}
    void fields(nn::Fields& f) override { f("head", weight); }
    Variable weight;
  };
  // With slices the loss wants the head's own: see gpt_loss().
  layers.push_back(spec("Head", "", [model] { return std::make_unique<Head>(std::move(model->head)); }, [sliced = bool(model->head_loss)](nn::Module* m, const Values& in) {
    const Variable weight = m->parameters().at(0);
    Values out = sliced ? Values{in.at(0), weight} : Values{linear(in.at(0), weight)};
    out.insert(out.end(), in.begin() + 1, in.end());
    return out;
  }, o.vocab * o.width));
  if (o.tied) layers.back().tie("tokens");
  return layers;
}

Loss gpt_loss(const nn::GPT& model) {
  return [vocab = model.o.vocab, sliced = model.head_loss](const Values& out, const std::vector<Tensor>& targets) {
    const Variable loss = sliced ? sliced(out[0], out.at(1), targets[0]) : cross_entropy(out[0].view({-1, vocab}), targets[0].reshape({-1}));
    const size_t aux = sliced ? 2 : 1;  // of experts, in training
    return out.size() > aux && NoGrad::grad_enabled() ? add(loss, out[aux].to(loss.dtype())) : loss;
  };
}

}  // namespace lockstep::pipeline
