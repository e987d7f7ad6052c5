#pragma once
// nn::GPT as a list of layers.
#include <memory>
#include <vector>

#include "nn/gpt.h"
#include "pipeline/engine.h"

namespace lockstep::pipeline {

/// Token and position embeddings, the two halves of each block (attention, MLP), final norm, head; the table is tied where the model's is. A rank that
/// builds one takes it out of `model`; what no layer here takes goes with it. Its SequencePart holds for the layers. recompute: halves keep only what goes in.
std::vector<LayerSpec> gpt_layers(const std::shared_ptr<nn::GPT>& model, bool recompute = false);
/// How many those are.
constexpr int64_t gpt_layer_count(int64_t blocks) { return 2 * blocks + 4; }
/// Mean cross entropy of targets i64 (B, T), on what the head gives; in training with the aux losses of experts, whose sum goes along from layer to
/// layer as a second value.
Loss gpt_loss(const nn::GPT& model);

}  // namespace lockstep::pipeline
