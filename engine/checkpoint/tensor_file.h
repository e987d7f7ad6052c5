#pragma once
// One safetensors file of a checkpoint: written from start to end and hashed on the way; and whether it is what the
// manifest says, which load() and `lockstep checkpoint verify` ask.
#include <string>
#include <vector>

#include "data/file_calls.h"
#include "data/safetensors.h"
#include "engine/checkpoint/hash.h"
#include "engine/checkpoint/manifest.h"

namespace lockstep::checkpoints {

class TensorFile {
 public:
  /// Writes its header. Puts `entries` (name, dtype, shape) into the order in which append() is to be
  /// called.
  TensorFile(data::NewFile& file, const std::string& path, std::vector<data::SafeTensorsEntry>& entries,
             const data::Metadata& metadata);
  void append(const Tensor& tensor);  ///< on the CPU, contiguous
  /// When all is there, and the file flushed.
  FileSum sum() { return {file_.size(), hash_.hex()}; }
  /// crc32c of what was appended since the last call.
  uint32_t take_crc() { return std::exchange(crc_, 0); }

 private:
  void append(data::Bytes bytes);
  data::NewFile& file_;
  Hash hash_;
  uint32_t crc_ = 0;
};

/// Opens a file and compares its size, its header and what its metadata say with the manifest. Error names the file and
/// what differs.
data::SafeTensors open_part(const std::string& folder, const Manifest& manifest, const std::string& file);
/// open_part(), and every byte. The Error also says which tensors are damaged, or that it is another file's content.
void verify_file(const std::string& folder, const Manifest& manifest, const std::string& file);

}  // namespace lockstep::checkpoints
