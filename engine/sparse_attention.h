#pragma once
// The "sparse_attention" block of a configuration file: reads its keys and applies it to a model. Not for users: they
// see config.h and engine.h.
#include <string>
#include <vector>

#include "engine/engine.h"
#include "nn/sparse.h"

namespace lockstep::engine {

/// Reads the block; nullopt for false or null. Errors in the block are added to `problems`.
std::optional<nn::SparsityConfig> read_sparse_attention(const data::Json& block, std::vector<std::string>& problems);
/// The section of docs/config.md: each key with the modes that it belongs to, and its default.
std::string sparse_attention_reference();
/// Sets the config's sparsity in every attention of the model (or of its layers, when they are built) that has none of
/// its own. Returns a message about the change; "" when the config asks for none. Error for a model without attention.
std::string set_sparse_attention(PipelineModule& module, const Config& config);

}  // namespace lockstep::engine
