#pragma once
// One safetensors file of a checkpoint, written from start to end and hashed on the way.
#include <string>
#include <vector>

#include "data/safetensors.h"
#include "engine/checkpoint/files.h"
#include "engine/checkpoint/hash.h"
#include "engine/checkpoint/manifest.h"

namespace lockstep::checkpoints {

class TensorFile {
 public:
  /// Creates it and writes its header. Puts `entries` (name, dtype, shape) into the order in which append() is to be
  /// called.
  TensorFile(Files& files, const std::string& path, std::vector<data::SafeTensorsEntry>& entries,
             const data::Metadata& metadata);
  void append(data::Bytes bytes);
  /// Flushes to the disk.
  FileSum finish();
  /// crc32c of what was appended since the last call.
  uint32_t take_crc() { return std::exchange(crc_, 0); }

 private:
  NewFile file_;
  Hash hash_;
  uint32_t crc_ = 0;
};

/// What the metadata of a checkpoint's files say.
data::Metadata metadata_of(const Manifest& manifest, const std::string& file);

}  // namespace lockstep::checkpoints
