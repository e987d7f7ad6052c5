// Replaces a model's MLPs by experts, and finds the experts of a model. See expert_parallel.h.
#include "parallel/moe/expert_parallel.h"

#include <algorithm>
#include <cmath>

#include "nn/init.h"
#include "nn/named_fields.h"
#include "tensor/random.h"

namespace lockstep::moe {

std::set<std::string> expert_names(nn::Module& model) {
  std::set<std::string> names;
  for (const auto& [prefix, module] : model.named_modules()) {
    auto* layer = dynamic_cast<MoeLayer*>(module);
    if (!layer || !layer->group || layer->group->size() == 1) continue;
    for (size_t i = 0; i < layer->experts.size(); ++i) {
      const std::string start = nn::joined(prefix, str("experts.", layer->first_expert() + int64_t(i), "."));
      for (const auto& p : layer->experts[i]->named_parameters()) names.insert(start + p.name);
      for (const auto& b : layer->experts[i]->named_buffers()) names.insert(start + b.name);
    }
  }
  return names;
}

int expert_ranks(nn::Module& model) {
  int ranks = 0;
  for (const MoeLayer* layer : layers_of(model)) {
    const int here = layer->group ? layer->group->size() : 1;
    LOCKSTEP_CHECK(ranks == 0 || ranks == here,
                   "[moe] expected all MoE layers to share experts among the same number of ranks, got ", ranks,
                   " and ", here, "; give all of them groups of one size");
    ranks = here;
  }
  return std::max(ranks, 1);
}

void add_experts(nn::Module& model, MoeOptions options, int64_t every,
                 const std::shared_ptr<dist::ProcessGroup>& group) {
  std::vector<nn::Module::FeedForward> places;
  model.apply([&](nn::Module& module) {
    if (const auto place = module.feed_forward_place(); place.mlp) places.push_back(place);
  });
  LOCKSTEP_CHECK(every >= 1 && every <= int64_t(places.size()), "[moe] expected `every` from 1 to ", places.size(),
                 ", the number of blocks, got ", every, places.empty() ? "; use a model with Mlp blocks" : "");
  const double deep = 0.02 / std::sqrt(2 * double(places.size()));
  for (size_t i = size_t(every) - 1; i < places.size(); i += size_t(every)) {
    nn::Mlp& mlp = *places[i].mlp;
    const Variable up = mlp.up.weight;
    LOCKSTEP_CHECK(up.defined(), "[moe] expected a model without experts, got one whose block ", i,
                   " has some; call add_experts() once");
    const nn::Mlp::Options sizes = mlp.o;
    const auto start = [deep](nn::Mlp& mlp) {
      for (const auto& p : mlp.named_parameters()) {
        if (p.name.ends_with("weight")) nn::init::normal(p.variable, 0, p.name == "down.weight" ? deep : 0.02);
        else nn::init::zeros(p.variable);
      }
    };
    options.width = sizes.width;
    options.inner = sizes.inner;
    options.make = [sizes, start](int64_t) {
      auto mlp = std::make_unique<nn::Mlp>(sizes);
      start(*mlp);
      return mlp;
    };
    const auto layer = std::make_shared<MoeLayer>(options, group);
    nn::init::normal(layer->gate, 0, 0.02);
    if (layer->residual) start(*layer->residual);
    layer->to(up.dtype());
    layer->to(up.device());
    *places[i].other = layer;
    for (nn::Linear* unused : {mlp.gate ? &*mlp.gate : &mlp.up, &mlp.up, &mlp.down})
      unused->weight = unused->bias = {};  // frees the memory of the replaced MLP
  }
}

}  // namespace lockstep::moe
