#include "apps/gpt/hugging_face.h"

#include <filesystem>

#include "data/files.h"
#include "data/json.h"
#include "data/safetensors.h"

namespace apps {

using namespace lockstep;
using data::Json;

namespace {

struct Rename { const char* ours; const char* theirs; bool transposed; };
constexpr Rename kTop[] = {{"tokens.weight", "transformer.wte.weight", false}, {"positions.weight", "transformer.wpe.weight", false},
                           {"norm.weight", "transformer.ln_f.weight", false}, {"norm.bias", "transformer.ln_f.bias", false}, {"head", "lm_head.weight", false}};
constexpr Rename kBlock[] = {{"norm1", "ln_1", false}, {"attention.in_proj", "attn.c_attn", true}, {"attention.out_proj", "attn.c_proj", true},
                             {"norm2", "ln_2", false}, {"mlp.up", "mlp.c_fc", true}, {"mlp.down", "mlp.c_proj", true}};

const std::string kActivations[] = {"gelu_new", "gelu"};  // tanh form, erf form

}  // namespace

HuggingFaceName hugging_face_name(const std::string& ours) {
  for (const Rename& r : kTop) if (ours == r.ours) return {r.theirs, r.transposed};
  LOCKSTEP_CHECK(ours.starts_with("blocks."), "[hugging_face_name] unknown parameter '", ours, "'");
  const size_t dot = ours.find('.', 7), last = ours.rfind('.');
  const std::string part = ours.substr(dot + 1, last - dot - 1), leaf = ours.substr(last);
  for (const Rename& r : kBlock) {
    if (part == r.ours) return {"transformer.h." + ours.substr(7, dot - 7) + "." + r.theirs + leaf, r.transposed && leaf == ".weight"};
  }
  fail("[hugging_face_name] unknown parameter '" + ours + "'");
}

std::unique_ptr<nn::GPT> load_hugging_face(const std::string& folder) {
  const std::string config_path = folder + "/config.json";
  const Json config = data::read_json(config_path);
  const auto number = [&](const char* key, int64_t otherwise) {
    const Json* value = config.find(key);
    return value && !value->is_null() ? value->as_int(config_path + ": " + key) : otherwise;
  };
  const Json* type = config.find("model_type");
  LOCKSTEP_CHECK(!type || type->as_string(config_path + ": model_type") == "gpt2", config_path, ": expected model_type 'gpt2', got ", type->dump());
  const Json* activation = config.find("activation_function");
  const std::string gelu = activation ? activation->as_string(config_path + ": activation_function") : kActivations[0];
  LOCKSTEP_CHECK(gelu == kActivations[0] || gelu == kActivations[1], config_path, ": expected activation_function 'gelu_new' or 'gelu', got '", gelu, "'");
  for (const char* key : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"}) {
    const Json* value = config.find(key);
    LOCKSTEP_CHECK(!value || value->is_null() || !value->as_bool(config_path + ": " + key), config_path, ": ", key, " is not supported");
  }
  const Json* eps = config.find("layer_norm_epsilon");
  const Json* tied = config.find("tie_word_embeddings");
  auto model = std::make_unique<nn::GPT>(nn::GPT::Options{
      .vocab = number("vocab_size", 50257), .context = number("n_positions", 1024), .layers = number("n_layer", 12), .width = number("n_embd", 768), .heads = number("n_head", 12),
      .inner = number("n_inner", 0), .norm_eps = eps ? eps->as_number(config_path + ": layer_norm_epsilon") : 1e-5,
      .gelu = gelu == kActivations[0] ? Gelu::tanh : Gelu::erf, .tied = !tied || tied->is_null() || tied->as_bool(config_path + ": tie_word_embeddings")});

  const std::string weights_path = folder + "/model.safetensors";
  const auto file = data::SafeTensors::open(weights_path);
  nn::State state;
  for (const auto& p : model->named_parameters()) {
    const HuggingFaceName theirs = hugging_face_name(p.name);
    // Files of the bare GPT2Model have no "transformer." in front.
    const std::string bare = theirs.name.starts_with("transformer.") ? theirs.name.substr(12) : theirs.name;
    LOCKSTEP_CHECK(file.contains(theirs.name) || file.contains(bare), weights_path, ": expected a tensor '", theirs.name, "', there is none");
    const Tensor tensor = file.tensor(file.contains(theirs.name) ? theirs.name : bare);
    LOCKSTEP_CHECK(!theirs.transposed || tensor.dim() == 2, weights_path, ": expected ", theirs.name, " to be a matrix, got ", tensor.shape());
    state.emplace_back(p.name, theirs.transposed ? tensor.t() : tensor);
  }
  model->load_state(state);
  data::check_mapped_files();
  return model;
}

void save_hugging_face(nn::GPT& model, const std::string& folder) {
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
}

std::unique_ptr<data::Tokenizer> load_tokenizer(const std::string& folder) {
  namespace fs = std::filesystem;
  if (fs::exists(folder + "/tokenizer.json") || fs::exists(folder + "/vocab.json")) return std::make_unique<data::Gpt2Tokenizer>(data::Gpt2Tokenizer::from_folder(folder));
  return std::make_unique<data::ByteTokenizer>();
}

}  // namespace apps
