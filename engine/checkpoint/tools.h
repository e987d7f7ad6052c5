#pragma once
// What `lockstep checkpoint` does with a checkpoint: look at it, verify it, merge its files into one, export it.
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "data/safetensors.h"
#include "engine/checkpoint/manifest.h"

namespace lockstep::checkpoints {

struct Opened {
  std::string folder;
  Manifest manifest;
  std::map<std::string, data::SafeTensors> files = {};  ///< those that were looked into
};
/// As find_checkpoint(); Error when there is none.
Opened open_checkpoint(const std::string& dir, const std::string& tag,
                       const std::function<void(const std::string&)>& warn);

/// Everything that is wrong: files missing, damaged, swapped or foreign, and files that the manifest does not know.
std::vector<std::string> verify_checkpoint(const Opened& checkpoint);

/// Saves the same into OUT, which is another folder of checkpoints, as one file. Gives back the folder of the new one.
std::string merge_checkpoint(Opened& checkpoint, const std::string& out,
                             const std::function<void(const std::string&)>& warn);

struct ExportOptions {
  std::string prefix = "model.";  ///< of the tensors to write; taken off their names
  DType dtype = f32;              ///< floating tensors become this
  /// Other names, and whether a matrix is turned.
  std::function<std::pair<std::string, bool>(const std::string& name)> rename = {};
};
/// Writes a plain safetensors file, in one step: afterwards it is there whole, or what was there before. Tied tensors
/// are written once, and the other names go into the metadata, as safetensors' own library does. Gives back the number
/// of tensors.
int64_t export_checkpoint(Opened& checkpoint, const std::string& path, const ExportOptions& options = {});

}  // namespace lockstep::checkpoints
