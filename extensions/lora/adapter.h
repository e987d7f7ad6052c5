#pragma once
// LoRA adapters in the folder format of Hugging Face's peft: adapter_config.json and adapter_model.safetensors. For
// unsupported options see README.md.
#include <string>

#include "extensions/lora/low_rank.h"
#include "nn/models/gpt.h"

namespace lockstep::nn {

/// True if the folder contains an adapter_config.json.
bool is_adapter(const std::string& folder);
/// The folder of the adapter's base model: `given`, or if that is empty the base_model_name_or_path of the adapter.
/// Error if it does not exist.
std::string adapter_base(const std::string& folder, const std::string& given = "");
/// Adds a folder's adapters to their base model and freezes the other parameters. All names, shapes and options are
/// checked first; on an Error nothing is changed.
Lora load_adapter(GPT& model, const std::string& folder);
/// Writes the adapters and modules_to_save of an unsharded model. base: folder of the base model. Error while the
/// adapters are merged, or for parameters that are sharded or empty.
void save_adapter(GPT& model, const Lora& lora, const std::string& folder, const std::string& base);

}  // namespace lockstep::nn
