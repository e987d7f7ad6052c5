#include "engine/checkpoint/tensor_file.h"

#include <algorithm>

#include "dist/fingerprint.h"

namespace lockstep::checkpoints {

TensorFile::TensorFile(Files& files, const std::string& path, std::vector<data::SafeTensorsEntry>& entries,
                       const data::Metadata& metadata)
    : file_(files, path) {
  const std::string start = data::safetensors_start(entries, metadata, path);
  append(data::as_bytes(start));
  crc_ = 0;
}

void TensorFile::append(data::Bytes bytes) {
  constexpr size_t piece = size_t(1) << 20;  // hashed while it is in the cache
  while (!bytes.empty()) {
    const data::Bytes now = bytes.first(std::min(bytes.size(), piece));
    hash_.update(now);
    crc_ = dist::crc32c(now.data(), now.size(), crc_);
    file_.append(now);
    bytes = bytes.subspan(now.size());
  }
}

FileSum TensorFile::finish() {
  file_.finish();
  return {file_.size(), hash_.hex()};
}

data::Metadata metadata_of(const Manifest& manifest, const std::string& file) {
  return {{"checkpoint", manifest.id}, {"file", file}, {"tag", manifest.tag}};
}

}  // namespace lockstep::checkpoints
