#pragma once
// Adapters of LoRA in folders as Hugging Face's peft writes and reads them: adapter_config.json and
// adapter_model.safetensors. What they may not say, and why: docs/lora.md.
#include <string>

#include "nn/lora.h"
#include "nn/models/gpt.h"

namespace lockstep::nn {

bool is_adapter(const std::string& folder);
/// The folder of the model that an adapter is for. Error when there is none at that place.
std::string adapter_base(const std::string& folder);
/// Puts a folder's adapters into the model that they are for, and freezes the rest. All names, shapes and options are
/// checked first: an Error, then, and nothing is changed.
Lora load_adapter(GPT& model, const std::string& folder);
/// Writes the adapters and modules_to_save of a model that is whole. base: the folder of the model that they are for.
void save_adapter(GPT& model, const Lora& lora, const std::string& folder, const std::string& base);

}  // namespace lockstep::nn
