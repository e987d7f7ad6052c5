#pragma once
// Keys of DeepSpeed's configuration files that have no effect of their own.
#include <string>
#include <vector>

#include "engine/config_table.h"

namespace lockstep::engine {

/// The treatment of a key that has no effect of its own.
enum class Status {
  inert,    ///< accepted without effect
  off,      ///< accepted only at the value that switches it off: the feature is not built
  removed,  ///< like `off`; DeepSpeed has removed the key
  renamed,  ///< deprecated name of another key
  alias,    ///< equivalent name of another key
};

/// Makes the row of such a key. fallback: its default as JSON text; for `off` the allowed value; for renamed and alias
/// the other key's name.
Key other_key(const char* path, Status status, const std::string& fallback, const ValueRange& range, const char* doc);
/// True if a key has this status.
bool has_status(const Key& key, Status status);
/// Returns Markdown lists of these keys, which table_of() leaves out.
std::string lists_of(const std::vector<Key>& keys);

}  // namespace lockstep::engine
