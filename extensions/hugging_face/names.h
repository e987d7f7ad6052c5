#pragma once
// Mapping of parameter names and layouts to those in Hugging Face files.
#include <string>
#include <vector>

#include "nn/models/gpt.h"

namespace lockstep::nn {

/// A tensor in a file. It holds a whole parameter, or some of a parameter's rows.
struct PretrainedPiece {
  std::string name;
  int64_t row = 0, rows = -1;  ///< the rows of the parameter in this piece; rows -1: all
  bool transposed = false;     ///< true: the file stores the transpose (in, out), as GPT-2's Conv1D does
};
/// The tensors that hold a parameter. For "blocks.0.attention.in_proj.weight" of a Llama: q_proj, k_proj and v_proj.
/// Error for an unknown name.
std::vector<PretrainedPiece> pretrained_pieces(const GPT::Options& o, const std::string& ours);
/// The tensor that holds a parameter of a GPT-2, where each parameter is one tensor.
PretrainedPiece gpt2_piece(const std::string& ours);
/// The prefix that files of models without a head omit: "model." or "transformer.".
std::string pretrained_prefix(const GPT::Options& o);
/// True for tensors in old files that are not parameters: masks, rotary frequencies.
bool is_no_weight(const std::string& name);
/// True if GPT-2's names and layout apply, false for Llama's.
bool is_gpt2(const GPT::Options& o);

}  // namespace lockstep::nn
