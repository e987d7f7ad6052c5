#pragma once
// One safetensors file of a checkpoint: writes and hashes it in one pass, and verifies it against the manifest for
// load() and `lockstep checkpoint verify`.
#include <string>
#include <vector>

#include "checkpoint/hash.h"
#include "checkpoint/manifest.h"
#include "data/file_calls.h"
#include "data/safetensors.h"

namespace lockstep::checkpoints {

/// Writes a safetensors file.
class TensorFile {
 public:
  /// Writes the header. Sorts `entries` (name, dtype, shape) into the order in which append() must be called.
  TensorFile(data::NewFile& file, const std::string& path, std::vector<data::SafeTensorsEntry>& entries,
             const data::Metadata& metadata);
  void append(const Tensor& tensor);  ///< appends a tensor that is contiguous and on the CPU
  /// Size and hash, once everything is appended.
  FileSum sum() { return {file_.size(), hash_.hex()}; }
  /// crc32c of the bytes appended since the last call.
  uint32_t take_crc() { return std::exchange(crc_, 0); }

 private:
  void append(data::Bytes bytes);
  data::NewFile& file_;
  Hash hash_;
  uint32_t crc_ = 0;
};

/// Opens a file and compares its size, header and metadata with the manifest. Error names the file and the difference.
data::SafeTensors open_part(const std::string& folder, const Manifest& manifest, const std::string& file);
/// Does the checks of open_part(), and verifies every byte. The Error also names the damaged tensors or, if files were
/// swapped, the file that the content belongs to.
void verify_file(const std::string& folder, const Manifest& manifest, const std::string& file);

}  // namespace lockstep::checkpoints
