// Tables of parameter names: ours, and those in Hugging Face files. See names.h.
#include "extensions/hugging_face/names.h"

namespace lockstep::nn {

namespace {

struct Rename {
  const char* ours;
  const char* theirs;
  bool transposed = false;
};
constexpr Rename gpt2_top[] = {{"tokens", "transformer.wte"},
                               {"positions", "transformer.wpe"},
                               {"norm", "transformer.ln_f"},
                               {"head", "lm_head"}},
                 gpt2_block[] = {{"norm1", "ln_1"},
                                 {"attention.in_proj", "attn.c_attn", true},
                                 {"attention.out_proj", "attn.c_proj", true},
                                 {"norm2", "ln_2"},
                                 {"mlp.up", "mlp.c_fc", true},
                                 {"mlp.down", "mlp.c_proj", true}},
                 llama_top[] = {{"tokens", "model.embed_tokens"}, {"norm", "model.norm"}, {"head", "lm_head"}},
                 llama_block[] = {{"norm1", "input_layernorm"},
                                  {"attention.in_proj", "self_attn.q_proj"},  // and k_proj, v_proj
                                  {"attention.out_proj", "self_attn.o_proj"},
                                  {"norm2", "post_attention_layernorm"},
                                  {"mlp.gate", "mlp.gate_proj"},
                                  {"mlp.up", "mlp.up_proj"},
                                  {"mlp.down", "mlp.down_proj"}};

PretrainedPiece renamed(const std::string& ours, std::span<const Rename> top, std::span<const Rename> block,
                        const std::string& layers) {
  const size_t last = std::min(ours.rfind('.'), ours.size());
  const std::string leaf = ours.substr(last);
  for (const Rename& r : top)
    if (ours.substr(0, last) == r.ours) return {.name = r.theirs + leaf};
  if (ours.starts_with("blocks.")) {
    const size_t dot = std::min(ours.find('.', 7), last);
    const std::string part = dot < last ? ours.substr(dot + 1, last - dot - 1) : "";
    for (const Rename& r : block)
      if (part == r.ours)
        return {.name = layers + ours.substr(7, dot - 7) + "." + r.theirs + leaf,
                .transposed = r.transposed && leaf == ".weight"};
  }
  fail(str("[pretrained] expected parameters that Transformers' ", layers == "model.layers." ? "Llama" : "GPT-2",
           " has a name for, got '", ours,
           "'; merge() adapters and leave other layers out, or save state() with save_safetensors()"));
}

}  // namespace

bool is_gpt2(const GPT::Options& o) { return !o.rope; }

PretrainedPiece gpt2_piece(const std::string& ours) { return renamed(ours, gpt2_top, gpt2_block, "transformer.h."); }

std::vector<PretrainedPiece> pretrained_pieces(const GPT::Options& o, const std::string& ours) {
  if (is_gpt2(o)) return {gpt2_piece(ours)};
  const PretrainedPiece one = renamed(ours, llama_top, llama_block, "model.layers.");
  const size_t query = one.name.find(".q_proj.");
  if (query == std::string::npos) return {one};
  const int64_t size = o.head_size > 0 ? o.head_size : o.width / o.heads, queries = o.heads * size,
                keys = (o.kv_heads > 0 ? o.kv_heads : o.heads) * size;
  std::vector<PretrainedPiece> all(3, one);
  all[0].rows = queries;
  for (size_t i : {1u, 2u}) {
    all[i].name[query + 1] = i == 1 ? 'k' : 'v';
    all[i].row = queries + int64_t(i - 1) * keys, all[i].rows = keys;
  }
  return all;
}

std::string pretrained_prefix(const GPT::Options& o) { return is_gpt2(o) ? "transformer." : "model."; }

bool is_no_weight(const std::string& name) {
  return name.ends_with("rotary_emb.inv_freq") || name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
}

}  // namespace lockstep::nn
