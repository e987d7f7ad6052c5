// config.json to GPT::Options and back. See config.h.
#include "extensions/hugging_face/config.h"

#include <algorithm>
#include <iterator>

#include "extensions/hugging_face/names.h"

namespace lockstep::nn {

using data::Json;

namespace {

const std::string gelu_names[] = {"gelu_new", "gelu"};  // tanh form, erf form

/// A Llama-like model type: Transformers' default sizes, and the differences between the types.
struct Family {
  std::string_view type;
  const char* architecture;
  int64_t inner, kv_heads, vocab, context;
  bool query_bias;  ///< true: q, k and v have biases, the other Linears none; false: no biases
};
constexpr Family families[] = {{"llama", "LlamaForCausalLM", 11008, 0, 32000, 2048, false},
                               {"mistral", "MistralForCausalLM", 14336, 8, 32000, 131072, false},
                               {"qwen2", "Qwen2ForCausalLM", 22016, 0, 151936, 32768, true}};

/// Keys that Transformers writes and that do not affect a language model's results: training settings, other heads,
/// runtime switches.
constexpr std::string_view without_effect =
    " _name_or_path architectures attention_dropout attn_pdrop bos_token_id chunk_size_feed_forward dtype embd_pdrop "
    "id2label initializer_range label2id n_ctx output_attentions output_hidden_states pad_token_id pretraining_tp "
    "problem_type reorder_and_upcast_attn resid_pdrop return_dict summary_activation summary_first_dropout "
    "summary_proj_to_labels summary_type summary_use_proj torch_dtype transformers_version use_cache ";
/// Keys that select unsupported model variants unless they are null, false or empty.
constexpr const char* not_built[] = {"add_cross_attention", "is_encoder_decoder", "per_layer_config",
                                     "scale_attn_by_inverse_layer_idx"};

void check_built(const ConfigReader& c) {
  LOCKSTEP_CHECK(!c.find("quantization_config"), c.where(),
                 ": quantization_config: quantised weights are not supported; load the folder of the original model");
  for (const char* key : not_built)
    if (const Json* value = c.find(key))
      LOCKSTEP_CHECK(*value == Json(false) || *value == Json(Json::Object{}), c.where(), ": ", key, " ", value->dump(),
                     " is not supported; use a model without it");
}

GPT::Options gpt2_options(const ConfigReader& c) {
  const std::string gelu = c.word("activation_function", gelu_names[0]);
  LOCKSTEP_CHECK(gelu == gelu_names[0] || gelu == gelu_names[1], c.where(),
                 ": expected activation_function 'gelu_new' or 'gelu', got '", gelu, "'; use another model");
  const int64_t width = c.integer("n_embd", 768), heads = c.integer("n_head", 12);
  LOCKSTEP_CHECK(width % heads == 0, c.where(), ": n_head: expected a number that divides n_embd ", width, ", got ",
                 heads, "; correct the file");
  LOCKSTEP_CHECK(c.flag("scale_attn_weights", true), c.where(),
                 ": scale_attn_weights false is not supported; use a model with true");
  return {.vocab = c.integer("vocab_size", 50257),
          .context = c.integer("n_positions", 1024),
          .layers = c.integer("n_layer", 12, 1, 100'000),
          .width = width,
          .heads = heads,
          .inner = c.integer("n_inner", 0, 0),
          .norm_eps = c.number("layer_norm_epsilon", 1e-5, 0),
          .gelu = gelu == gelu_names[0] ? Gelu::tanh : Gelu::erf,
          .tied = c.flag("tie_word_embeddings", true)};
}

// Rotary positions: rope_theta and rope_scaling (Transformers 4), rope_parameters (Transformers 5).

using Scaling = Rope::Scaling;

constexpr std::string_view scaling_names[] = {"default", "linear", "dynamic", "yarn", "llama3"};

/// Reads the object under rope_parameters or rope_scaling; keys that it lacks are looked up in `config`.
Rope rope_of(const Json& object, const std::string& where, const ConfigReader& config, int64_t max_position) {
  LOCKSTEP_CHECK(object.is_object(), where, ": expected an object, got ", object.kind(), "; correct the file");
  for (const auto& [key, value] : object.as_object())
    LOCKSTEP_CHECK(!value.is_object(), where, ": ", key,
                   ": positions per kind of layer are not supported; use a model with one rope_type for all layers");
  const ConfigReader c(object, where);
  const std::string type = c.word("rope_type", c.word("type", "default"));
  LOCKSTEP_CHECK(!c.find("type") || c.word("type", "") == type, where, ": expected rope_type and type to agree, got '",
                 type, "' and '", c.word("type", ""), "'; correct the file");
  const auto* const known = std::ranges::find(scaling_names, type);
  LOCKSTEP_CHECK(known != std::end(scaling_names), where, ": rope_type '", type,
                 "' is not supported; use a model with default, linear, dynamic, yarn or llama3");
  const auto beside = [&](const char* key) { return c.find(key) ? c : config; };
  const double base = c.number("rope_theta", config.number("rope_theta", 10000));
  LOCKSTEP_CHECK(!c.find("rope_theta") || !config.find("rope_theta") || config.number("rope_theta", 0) == base, where,
                 ": expected the rope_theta beside it, ", config.number("rope_theta", 0), ", got ", base,
                 "; remove one of the two");
  Rope rope{.base = base, .scaling = Scaling(known - std::begin(scaling_names))};
  const double partial = beside("partial_rotary_factor").number("partial_rotary_factor", 1);
  LOCKSTEP_CHECK(partial == 1, where, ": partial_rotary_factor ", partial,
                 " is not supported: Transformers rotates whole heads of these models; leave it out");
  if (rope.scaling == Scaling::none) return rope;
  const char* const original = "original_max_position_embeddings";
  if (rope.scaling == Scaling::dynamic) rope.original_context = max_position;
  else if (rope.scaling != Scaling::linear) rope.original_context = beside(original).integer(original, max_position);
  if (rope.scaling == Scaling::yarn) rope.factor = double(max_position) / double(rope.original_context);
  else LOCKSTEP_CHECK(c.find("factor"), where, ": expected a factor for rope_type '", type, "', there is none; add it");
  rope.factor = c.number("factor", rope.factor, 1);
  if (rope.scaling == Scaling::llama3) {
    for (const char* key : {"low_freq_factor", "high_freq_factor"})
      LOCKSTEP_CHECK(c.find(key), where, ": expected a ", key, " for rope_type 'llama3', there is none; add it");
    rope.low_freq_factor = c.number("low_freq_factor", 1), rope.high_freq_factor = c.number("high_freq_factor", 4);
  }
  if (rope.scaling != Scaling::yarn) return rope;
  const auto or_usual = [&](const char* key, double usual) {
    const double value = c.number(key, usual);
    return value == 0 ? usual : value;  // Transformers replaces 0, too
  };
  rope.beta_fast = or_usual("beta_fast", 32), rope.beta_slow = or_usual("beta_slow", 1);
  rope.truncate = c.flag("truncate", true);
  if (c.find("attention_factor")) rope.attention_factor = c.number("attention_factor", 1);
  const double mscale = c.number("mscale", 0), all = c.number("mscale_all_dim", 0);
  const auto scaled = [&](double by) { return rope.factor <= 1 ? 1 : 0.1 * by * std::log(rope.factor) + 1; };
  if (!rope.attention_factor && mscale != 0 && all != 0) rope.attention_factor = scaled(mscale) / scaled(all);
  return rope;
}

/// Reads rope_parameters, or rope_theta and rope_scaling. Error if both are present and differ.
Rope rope_from(const ConfigReader& config, int64_t max_position) {
  const auto at = [&](const char* key) {
    return rope_of(*config.find(key), config.where() + ": " + key, config, max_position);
  };
  const bool parameters = config.find("rope_parameters"), scaling = config.find("rope_scaling");
  if (!parameters && !scaling) return rope_of(Json::Object{}, config.where(), config, max_position);
  if (!parameters || !scaling) return at(parameters ? "rope_parameters" : "rope_scaling");
  const Rope one = at("rope_parameters"), other = at("rope_scaling");
  LOCKSTEP_CHECK(one == other, config.where(),
                 ": rope_parameters and rope_scaling are both given, and differ; remove one of them");
  return one;
}

/// Writes rope_parameters, rope_theta and rope_scaling.
void add_rope(Json& config, const Rope& rope, int64_t context) {
  Json scaling(Json::Object{});
  scaling["rope_type"] = std::string(scaling_names[int(rope.scaling)]);
  if (rope.scaling != Scaling::none) scaling["factor"] = rope.factor;
  if (rope.scaling == Scaling::llama3 || rope.scaling == Scaling::yarn)
    scaling["original_max_position_embeddings"] = rope.original_context > 0 ? rope.original_context : context;
  if (rope.scaling == Scaling::llama3) {
    scaling["low_freq_factor"] = rope.low_freq_factor;
    scaling["high_freq_factor"] = rope.high_freq_factor;
  }
  if (rope.scaling == Scaling::yarn) {
    scaling["beta_fast"] = rope.beta_fast;
    scaling["beta_slow"] = rope.beta_slow;
    scaling["truncate"] = rope.truncate;
    if (rope.attention_factor) scaling["attention_factor"] = *rope.attention_factor;
  }
  config["rope_theta"] = rope.base;
  config["rope_scaling"] = rope.scaling == Scaling::none ? Json() : scaling;
  scaling["rope_theta"] = rope.base;
  config["rope_parameters"] = scaling;
}

/// Reads sliding windows. Mistral has them in all blocks, Qwen 2 in the blocks from max_window_layers on. If the config
/// has layer_types, they decide instead. A window that is not shorter than the context is dropped.
void read_window(const ConfigReader& c, const Family& f, GPT::Options& o) {
  const bool mistral = f.type == "mistral", qwen2 = f.query_bias;
  const Json* const types = c.find("layer_types");
  if (!mistral && !qwen2) {
    for (const Json& type : types ? types->as_array(c.where() + ": layer_types") : Json::Array())
      LOCKSTEP_CHECK(type == Json("full_attention"), c.where(),
                     ": layer_types: expected 'full_attention' for all, got ", type.dump(), "; use another model");
    return;
  }
  if (!mistral && !c.flag("use_sliding_window", false)) return;
  if (c.says_null("sliding_window")) return;
  const int64_t window = c.integer("sliding_window", 4096);
  int64_t from = mistral ? 0 : c.integer("max_window_layers", 28, 0);
  if (types) {
    const Json::Array& all = types->as_array(c.where() + ": layer_types");
    const auto first = std::ranges::find(all, Json("sliding_attention"));
    LOCKSTEP_CHECK(int64_t(all.size()) == o.layers &&
                       std::count(first, all.end(), Json("sliding_attention")) == all.end() - first &&
                       std::count(all.begin(), first, Json("full_attention")) == first - all.begin(),
                   c.where(), ": layer_types: expected 'full_attention' for the first of ", o.layers,
                   " layers and 'sliding_attention' for the rest, got ", types->dump().substr(0, 200),
                   "; use another model");
    from = first - all.begin();
  }
  if (window < o.context && from < o.layers) o.window = window, o.window_from = from;
}

GPT::Options llama_options(const ConfigReader& c, const Family& f) {
  const std::string act = c.word("hidden_act", "silu");
  LOCKSTEP_CHECK(act == "silu" || act == "swish", c.where(), ": hidden_act: expected 'silu', got '", act,
                 "'; use another model");
  const int64_t context = c.integer("max_position_embeddings", f.context), width = c.integer("hidden_size", 4096),
                heads = c.integer("num_attention_heads", 32),
                kv_heads = c.integer("num_key_value_heads",
                                     f.kv_heads > 0 && !c.says_null("num_key_value_heads") ? f.kv_heads : heads);
  LOCKSTEP_CHECK(heads % kv_heads == 0, c.where(), ": num_key_value_heads: expected a number that divides the ", heads,
                 " of num_attention_heads, got ", kv_heads, "; correct the file");
  const bool is_llama = &f == families;
  LOCKSTEP_CHECK((c.find("head_dim") && !is_llama) || width % heads == 0, c.where(),
                 ": num_attention_heads: expected a number that divides hidden_size ", width,
                 is_llama ? "" : ", or a head_dim", ", got ", heads, "; correct the file");
  const int64_t head_size = c.integer("head_dim", width / heads);
  LOCKSTEP_CHECK(head_size > 0 && head_size <= (int64_t(1) << 24) / heads, c.where(), ": head_dim: expected 1 to ",
                 int64_t(1) << 24, " features of all heads together, got ", heads, " heads of ", head_size,
                 "; correct the file");
  const bool attention_bias = f.query_bias || c.flag("attention_bias", false), mlp_bias = c.flag("mlp_bias", false);
  const Rope rope = rope_from(c, context);
  GPT::Options o{.vocab = c.integer("vocab_size", f.vocab),
                 .context = context,
                 .layers = c.integer("num_hidden_layers", 32, 1, 100'000),
                 .width = width,
                 .heads = heads,
                 .inner = c.integer("intermediate_size", f.inner),
                 .kv_heads = kv_heads,
                 .head_size = head_size,
                 .norm_eps = c.number("rms_norm_eps", 1e-6, 0),
                 .norm = Norm::rms,
                 .feed_forward = nn::FeedForward::swiglu,
                 .rope = rope,
                 .tied = c.flag("tie_word_embeddings", false),
                 .attention_bias = attention_bias,
                 .attention_out_bias = attention_bias && !f.query_bias,
                 .mlp_bias = mlp_bias && !f.query_bias};
  // Extend the context, because dynamic scaling is meant for sequences longer than max_position_embeddings.
  if (rope.scaling == Rope::Scaling::dynamic) o.context = int64_t(double(context) * std::max(rope.factor, 1.));
  read_window(c, f, o);
  try {
    rope_frequencies(rope, head_size, context);
  } catch (const Error& e) { fail(c.where() + ": " + e.what()); }
  return o;
}

}  // namespace

GPT::Options options_from_config(const Json& config, const std::string& path) {
  LOCKSTEP_CHECK(config.is_object(), path, ": expected an object, got ", config.kind(), "; fetch the file again");
  const ConfigReader c(config, path);
  const std::string type = c.word("model_type", "gpt2");
  const auto* const family = std::ranges::find(families, type, &Family::type);
  LOCKSTEP_CHECK(family != std::end(families) || type == "gpt2", path,
                 ": expected model_type 'gpt2', 'llama', 'mistral' or 'qwen2', got '", type, "'; use another model");
  check_built(c);
  return type == "gpt2" ? gpt2_options(c) : llama_options(c, *family);
}

namespace {

template <class... Words> void expect(bool good, const GPT::Options& o, const Words&... words) {
  LOCKSTEP_CHECK(good, "[save_pretrained] a GPT with", o.rope ? "" : "out", " rope needs ", words...,
                 ": Transformers has no such model; use save_safetensors()");
}

const Family& family_of(const GPT::Options& o) {
  const bool in = o.bias && o.attention_bias, out = o.bias && o.attention_out_bias, mlp = o.bias && o.mlp_bias;
  expect(o.norm == Norm::rms, o, "norm = Norm::rms, got Norm::layer");
  expect(o.feed_forward == nn::FeedForward::swiglu, o, "feed_forward = FeedForward::swiglu, got gelu");
  expect(in || !out, o, "attention_out_bias false without attention_bias, got true");
  expect(in == out || !mlp, o, "mlp_bias false without attention_out_bias, got true");
  const bool qwen2 = in && !out, mistral = o.window > 0 && !in && !mlp;
  expect(o.window == 0 || qwen2 || mistral, o, "no biases (Mistral) or attention_bias alone (Qwen 2) with window ",
         o.window, ", got ", in ? "all biases of attention" : "mlp_bias");
  expect(qwen2 || mistral || o.width % o.heads == 0, o, "a width divisible by ", o.heads, " heads, got ", o.width);
  expect(o.rope->partial == 1, o, "rope partial 1 (all features of a head), got ", o.rope->partial);
  return families[qwen2 ? 2 : mistral ? 1 : 0];
}

Json gpt2_config(const GPT::Options& o) {
  expect(o.norm == Norm::layer, o, "norm = Norm::layer, got Norm::rms");
  expect(o.feed_forward == nn::FeedForward::gelu, o, "feed_forward = FeedForward::gelu, got swiglu");
  for (const auto& [name, bias] :
       {std::pair("bias", o.bias), std::pair("attention_bias", o.attention_bias),
        std::pair("attention_out_bias", o.attention_out_bias), std::pair("mlp_bias", o.mlp_bias)})
    expect(bias, o, name, " true, got false");
  expect(o.kv_heads == 0 || o.kv_heads == o.heads, o, "as many kv_heads as heads ", o.heads, ", got ", o.kv_heads);
  expect(o.window == 0, o, "window 0, got ", o.window);
  expect(o.head_size == 0 || o.head_size * o.heads == o.width, o, "head_size 0 (width / heads), got ", o.head_size);
  Json config(Json::Object{});
  config["architectures"] = Json::Array{Json("GPT2LMHeadModel")};
  config["model_type"] = "gpt2";
  config["activation_function"] = gelu_names[o.gelu == Gelu::tanh ? 0 : 1];
  config["vocab_size"] = o.vocab;
  config["n_positions"] = o.context;
  config["n_ctx"] = o.context;
  config["n_layer"] = o.layers;
  config["n_embd"] = o.width;
  config["n_head"] = o.heads;
  config["n_inner"] = o.inner == 0 ? Json() : Json(o.inner);
  config["layer_norm_epsilon"] = o.norm_eps;
  config["tie_word_embeddings"] = o.tied;
  for (const char* key : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) config[key] = o.dropout;
  return config;
}

Json llama_config(const GPT::Options& o) {
  const Family& f = family_of(o);
  const bool dynamic = o.rope->scaling == Rope::Scaling::dynamic;
  const int64_t context = dynamic && o.rope->original_context > 0 ? o.rope->original_context : o.context;
  Json config(Json::Object{});
  config["architectures"] = Json::Array{Json(f.architecture)};
  config["model_type"] = std::string(f.type);
  config["hidden_act"] = "silu";
  config["vocab_size"] = o.vocab;
  config["max_position_embeddings"] = context;
  config["num_hidden_layers"] = o.layers;
  config["hidden_size"] = o.width;
  config["intermediate_size"] = o.inner == 0 ? 4 * o.width : o.inner;
  config["num_attention_heads"] = o.heads;
  config["num_key_value_heads"] = o.kv_heads == 0 ? o.heads : o.kv_heads;
  config["head_dim"] = o.head_size == 0 ? o.width / o.heads : o.head_size;
  config["rms_norm_eps"] = o.norm_eps;
  config["tie_word_embeddings"] = o.tied;
  config["attention_dropout"] = o.dropout;
  if (f.query_bias) config["use_sliding_window"] = o.window > 0;
  if (o.window > 0) config["sliding_window"] = o.window;
  if (f.query_bias && o.window > 0) config["max_window_layers"] = o.window_from;
  for (int64_t i = 0; !f.query_bias && o.window_from > 0 && i < o.layers; ++i)
    config["layer_types"].push_back(i < o.window_from ? "full_attention" : "sliding_attention");
  if (f.type == "llama")
    config["attention_bias"] = o.bias && o.attention_bias, config["mlp_bias"] = o.bias && o.mlp_bias;
  add_rope(config, *o.rope, context);
  return config;
}

}  // namespace

bool is_without_effect(const std::string& key) { return without_effect.find(" " + key + " ") != without_effect.npos; }

Json config_of(const GPT::Options& o, DType dtype) {
  Json config = is_gpt2(o) ? gpt2_config(o) : llama_config(o);
  const std::string name = dtype == bf16 ? "bfloat16" : dtype == f16 ? "float16" : dtype == f64 ? "float64" : "float32";
  config["torch_dtype"] = name;
  config["dtype"] = name;
  return config;
}

}  // namespace lockstep::nn
