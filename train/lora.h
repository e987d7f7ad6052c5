#pragma once
// Where a language model starts from, and adapters that are trained in place of its weights.
#include <memory>
#include <optional>
#include <string>

#include "data/json.h"
#include "nn/lora.h"
#include "nn/models/gpt.h"

namespace lockstep::train {

struct Start {
  std::string folder;  ///< Hugging Face's; "": none
  std::optional<nn::LoraOptions> lora = {};
  std::string quantize = {};  ///< a name of nn::quantize_options(): adapters beside weights in codes; "": floating
};
/// "FOLDER" or "FOLDER,lora=8,alpha=16,targets=q_proj+v_proj": its adapters' rank, keys of nn::LoraOptions, and
/// quantize. Error that begins with the option, and says what is known.
Start read_start(const std::string& text, const std::string& option = "--init");
inline constexpr const char* start_help =
    "Hugging Face folder (GPT-2, Llama ...) to start from, with its sizes; with ,lora=RANK only adapters are trained: "
    "FOLDER,lora=8,alpha=16,dropout=0,rslora=false,targets=q_proj+v_proj,modules_to_save=head,"
    "quantize=group8|group4|row8|dynamic|llm_int8";

/// Its folder's model in f32, or in codes.
std::unique_ptr<nn::GPT> from_start(const Start& start);
inline constexpr const char* quantize_help =
    "weights in 8 or 4 bits: group8, group4, row8, dynamic or llm_int8; group8,head: the head as well";

/// As a run's config.json has them.
data::Json facts_of(const nn::LoraOptions& options);
nn::LoraOptions lora_options(const data::Json& facts, const std::string& where);

class Job;
/// Before training: Error when export_model() cannot write there, and a warning of what its files leave out.
void prepare_export(const Job& job, const std::string& folder);
/// Writes a trained model, or its adapters, as a Hugging Face folder with the tokenizer of that folder. state: of the
/// whole model.
void export_model(const nn::GPT::Options& sizes, const Start& start, const nn::State& state, const std::string& folder,
                  const std::string& tokenizer);

}  // namespace lockstep::train
