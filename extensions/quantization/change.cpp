// Quantised weights in programs: the key "quantize" of a run's config.json, and the option --quantize.
#include "extensions/quantization/quantize.h"
#include "train/model_format.h"

namespace lockstep::train {

std::vector<ModelChange> quantization_changes() {
  return {{.key = "quantize",
           .apply =
               [](nn::GPT& model, const data::Json& facts, const std::string& where) {
                 if (const data::Json* codes = facts.find("quantize"))
                   nn::quantize(model, nn::quantize_options(codes->as_string(where)));
               },
           .help = "weights in 8 or 4 bits: group8, group4, row8, dynamic or llm_int8; group8,head: the head as well",
           .check = [](const std::string& text) { nn::quantize_options(text); }}};
}

}  // namespace lockstep::train
