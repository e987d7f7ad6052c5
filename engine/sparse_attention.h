#pragma once
// The block "sparse_attention" of a configuration file: its keys, and where they go. Not for users: they see config.h
// and engine.h.
#include <string>
#include <vector>

#include "engine/engine.h"
#include "nn/sparse.h"

namespace lockstep::engine {

/// nullopt where the block is false or null. What is wrong with it is added to `problems`.
std::optional<nn::SparsityConfig> read_sparse_attention(const data::Json& block, std::vector<std::string>& problems);
/// Of docs/config.md: each key with its modes and its default.
std::string sparse_attention_reference();
/// Sets it in every attention of the model, or of its layers when they are made, that has none. Gives what there is to
/// say of it, "" when the config asks for nothing. Error for a model without attention.
std::string set_sparse_attention(PipelineModule& module, const Config& config);

}  // namespace lockstep::engine
