// GPT: construction, forward, generation step. See gpt.h.
#include "nn/models/gpt.h"

#include <algorithm>
#include <cmath>

#include "autograd/activation_checkpoint.h"
#include "nn/init.h"
#include "tensor/batch_invariant.h"

namespace lockstep::nn {

namespace {

GPT::Options checked(const GPT::Options& o) {
  LOCKSTEP_CHECK(o.vocab > 0 && o.context > 0 && o.layers > 0 && o.width > 0,
                 "[GPT] expected vocab, context, layers and width > 0, got ", o.vocab, ", ", o.context, ", ", o.layers,
                 ", ", o.width);
  LOCKSTEP_CHECK(o.window >= 0 && o.window_from >= 0, "[GPT] expected window >= 0 and window_from >= 0, got ", o.window,
                 " and ", o.window_from);
  return o;
}

}  // namespace

GPT::GPT(const Options& options)
    : o(checked(options)),
      tokens_table({.num = o.vocab, .dim = o.width}),
      position_table(
          o.rope ? std::nullopt
                 : std::optional<Embedding>(std::in_place, Embedding::Options{.num = o.context, .dim = o.width})),
      dropout({.p = o.dropout}),
      norm({.kind = o.norm, .size = o.width, .eps = o.norm_eps, .bias = o.bias}),
      head(o.tied ? Head(tokens_table) : Head({.num = o.vocab, .dim = o.width})) {
  const int64_t head_size = o.head_size > 0 ? o.head_size : o.width / std::max<int64_t>(o.heads, 1);
  const auto angles = o.rope ? std::make_shared<RopeTable>(*o.rope, head_size, o.context) : nullptr;
  for (int64_t i = 0; i < o.layers; ++i) {
    blocks.emplace_back(TransformerBlock::Options{.width = o.width,
                                                  .heads = o.heads,
                                                  .kv_heads = o.kv_heads,
                                                  .head_size = o.head_size,
                                                  .inner = o.inner,
                                                  .bias = o.bias,
                                                  .attention_bias = o.attention_bias,
                                                  .attention_out_bias = o.attention_out_bias,
                                                  .mlp_bias = o.mlp_bias,
                                                  .dropout = o.dropout,
                                                  .norm_eps = o.norm_eps,
                                                  .norm = o.norm,
                                                  .feed_forward = o.feed_forward,
                                                  .gelu = o.gelu,
                                                  .rope = angles,
                                                  .max_context = o.context,
                                                  .window = i < o.window_from ? 0 : o.window});
  }
  for (NamedParameter& p : named_parameters()) {
    const bool to_residual = p.name.ends_with("out_proj.weight") || p.name.ends_with("down.weight");
    if (p.variable.dim() == 2) init::normal(p.variable, 0, to_residual ? 0.02 / std::sqrt(2 * double(o.layers)) : 0.02);
    else if (p.name.ends_with("bias")) init::zeros(p.variable);
  }
}

void GPT::fields(Fields& f) {
  f("tokens", tokens_table, cut::rows_of_vocabulary);
  if (position_table) f("positions", *position_table);
  f("dropout", dropout, cut::from_full(cut::tokens))("blocks", blocks)("norm", norm, cut::tokens);
  f("head", head, cut::rows_of_vocabulary);
}

std::vector<Variable> GPT::reads() {
  std::vector<Variable> all;
  if (o.tied) all.push_back(tokens_table.weight);  // gathered once for embedding and head
  if (position_table) all.push_back(position_table->weight);
  return all;
}

std::string GPT::options() const {
  return str("vocab ", o.vocab, ", context ", o.context, ", layers ", o.layers, ", width ", o.width, ", heads ",
             o.heads, o.kv_heads > 0 && o.kv_heads != o.heads ? str(", kv heads ", o.kv_heads) : "",
             o.window > 0 ? str(", window ", o.window) : "",
             o.feed_forward == nn::FeedForward::swiglu ? ", SwiGLU" : "", o.rope ? ", rotary" : "",
             o.tied ? ", tied head" : "");
}

LayerList GPT::layers() {
  LayerList list;
  list.add(tokens_table);
  std::vector<LayerList::Field> used{dropout};
  if (position_table) used.insert(used.begin(), *position_table);
  list.add("Positions", used, [this](const Variable& x) { return placed(x, 0); });
  for (auto& block : blocks.items) list.append(block->layers());
  list.add(norm).add("Head", {head}, [this](const Variable& x) { return head.scores(x); });
  list.loss = [this](const Variable& scores, const std::vector<Tensor>& targets) {
    return head.loss(scores, targets.at(0));
  };
  list.loss_of_input = [this](const Variable& tokens, const std::vector<Tensor>& targets) {
    return is_watched() || head.is_watched() ? Variable() : (*this)(tokens.tensor(), targets.at(0));
  };
  return list;
}

/// Adds learned position embeddings, if the model has any, then applies dropout. x's first token has index `position`;
/// under context parallelism, `part` gives the positions.
Variable GPT::placed(const Variable& x, int64_t position) {
  const int64_t tokens = x.size(1), end = part ? tokens * part->ranks : position + tokens;
  LOCKSTEP_CHECK(end <= o.context, "[GPT] expected at most ", o.context, " tokens (context), got ", end,
                 part ? str(", ", tokens, " on each of ", part->ranks, " ranks") : "", "; shorten the text");
  if (!position_table) return dropout(x);
  Embedding& table = *position_table;
  return dropout(add(
      x, part ? table(part->positions(tokens).to(table.weight.device())) : table.weight.narrow(0, position, tokens)));
}

Variable GPT::embed(const Tensor& tokens, int64_t position) {
  LOCKSTEP_CHECK(tokens.dim() == 2, "[GPT] expected tokens (B, T), got ", tokens.shape(), "; unsqueeze(0) it");
  return placed(tokens_table(tokens), position);
}

Variable GPT::stream(const Tensor& tokens) {
  Variable x = embed(tokens, 0);
  for (auto& block : blocks.items) {
    LOCKSTEP_CHECK(!o.checkpoint_blocks || !block->feed_forward,
                   "[GPT] checkpoint_blocks does not support experts, because a recomputed block gives its own_loss() "
                   "no gradient; use parallel::ActivationCheckpoints with .beside = moe::aux_losses");
    x = o.checkpoint_blocks ? checkpoint([&block](const Variable& in) { return (*block)(in); }, x) : (*block)(x);
  }
  return x;
}

Variable GPT::forward(const Tensor& tokens) {
  const BatchInvariant scope(BatchInvariant::is_on() || (!is_training() && !NoGrad::grad_enabled()));
  return head(norm(stream(tokens)));
}
Variable GPT::forward(const Tensor& tokens, const Tensor& targets) { return head(norm(stream(tokens)), targets); }

Variable GPT::loss(const Tensor& tokens, const Tensor& targets) { return (*this)(tokens, targets); }

std::vector<Variable> GPT::hidden_states(const Tensor& tokens) {
  std::vector<Variable> states{embed(tokens, 0)};
  for (auto& block : blocks.items) states.push_back((*block)(states.back()));
  states.back() = norm(states.back());
  return states;
}

Variable GPT::next_scores(const std::vector<std::span<const int64_t>>& tokens,
                          const std::vector<std::vector<KvCache>*>& caches) {
  std::vector<int64_t> last;
  int64_t end = 0;
  for (const auto& t : tokens) last.push_back((end += int64_t(t.size())) - 1);
  return scores_behind(last, tokens, caches);
}

Variable GPT::scores_behind(const std::vector<int64_t>& wanted, const std::vector<std::span<const int64_t>>& tokens,
                            const std::vector<std::vector<KvCache>*>& caches) {
  const NoGrad no_grad;
  const BatchInvariant scope;
  const Device device = tokens_table.weight.device();
  std::vector<Variable> rows;
  for (size_t i = 0; i < tokens.size(); ++i)
    rows.push_back(embed(Tensor::from(tokens[i], {1, int64_t(tokens[i].size())}).to(device), caches[i]->at(0).length));
  Variable x = rows.size() == 1 ? rows[0] : cat(rows, 1);
  for (size_t b = 0; b < blocks.size(); ++b) {
    std::vector<KvRows> of_block;
    for (size_t i = 0; i < tokens.size(); ++i)
      of_block.push_back({.cache = &caches[i]->at(b), .tokens = int64_t(tokens[i].size())});
    x = blocks[b](x, std::as_const(of_block));
  }
  const auto count = int64_t(wanted.size());
  return head(norm(index_select(x, 1, Tensor::from(wanted, {count}).to(x.device())))).view({count, -1});
}

}  // namespace lockstep::nn
