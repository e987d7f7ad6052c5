#include "nn/hugging_face/gpt2.h"

#include <charconv>
#include <filesystem>

#include "data/files.h"
#include "data/json.h"
#include "data/safetensors.h"
#include "data/tokenizer.h"

namespace lockstep::nn {

using data::Json;

namespace {

struct Rename {
  const char* ours;
  const char* theirs;
  bool transposed;
};
constexpr Rename kTop[] = {{"tokens.weight", "transformer.wte.weight", false},
                           {"positions.weight", "transformer.wpe.weight", false},
                           {"norm.weight", "transformer.ln_f.weight", false},
                           {"norm.bias", "transformer.ln_f.bias", false},
                           {"head.weight", "lm_head.weight", false}};
constexpr Rename kBlock[] = {{"norm1", "ln_1", false},
                             {"attention.in_proj", "attn.c_attn", true},
                             {"attention.out_proj", "attn.c_proj", true},
                             {"norm2", "ln_2", false},
                             {"mlp.up", "mlp.c_fc", true},
                             {"mlp.down", "mlp.c_proj", true}};

const std::string kActivations[] = {"gelu_new", "gelu"};  // tanh form, erf form

}  // namespace

HuggingFaceName hugging_face_name(const std::string& ours) {
  for (const Rename& r : kTop)
    if (ours == r.ours) return {r.theirs, r.transposed};
  LOCKSTEP_CHECK(ours.starts_with("blocks."), "[hugging_face_name] unknown parameter '", ours, "'");
  const size_t dot = ours.find('.', 7), last = ours.rfind('.');
  const std::string part = ours.substr(dot + 1, last - dot - 1), leaf = ours.substr(last);
  for (const Rename& r : kBlock) {
    if (part == r.ours)
      return {"transformer.h." + ours.substr(7, dot - 7) + "." + r.theirs + leaf, r.transposed && leaf == ".weight"};
  }
  fail("[hugging_face_name] unknown parameter '" + ours + "'");
}

namespace {

GPT::Options read_options(const std::string& config_path) {
  const Json config = data::read_json(config_path);
  const auto number = [&](const char* key, int64_t otherwise) {
    const Json* value = config.find(key);
    return value && !value->is_null() ? value->as_int(config_path + ": " + key) : otherwise;
  };
  const Json* type = config.find("model_type");
  LOCKSTEP_CHECK(!type || type->as_string(config_path + ": model_type") == "gpt2", config_path,
                 ": expected model_type 'gpt2', got ", type->dump());
  const Json* activation = config.find("activation_function");
  const std::string gelu = activation ? activation->as_string(config_path + ": activation_function") : kActivations[0];
  LOCKSTEP_CHECK(gelu == kActivations[0] || gelu == kActivations[1], config_path,
                 ": expected activation_function 'gelu_new' or 'gelu', got '", gelu, "'");
  for (const char* key : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"}) {
    const Json* value = config.find(key);
    LOCKSTEP_CHECK(!value || value->is_null() || !value->as_bool(config_path + ": " + key), config_path, ": ", key,
                   " is not supported");
  }
  const Json* eps = config.find("layer_norm_epsilon");
  const Json* tied = config.find("tie_word_embeddings");
  return {.vocab = number("vocab_size", 50257),
          .context = number("n_positions", 1024),
          .layers = number("n_layer", 12),
          .width = number("n_embd", 768),
          .heads = number("n_head", 12),
          .inner = number("n_inner", 0),
          .norm_eps = eps ? eps->as_number(config_path + ": layer_norm_epsilon") : 1e-5,
          .gelu = gelu == kActivations[0] ? Gelu::tanh : Gelu::erf,
          .tied = !tied || tied->is_null() || tied->as_bool(config_path + ": tie_word_embeddings")};
}

}  // namespace

GPT::Options gpt_options(const std::string& text, const GPT::Options& usual) {
  if (std::filesystem::is_directory(text)) return read_options(text + "/config.json");
  if (text.ends_with(".json")) return read_options(text);
  int64_t numbers[3];
  bool good = text.starts_with("gpt:");
  const char *at = text.data() + std::min<size_t>(4, text.size()), *const end = text.data() + text.size();
  for (int i = 0; i < 3 && good; ++i) {
    const auto [stop, error] = std::from_chars(at, end, numbers[i]);
    good = error == std::errc() && numbers[i] >= 1 && numbers[i] <= 1'000'000 && (i == 2 ? stop == end : *stop == 'x');
    at = stop + 1;
  }
  LOCKSTEP_CHECK(good,
                 "expected a model as gpt:LAYERSxWIDTHxHEADS, such as gpt:12x768x12, or a GPT-2's config.json, got \"",
                 text, "\"");
  GPT::Options o = usual;
  o.layers = numbers[0], o.width = numbers[1], o.heads = numbers[2];
  LOCKSTEP_CHECK(o.width % o.heads == 0, text, ": width ", o.width, " is not a multiple of heads ", o.heads);
  return o;
}

std::unique_ptr<GPT> load_hugging_face(const std::string& folder) {
  auto model = std::make_unique<GPT>(read_options(folder + "/config.json"));
  const std::string weights_path = folder + "/model.safetensors";
  const auto file = data::SafeTensors::open(weights_path);
  State state;
  for (const auto& p : model->named_parameters()) {
    const HuggingFaceName theirs = hugging_face_name(p.name);
    // Files of the bare GPT2Model have no "transformer." in front.
    const std::string bare = theirs.name.starts_with("transformer.") ? theirs.name.substr(12) : theirs.name;
    LOCKSTEP_CHECK(file.contains(theirs.name) || file.contains(bare), weights_path, ": expected a tensor '",
                   theirs.name, "', there is none");
    const Tensor tensor = file.tensor(file.contains(theirs.name) ? theirs.name : bare);
    LOCKSTEP_CHECK(!theirs.transposed || tensor.dim() == 2, weights_path, ": expected ", theirs.name,
                   " to be a matrix, got ", tensor.shape());
    state.emplace_back(p.name, theirs.transposed ? tensor.t() : tensor);
  }
  model->load_state(state);
  data::check_mapped_files();
  return model;
}

void save_hugging_face(GPT& model, const std::string& folder, const std::string& tokenizer) {
  std::filesystem::create_directories(folder);
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const auto& p : model.named_parameters()) {
    const HuggingFaceName theirs = hugging_face_name(p.name);
    const Tensor values = p.variable.tensor().to(cpu);
    tensors.emplace_back(theirs.name, theirs.transposed ? values.t().contiguous() : values);
  }
  Json config(Json::Object{});
  config["architectures"] = Json::Array{Json("GPT2LMHeadModel")};
  config["model_type"] = "gpt2";
  config["activation_function"] = kActivations[model.o.gelu == Gelu::tanh ? 0 : 1];
  config["vocab_size"] = model.o.vocab;
  config["n_positions"] = model.o.context;
  config["n_ctx"] = model.o.context;
  config["n_layer"] = model.o.layers;
  config["n_embd"] = model.o.width;
  config["n_head"] = model.o.heads;
  config["n_inner"] = model.o.inner == 0 ? Json() : Json(model.o.inner);
  config["layer_norm_epsilon"] = model.o.norm_eps;
  config["tie_word_embeddings"] = model.o.tied;
  for (const char* key : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) config[key] = model.o.dropout;
  config["torch_dtype"] = "float32";
  data::save_safetensors(folder + "/model.safetensors", tensors, {{"format", "pt"}});
  data::write_atomically(folder + "/config.json", config.dump(2) + "\n");
  data::copy_tokenizer(tokenizer, folder);
}

}  // namespace lockstep::nn
