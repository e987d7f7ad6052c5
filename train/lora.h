#pragma once
// Starting a language model from a Hugging Face folder, optionally training adapters (LoRA) instead of its weights.
#include <memory>
#include <optional>
#include <string>

#include "data/json.h"
#include "nn/lora.h"
#include "nn/models/gpt.h"

namespace lockstep::train {

/// The starting point of a training.
struct Start {
  std::string folder;                        ///< Hugging Face folder; "": none
  std::optional<nn::LoraOptions> lora = {};  ///< adapters; none: train all weights
  std::string quantize = {};                 ///< name of nn::quantize_options() for the frozen weights; "": none
};
/// Parses "FOLDER" or "FOLDER,lora=8,alpha=16,targets=q_proj+v_proj": the rank of the adapters, keys of
/// nn::LoraOptions, and quantize. Error for an unknown key or a wrong value.
Start read_start(const std::string& text, const std::string& option = "--init");
/// Help text of --init.
inline constexpr const char* start_help =
    "Hugging Face folder (GPT-2, Llama ...) to start from, with its sizes; with ,lora=RANK only adapters are trained: "
    "FOLDER,lora=8,alpha=16,dropout=0,rslora=false,targets=q_proj+v_proj,modules_to_save=head,"
    "quantize=group8|group4|row8|dynamic|llm_int8";

/// Loads the folder's model, in f32 or quantized.
std::unique_ptr<nn::GPT> from_start(const Start& start);
/// Help text of --quantize.
inline constexpr const char* quantize_help =
    "weights in 8 or 4 bits: group8, group4, row8, dynamic or llm_int8; group8,head: the head as well";

/// Returns the options of adapters as JSON for a run's config.json.
data::Json facts_of(const nn::LoraOptions& options);
/// Reads options of adapters from JSON that facts_of() returned. Errors begin with `where`.
nn::LoraOptions lora_options(const data::Json& facts, const std::string& where);

class Job;
/// Checks, before training, that export_model() can write to the folder. Warns of settings that Hugging Face's format
/// cannot store.
void prepare_export(const Job& job, const std::string& folder);
/// Writes a trained model, or its adapters, and the tokenizer as a Hugging Face folder. state: tensors of the whole
/// model.
void export_model(const nn::GPT::Options& sizes, const Start& start, const nn::State& state, const std::string& folder,
                  const std::string& tokenizer);

}  // namespace lockstep::train
