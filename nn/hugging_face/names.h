#pragma once
// What our parameters are called in Hugging Face's files, and how they lie there.
#include <string>
#include <vector>

#include "nn/models/gpt.h"

namespace lockstep::nn {

/// A parameter, or some rows of one, in a file.
struct PretrainedPiece {
  std::string name;
  int64_t row = 0, rows = -1;  ///< of ours; -1: all
  bool transposed = false;     ///< GPT-2's Conv1D keeps weights as (in, out)
};
/// "blocks.0.attention.in_proj.weight" of a Llama: the three of q_proj, k_proj and v_proj. Error for an unknown name.
std::vector<PretrainedPiece> pretrained_pieces(const GPT::Options& o, const std::string& ours);
/// Those of a GPT-2, where each parameter is one tensor.
PretrainedPiece gpt2_piece(const std::string& ours);
/// The beginning that files of bare models leave out: "model." or "transformer.".
std::string pretrained_prefix(const GPT::Options& o);
/// What old files hold beside parameters: masks, frequencies.
bool is_no_weight(const std::string& name);
/// GPT-2's names and layout, or Llama's.
bool is_gpt2(const GPT::Options& o);

}  // namespace lockstep::nn
