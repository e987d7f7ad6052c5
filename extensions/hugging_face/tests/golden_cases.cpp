// Cases of whole models: GPT-2 from Hugging Face's files; logits, gradients, a few training steps and greedy
// generation.

#include "extensions/generation/generate.h"
#include "extensions/hugging_face/names.h"
#include "extensions/hugging_face/pretrained.h"
#include "optim/optim.h"
#include "optim/optimizer.h"
#include "tests/golden_runner/golden.h"

namespace golden {

using namespace lockstep;

namespace {

/// Transformers shifts the labels itself: position t predicts label t + 1.
Variable shifted_loss(nn::GPT& model, const Tensor& tokens, const Tensor& labels) {
  const Variable logits = model(tokens);
  const int64_t t = tokens.size(1) - 1;
  return cross_entropy(logits.narrow(1, 0, t).reshape({-1, logits.size(2)}), labels.narrow(1, 1, t).reshape({-1}));
}

void run_gpt2(const Case& c, Report& report) {
  const std::string folder = c.folder() + "/" + c.json().at("folder").as_string();
  const auto model = nn::from_pretrained(folder);
  const Tensor tokens = c.tensor("input_ids"), labels = c.tensor("labels");
  report.compare("logits", (*model)(tokens).tensor(), c.tensor("logits"));
  const auto hidden = model->hidden_states(tokens);
  for (size_t i = 0; i < hidden.size(); ++i)
    if (c.has(str("hidden", i))) report.compare(str("hidden", i), hidden[i].tensor(), c.tensor(str("hidden", i)));

  const Variable loss = shifted_loss(*model, tokens, labels);
  report.compare("loss", loss.tensor(), c.tensor("loss"));
  loss.backward();
  for (const auto& p : model->named_parameters()) {
    const auto theirs = nn::gpt2_piece(p.name);
    const Tensor& grad = p.variable.grad();
    if (c.has("grad_norm/" + theirs.name))
      report.compare("grad_norm/" + theirs.name, norm(grad), c.tensor("grad_norm/" + theirs.name));
    if (c.has("grad/" + theirs.name))
      report.compare("grad/" + theirs.name, theirs.transposed ? grad.t() : grad, c.tensor("grad/" + theirs.name));
  }
  if (c.has("grad_norm_total"))
    report.compare("grad_norm_total", full({}, optim::grad_norm(model->parameters())), c.tensor("grad_norm_total"));

  for (int i = 0; c.has(str("prompt", i)); ++i) {
    const Tensor greedy = c.tensor(str("greedy", i)), prompt = c.tensor(str("prompt", i));
    std::vector<int64_t> ids = prompt.to_vector<int64_t>();
    const auto made = nn::generate(*model, ids, {.max_new_tokens = greedy.size(1) - prompt.size(1)}).tokens;
    ids.insert(ids.end(), made.begin(), made.end());
    report.compare(str("greedy", i), Tensor::from(ids, {1, int64_t(ids.size())}), greedy);
  }

  const Json* training = c.json().find("adamw");
  if (!training || !c.has("adamw_losses")) return;
  const auto& betas = training->at("betas").as_array();
  optim::AdamW optimizer(model->parameters(), {.lr = training->at("lr").as_number(),
                                               .beta1 = betas.at(0).as_number(),
                                               .beta2 = betas.at(1).as_number(),
                                               .eps = training->at("eps").as_number(),
                                               .weight_decay = training->at("weight_decay").as_number()});
  std::vector<double> losses;
  while (int64_t(losses.size()) < c.tensor("adamw_losses").numel()) {
    const Variable step_loss = shifted_loss(*model, tokens, labels);
    losses.push_back(step_loss.item());
    optimizer.zero_grad();
    step_loss.backward();
    if (const Json* clip = training->find("clip_grad_norm"))
      optim::clip_grad_norm(model->parameters(), clip->as_number());
    optimizer.step();
  }
  report.compare("adamw_losses", Tensor::from(losses, {int64_t(losses.size())}).to(f32), c.tensor("adamw_losses"));
}

}  // namespace

void add_hugging_face(Functions& functions) { functions.kinds["folder"] = run_gpt2; }

}  // namespace golden
