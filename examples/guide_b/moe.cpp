// The guide's key sparse_attention, and DeepSpeed's MoE layer: a small GPT trained by an engine on repeating sequences.
#include <lockstep.h>
#include <lockstep/deepspeed.h>
#include <lockstep/parallel.h>
#include <lockstep/sparse_attention.h>

#include <iostream>

namespace ls = lockstep;

// Each sequence counts upwards from a random start, by a random stride.
ls::Tensor make_tokens(int64_t batch, int64_t length) {
  const ls::Tensor start = ls::randint(0, 32, {batch, 1}), stride = ls::randint(1, 4, {batch, 1});
  return ls::remainder(start + stride * ls::arange(length).unsqueeze(0), 32);
}

double train(const std::string& sparse_attention, bool experts) {
  ls::manual_seed(1234);
  ls::nn::GPT model({.vocab = 32, .context = 128, .layers = 2, .width = 32, .heads = 4});
  if (experts) ls::moe::add_experts(model, {.experts = 4, .top_k = 2}, 2);  // MoE(num_experts=4, k=2), every 2nd block
  auto model_engine = ls::engine::initialize(model, R"({
    "train_micro_batch_size_per_gpu": 8,
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-3}},
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 1},
    "sparse_attention": )" + sparse_attention + "}");
  double first = 0;
  for (int step = 0; step < 60; ++step) {
    const ls::Tensor tokens = make_tokens(8, 97);
    const ls::Variable logits = model_engine(tokens.narrow(1, 0, 96));
    ls::Variable loss = ls::cross_entropy(logits.flatten(0, 1), tokens.narrow(1, 1, 96).flatten());
    if (experts) loss = loss + ls::nn::own_loss(model);
    model_engine.backward(loss);
    model_engine.step();
    if (step == 0) first = model_engine.train_loss();
  }
  std::cout << (experts ? "4 experts, " : "") << sparse_attention << ": loss " << first << " -> "
            << model_engine.train_loss() << "\n";
  if (experts) {
    const ls::moe::Routing& routing = ls::moe::layers_of(model)[0]->routing;
    for (size_t e = 0; e < routing.chosen.size(); ++e)
      std::cout << "  expert " << e << ": " << routing.chosen[e] << " tokens\n";
    std::cout << "  dropped: " << routing.dropped() << "\n";
  }
  return model_engine.train_loss() / first;
}

int main() {
  const std::string fixed = R"({"mode": "fixed", "block": 16, "num_local_blocks": 2, "num_global_blocks": 1})";
  const double dense = train("false", false), sparse = train(fixed, false), mixture = train(fixed, true);
  return dense < 0.7 && sparse < 0.7 && mixture < 0.7 ? 0 : 1;
}
