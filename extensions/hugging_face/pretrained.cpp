// Loading and saving of Hugging Face folders. See pretrained.h.
#include "extensions/hugging_face/pretrained.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "data/files.h"
#include "extensions/hugging_face/config.h"
#include "extensions/hugging_face/names.h"
#include "extensions/hugging_face/tokenizer.h"
#include "extensions/hugging_face/weights.h"
#include "nn/init.h"

namespace lockstep::nn {

using data::Json;

namespace {

constexpr const char* token_ids[] = {"bos_token_id", "eos_token_id", "pad_token_id"};

/// Fills in derived defaults and drops options that do not affect the weights, so that two models can be compared.
GPT::Options settled(GPT::Options o) {
  if (o.kv_heads == 0) o.kv_heads = o.heads;
  if (o.head_size == 0 && o.heads > 0) o.head_size = o.width / o.heads;
  if (o.inner == 0) o.inner = 4 * o.width;
  for (bool* bias : {&o.attention_bias, &o.attention_out_bias, &o.mlp_bias}) *bias = *bias && o.bias;
  o.bias = o.bias && o.norm == Norm::layer;
  if (o.feed_forward == nn::FeedForward::swiglu) o.gelu = Gelu::tanh;
  if (o.rope) o.context = 0;
  o.dropout = 0, o.checkpoint_blocks = false;
  return o;
}

Tensor values_of(const Weights& weights, const std::vector<PretrainedPiece>& pieces) {
  std::vector<Tensor> parts;
  for (const PretrainedPiece& piece : pieces) {
    const Tensor part = weights.tensor(piece.name);
    parts.push_back(piece.transposed ? part.t() : part);
  }
  return parts.size() == 1 ? parts[0] : cat(parts, 0);
}

Shape shape_there(const Shape& ours, const PretrainedPiece& piece) {
  Shape shape = ours;
  if (piece.rows >= 0) shape[0] = piece.rows;
  if (piece.transposed) std::swap(shape[0], shape[1]);
  return shape;
}

/// Error, in one line, for tensors that are missing, have the wrong shape or are unknown; names at most five of each.
void check_weights(const Weights& weights, const GPT::Options& o, const std::vector<NamedParameter>& parameters) {
  std::vector<std::string> missing, wrong, unknown = weights.names();
  std::set<std::string> known;
  for (const NamedParameter& p : parameters) {
    for (const PretrainedPiece& piece : pretrained_pieces(o, p.name)) {
      known.insert(piece.name);
      if (!weights.contains(piece.name)) {
        missing.push_back(piece.name);
        continue;
      }
      const auto& entry = weights.entry(piece.name);
      const Shape wanted = shape_there(p.variable.shape(), piece);
      if (!(entry.shape == wanted)) wrong.push_back(str(piece.name, " of shape ", wanted, ", got ", entry.shape));
      else if (!is_floating(entry.dtype)) wrong.push_back(str(piece.name, " of a floating dtype, got ", entry.dtype));
    }
  }
  const std::string prefix = pretrained_prefix(o);
  std::erase_if(unknown, [&](const std::string& name) {
    return known.count(name) || known.count(prefix + name) || is_no_weight(name) ||
           (o.tied && name == "lm_head.weight");
  });
  const auto list = [](const std::vector<std::string>& all) {
    std::string text;
    for (size_t i = 0; i < std::min<size_t>(all.size(), 5); ++i) text += (i ? ", " : "") + all[i];
    return text + (all.size() > 5 ? str(", ... (", all.size(), ")") : "");
  };
  LOCKSTEP_CHECK(missing.empty(), weights.folder(), ": missing tensors: ", list(missing),
                 "; is its config.json that of these weights? fetch the folder again");
  LOCKSTEP_CHECK(wrong.empty(), weights.folder(), ": expected ", list(wrong),
                 "; is its config.json that of these weights? fetch the folder again");
  LOCKSTEP_CHECK(unknown.empty(), weights.folder(), ": unexpected tensors for its config.json: ", list(unknown),
                 "; is it the config.json of these weights? fetch the folder again");
  if (!o.tied || !weights.contains("lm_head.weight")) return;
  const std::string table = pretrained_pieces(o, "tokens.weight")[0].name;
  const bool same = weights.entry("lm_head.weight").shape == weights.entry(table).shape &&
                    weights.entry("lm_head.weight").dtype == weights.entry(table).dtype &&
                    equal(weights.tensor("lm_head.weight"), weights.tensor(table));
  LOCKSTEP_CHECK(same, weights.folder(), ": tie_word_embeddings is true, and lm_head.weight differs from ", table,
                 "; set tie_word_embeddings to false");
}

void start_with_weights(GPT& model, const std::shared_ptr<const Weights>& weights) {
  const auto parameters = model.named_parameters();
  check_weights(*weights, model.o, parameters);
  for (const NamedParameter& p : parameters) {
    const auto pieces = pretrained_pieces(model.o, p.name);
    start_with(p.variable, pieces[0].name + " of a file", [weights, pieces] { return values_of(*weights, pieces); });
  }
  data::check_mapped_files();
}

}  // namespace

GPT::Options pretrained_options(const std::string& folder) {
  const std::string path = folder + "/config.json";
  return options_from_config(data::read_json(path, data::python_json), path);
}

bool is_pretrained(const std::string& folder) {
  return std::filesystem::exists(folder + "/model.safetensors") ||
         std::filesystem::exists(folder + "/model.safetensors.index.json");
}

FolderNotes folder_notes(const std::string& folder) {
  const auto read = [&](const char* name) {
    const std::string path = folder + name;
    Json json = std::filesystem::exists(path) ? data::read_json(path, data::python_json) : Json(Json::Object{});
    return json.as_object(path), json;
  };
  FolderNotes notes{read("/config.json"), read("/generation_config.json")};
  for (const char* key : token_ids) {
    const Json *const id = notes.config.find(key), *const there = notes.generation.find(key);
    if (id && !id->is_null() && (!there || there->is_null())) notes.generation[key] = *id;
  }
  return notes;
}

const FolderNotes* folder_notes(const GPT& model) {
  const auto* const notes = std::any_cast<std::shared_ptr<const FolderNotes>>(&model.notes);
  return notes ? notes->get() : nullptr;
}

std::vector<int64_t> eos_tokens(const std::string& folder) {
  const Json generation = folder.empty() ? Json() : folder_notes(folder).generation;
  const Json* const eos = generation.find(token_ids[1]);
  const std::string where = folder + ": eos_token_id";
  if (!eos || eos->is_null()) return {};
  if (!eos->is_array()) return {eos->as_int(where)};
  std::vector<int64_t> all;
  for (const Json& one : eos->as_array()) all.push_back(one.as_int(where));
  return all;
}

std::unique_ptr<GPT> from_pretrained(const std::string& folder, const PretrainedOptions& options) {
  std::optional<QuantizeOptions> quantization = options.quantize;
  LOCKSTEP_CHECK(int(quantization.has_value()) + int(options.load_in_8bit) + int(options.load_in_4bit) <= 1,
                 "[from_pretrained] expected one of quantize, load_in_8bit and load_in_4bit, got several");
  if (options.load_in_8bit) quantization = quantize_options("llm_int8");
  if (options.load_in_4bit) quantization = quantize_options("group4");
  const GPT::Options o = pretrained_options(folder);
  eos_tokens(folder);  // raises errors in the token ids now rather than later
  const auto weights = std::make_shared<const Weights>(Weights::open(folder, pretrained_prefix(o)));
  check_file_totals(folder + "/config.json", weights->held(), double(o.layers));  // check_weights() compares the rest
  std::unique_ptr<GPT> model;
  {
    const BuildEmpty scope;
    model = std::make_unique<GPT>(o);
  }
  model->notes = std::make_shared<const FolderNotes>(folder_notes(folder));
  const std::string table = pretrained_pieces(o, "tokens.weight")[0].name;
  const DType dtype = options.dtype.value_or(weights->entry(table).dtype);
  LOCKSTEP_CHECK(is_floating(dtype), folder, ": expected ", table, " of a floating dtype, got ", dtype,
                 options.dtype ? "; give dtype f32, f16, bf16 or f64" : "; fetch the folder again");
  if (dtype != f32) model->to(dtype);
  start_with_weights(*model, weights);
  if (quantization) quantize(*model, *quantization);
  if (BuildEmpty::is_active()) return model;
  fill(*model);
  data::check_mapped_files();
  return model;
}

void load_pretrained(GPT& model, const std::string& folder) {
  LOCKSTEP_CHECK(
      !is_quantized(model),
      "[load_pretrained] expected floating weights, these are quantised; load into the model before quantize()");
  const GPT::Options there = settled(pretrained_options(folder)), here = settled(model.o);
  LOCKSTEP_CHECK(there == here, folder, ": expected a config.json with the options of this GPT of ", model.options(),
                 ", got others; build the GPT with pretrained_options() of this folder");
  start_with_weights(model, std::make_shared<const Weights>(Weights::open(folder, pretrained_prefix(there))));
  model.notes = std::make_shared<const FolderNotes>(folder_notes(folder));
}

void load_pretrained(GPT& model, const std::vector<std::string>& files) {
  start_with_weights(model, std::make_shared<const Weights>(Weights::of_files(files, pretrained_prefix(model.o))));
}

void save_pretrained(GPT& model, const std::string& folder, const PretrainedSaveOptions& options) {
  LOCKSTEP_CHECK(!is_quantized(model),
                 "[save_pretrained] expected floating weights: Transformers cannot read these codes; save state() with "
                 "quantized_metadata()");
  const auto parameters = model.named_parameters();
  const DType dtype = parameters[0].variable.dtype();
  Json config = config_of(model.o, dtype);
  Json generation = options.tokenizer.empty() ? Json(Json::Object{}) : folder_notes(options.tokenizer).generation;
  const FolderNotes* const notes = folder_notes(model);
  if (generation.as_object().empty() && notes) generation = notes->generation;
  for (const char* key : token_ids) config[key] = generation.find(key) ? *generation.find(key) : Json();
  for (const auto& [key, value] : notes ? notes->config.as_object() : Json::Object())
    if (is_without_effect(key) && (!config.find(key) || key.find("drop") != key.npos)) config[key] = value;
  std::vector<NamedMaker> tensors;
  for (const NamedParameter& p : parameters) {
    for (const PretrainedPiece& piece : pretrained_pieces(model.o, p.name)) {
      const int64_t numel = numel_of(shape_there(p.variable.shape(), piece));
      tensors.push_back({piece.name, numel * size_of(p.variable.dtype()), [value = p.variable, piece] {
                           Tensor t = value.tensor().to(cpu);
                           if (piece.rows >= 0) t = t.narrow(0, piece.row, piece.rows);
                           return piece.transposed ? t.t().contiguous() : t;
                         }});
    }
  }
  std::filesystem::create_directories(folder);
  write_weights(folder, tensors, options.max_shard_size);
  data::write_atomically(folder + "/config.json", config.dump(2) + "\n");
  data::copy_tokenizer(options.tokenizer, folder);
  if (!generation.as_object().empty())
    data::write_atomically(folder + "/generation_config.json", generation.dump(2) + "\n");
}

int64_t resize_token_embeddings(GPT& model, int64_t vocab, int64_t pad_to_multiple_of) {
  const char* const op = "[resize_token_embeddings]";
  LOCKSTEP_CHECK(pad_to_multiple_of >= 1, op, " expected pad_to_multiple_of >= 1, got ", pad_to_multiple_of);
  LOCKSTEP_CHECK(vocab >= 1 && vocab <= INT32_MAX, op, " expected a vocabulary from 1 to 2147483647 tokens, got ",
                 vocab);
  vocab = (vocab + pad_to_multiple_of - 1) / pad_to_multiple_of * pad_to_multiple_of;
  LOCKSTEP_CHECK(!is_quantized(model), op, " expected floating weights, got quantised ones; resize before quantize()");
  std::vector<Variable*> tables{&model.tokens_table.weight};
  if (!model.o.tied) tables.push_back(&model.head.weight);  // a tied head holds the same variable
  for (const Variable* table : tables)
    LOCKSTEP_CHECK(
        !table->tensor().storage()->is_empty() && !model.head.attached.place && table->size(0) == model.o.vocab, op,
        " expected whole tables, these are empty or sharded; resize before a plan is applied");
  const NoGrad no_grad;
  const int64_t kept = std::min(vocab, model.o.vocab);
  for (Variable* const table : tables) {
    const Tensor old = table->tensor();
    std::vector<Tensor> rows{old.narrow(0, 0, kept)};
    if (vocab > kept)  // summed in f32, as 16 bits would lose the mean of many rows
      rows.push_back(
          mean(old.to(old.dtype() == f64 ? f64 : f32), {0}, true).to(old.dtype()).expand({vocab - kept, old.size(1)}));
    table->set_tensor(cat(rows, 0));
  }
  model.o.vocab = vocab;
  return vocab;
}

}  // namespace lockstep::nn
