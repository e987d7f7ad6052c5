// Hugging Face folders in the programs: for --init, --export, --tokenizer, and commands that take a folder.
#include "extensions/hugging_face/format.h"

#include <filesystem>
#include <iostream>
#include <optional>

#include "data/files.h"
#include "extensions/hugging_face/config.h"
#include "extensions/hugging_face/pretrained.h"
#include "extensions/hugging_face/tokenizer.h"
#include "extensions/quantization/quantize.h"
#include "nn/init.h"
#include "train/job.h"

namespace lockstep::train {

using data::Json;

LanguageModel load_hugging_face(const std::string& folder, const ModelLoadOptions& options) {
  nn::PretrainedOptions settings{.dtype = options.dtype};
  Json others(Json::Object{});  // changes to make once the model is loaded
  for (const auto& [key, value] : options.changes.as_object()) {
    if (key == "quantize") settings.quantize = nn::quantize_options(value.as_string(key));
    else others[key] = value;
  }
  LanguageModel m{.model = nn::from_pretrained(folder, settings), .ends = nn::eos_tokens(folder)};
  // A model that reads bytes and was written by --export has no tokenizer in its folder.
  const bool of_bytes = !data::has_tokenizer(folder) && m.model->o.vocab == 256;
  if (!of_bytes) m.folder = folder;
  make_changes(*m.model, others, folder);
  return m;
}

void prepare_hugging_face(const TrainJob& job, const std::string& folder) {
  const Json* const sparse = job.file().find("sparse_attention");
  if (sparse && sparse->is_object())
    std::cerr << "warning: --export " << folder << ": Hugging Face's format cannot store sparse_attention: readers "
              << "will attend to all tokens; a run's folder (--out) stores it\n";
}

namespace {

std::optional<nn::GPT::Options> sizes_of(const std::string& path) {
  if (std::filesystem::is_directory(path)) return nn::pretrained_options(path);
  if (!path.ends_with(".json")) return std::nullopt;
  return nn::options_from_config(data::read_json(path, data::python_json), path);
}

void save(const nn::GPT::Options& sizes, const Start& start, const nn::State& state, const std::string& folder,
          const std::string& tokenizer) {
  std::optional<nn::BuildEmpty> empty(std::in_place);
  nn::GPT full(sizes);
  make_changes(full, start.changes, folder);  // `state` is that of the changed model
  empty.reset();
  full.load_state(state);
  if (std::filesystem::exists(start.folder + "/config.json"))
    full.notes = std::make_shared<const nn::FolderNotes>(nn::folder_notes(start.folder));
  nn::save_pretrained(full, folder, {.tokenizer = tokenizer});
}

void copy(const std::string& from, const std::string& to) {
  data::copy_tokenizer(from, to);
  const Json generation = nn::folder_notes(from).generation;
  const std::string file = to + "/generation_config.json";
  if (generation.as_object().empty()) std::filesystem::remove(file);
  else data::write_atomically(file, generation.dump(2) + "\n");
}

}  // namespace

std::vector<ModelFormat> hugging_face_formats() {
  return {{.name = "Hugging Face folder",
           .is_model = nn::is_pretrained,
           .load = load_hugging_face,
           .loads_empty = true,
           .files = "model.safetensors, or model.safetensors.index.json and its shards",
           .start_help = "Hugging Face folder (GPT-2, Llama ...) to start from, with its sizes",
           .sizes = sizes_of,
           .sizes_help = "a config.json of model_type gpt2, llama, mistral or qwen2",
           .export_help = "a Hugging Face folder",
           .exports = [](const Start&) { return true; },
           .prepare_export = prepare_hugging_face,
           .save = save}};
}

std::vector<TokenizerFormat> hugging_face_tokenizers() {
  return {{.help = "folder of a tokenizer.json, or GPT-2's vocab.json and merges.txt",
           .is_in = data::has_tokenizer,
           .load = data::load_tokenizer,
           .identity = data::tokenizer_identity,
           .copy = copy,
           .ends = nn::eos_tokens}};
}

}  // namespace lockstep::train
