#pragma once
// The operations of `lockstep checkpoint`: opens checkpoints, verifies them, merges them into one file, exports them.
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/manifest.h"
#include "data/safetensors.h"

namespace lockstep::checkpoints {

/// A checkpoint that was opened for reading.
struct Opened {
  std::string folder;
  Manifest manifest;
  std::map<std::string, data::SafeTensors> files = {};  ///< files opened so far
};
/// Finds a checkpoint with find_checkpoint() and reads its manifest; Error if there is none.
Opened open_checkpoint(const std::string& dir, const std::string& tag,
                       const std::function<void(const std::string&)>& warn);

/// All problems of a checkpoint: files that are missing, damaged, swapped or of another checkpoint, and files that the
/// manifest does not list.
std::vector<std::string> verify_checkpoint(const Opened& checkpoint);

/// Saves the checkpoint as a single file in a new folder inside `out`, which must not be the folder that holds
/// `checkpoint`. Returns the new folder.
std::string merge_checkpoint(Opened& checkpoint, const std::string& out,
                             const std::function<void(const std::string&)>& warn);

/// Options of export_checkpoint().
struct ExportOptions {
  std::string prefix = "model.";  ///< exports the tensors with this prefix, and removes it
  DType dtype = f32;              ///< dtype of floating tensors in the file
  /// Returns the new name of a tensor, and true if its matrix is to be transposed.
  std::function<std::pair<std::string, bool>(const std::string& name)> rename = {};
};
/// Writes a plain safetensors file atomically: an earlier file stays intact until the new one is complete. Tied tensors
/// are written once, with their other names in the metadata, as by safetensors. In f32, parameters of 16 bits are the
/// master weights that were saved with them. Returns the number of tensors.
int64_t export_checkpoint(Opened& checkpoint, const std::string& path, const ExportOptions& options = {});

}  // namespace lockstep::checkpoints
