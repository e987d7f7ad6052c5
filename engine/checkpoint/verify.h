#pragma once
// Is a checkpoint what its manifest says? Used by load() and by `lockstep checkpoint verify`.
#include <string>
#include <vector>

#include "data/safetensors.h"
#include "engine/checkpoint/manifest.h"

namespace lockstep::checkpoints {

/// The folder of a checkpoint: DIR itself when it holds a manifest, else DIR/TAG, the last saved under this tag;
/// without a tag the one that `latest` names. "" when DIR holds no checkpoint. When `latest` is missing, damaged or
/// names nothing, the newest whole one, and `warning` says so. Error when there is no such tag, or checkpoints of which
/// none is whole. `but`: names of folders not to take.
std::string find_checkpoint(const std::string& dir, const std::string& tag, std::string& warning,
                            const std::vector<std::string>& but = {});

/// Opens a file and compares its size, its header and what its metadata say with the manifest. Error names the file and
/// what differs.
data::SafeTensors open_part(const std::string& folder, const Manifest& manifest, const std::string& file);
/// open_part(), and every byte. The Error also says which tensors are damaged, or that it is another file's content.
void verify_file(const std::string& folder, const Manifest& manifest, const std::string& file);

}  // namespace lockstep::checkpoints
