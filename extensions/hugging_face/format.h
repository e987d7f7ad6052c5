#pragma once
// Hugging Face folders as a model format of the programs: loading, and warnings before an export.
#include "train/model_format.h"

namespace lockstep::train {

/// Loads a folder's model; its weights are quantised while they are read if options.changes has "quantize".
LanguageModel load_hugging_face(const std::string& folder, const ModelLoadOptions& options);
/// Warns before training of settings that Hugging Face's format cannot store.
void prepare_hugging_face(const TrainJob& job, const std::string& folder);

}  // namespace lockstep::train
