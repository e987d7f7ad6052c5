#pragma once
// The "sparse_attention" block of a configuration file: reads its keys and applies it to a model. Not for users: they
// see config.h and engine.h.
#include <string>
#include <vector>

#include "engine/engine.h"
#include "nn/sparse.h"

namespace lockstep::engine {

/// Reads the "sparse_attention" block. Returns nullopt if the block is false or null. Adds its errors to `problems`.
std::optional<nn::SparsityConfig> read_sparse_attention(const data::Json& block, std::vector<std::string>& problems);
/// Returns the section of docs/config.md about the block: each key, the modes that use it, and its default.
std::string sparse_attention_reference();
/// Gives the config's sparse layout to every attention layer that has no sparse layout yet. If `module` is a list of
/// layers that are built later, each gets the layout when it is built. Returns a message about the change, or "" if the
/// config has no sparse layout. Error for a model without attention.
std::string set_sparse_attention(PipelineModule& module, const Config& config);

}  // namespace lockstep::engine
