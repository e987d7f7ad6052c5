// Writes and verifies the files of a checkpoint. See tensor_file.h.
#include "checkpoint/tensor_file.h"

#include <algorithm>
#include <filesystem>

#include "base/suggest.h"
#include "checkpoint/folder.h"
#include "dist/fingerprint.h"

namespace lockstep::checkpoints {
namespace {

namespace fs = std::filesystem;

const std::string& value_of(const data::Metadata& metadata, const char* key) {
  static const std::string none = "none";
  const auto found = metadata.find(key);
  return found == metadata.end() ? none : found->second;
}

/// The tensors whose bytes differ from those saved: "; damaged: model.w, ...".
std::string damaged_tensors(const data::SafeTensors& file, const Manifest& manifest, const std::string& name,
                            data::Bytes bytes) {
  std::map<std::string, uint32_t> crcs;
  for (const auto& [logical, tensor] : manifest.tensors)
    for (const StoredPiece& part : tensor.parts)
      if (part.file == name) crcs[part.name] = part.crc;
  std::vector<std::string> damaged;
  for (const auto& entry : file.entries())
    if (dist::crc32c(bytes.data() + entry.offset, size_t(entry.bytes)) != crcs.at(entry.name))
      damaged.push_back(entry.name);
  return damaged.empty() ? "; no tensor is damaged, its header is" : "; damaged: " + list_names(damaged, 4);
}

}  // namespace

TensorFile::TensorFile(data::NewFile& file, const std::string& path, std::vector<data::SafeTensorsEntry>& entries,
                       const data::Metadata& metadata)
    : file_(file) {
  const std::string start = data::safetensors_start(entries, metadata, path);
  append(data::as_bytes(start));
  crc_ = 0;
}

void TensorFile::append(data::Bytes bytes) {
  constexpr size_t piece = size_t(1) << 20;  // hashed while it is still in the cache
  while (!bytes.empty()) {
    const data::Bytes now = bytes.first(std::min(bytes.size(), piece));
    hash_.update(now);
    crc_ = dist::crc32c(now.data(), now.size(), crc_);
    file_.append(now);
    bytes = bytes.subspan(now.size());
  }
}

void TensorFile::append(const Tensor& tensor) {
  if (tensor.numel() == 0) return;
  append({static_cast<const std::byte*>(tensor.raw_data()), size_t(tensor.numel() * size_of(tensor.dtype()))});
}

data::SafeTensors open_part(const std::string& folder, const Manifest& manifest, const std::string& name) {
  const std::string path = folder + "/" + name;
  check_size(path, manifest.files.at(name));
  data::SafeTensors file = data::SafeTensors::open(path);
  const std::string &id = value_of(file.metadata(), "checkpoint"), &own = value_of(file.metadata(), "file");
  LOCKSTEP_CHECK(id == manifest.id, path, ": expected a file of checkpoint ", manifest.id, " (", manifest.tag,
                 "), got one of ", id, " (", value_of(file.metadata(), "tag"), "); copy the checkpoint again");
  LOCKSTEP_CHECK(own == name, path, ": this is ", own, ", under another name; rename it, or load another checkpoint");
  std::map<std::string, const data::SafeTensorsEntry*> entries;
  for (const auto& entry : file.entries()) entries[entry.name] = &entry;
  size_t parts = 0;
  for (const auto& [logical, tensor] : manifest.tensors) {
    for (const StoredPiece& part : tensor.parts) {
      if (part.file != name) continue;
      ++parts;
      const auto found = entries.find(part.name);
      LOCKSTEP_CHECK(found != entries.end(), path, ": expected a tensor \"", part.name,
                     "\", there is none; copy the checkpoint again");
      const auto& entry = *found->second;
      LOCKSTEP_CHECK(entry.dtype == tensor.dtype && numel_of(entry.shape) == part.end - part.begin, path, ": \"",
                     part.name, "\": expected ", part.end - part.begin, " elements of ", name_of(tensor.dtype),
                     ", got ", numel_of(entry.shape), " of ", name_of(entry.dtype), "; copy the checkpoint again");
    }
  }
  LOCKSTEP_CHECK(parts == entries.size(), path, ": expected ", parts, " tensors, got ", entries.size(),
                 "; copy the checkpoint again");
  return file;
}

void verify_file(const std::string& folder, const Manifest& manifest, const std::string& name) {
  const std::string path = folder + "/" + name;
  std::string header_error;
  try {
    open_part(folder, manifest, name);
  } catch (const Error& error) { header_error = error.what(); }
  LOCKSTEP_CHECK(fs::exists(path), header_error);
  const auto file = data::MappedFile::open(path);
  const FileSum& sum = manifest.files.at(name);
  LOCKSTEP_CHECK(file->size() == sum.bytes, header_error);
  const std::string hash = hash_of(file->bytes());
  file->check();
  if (hash == sum.hash) {
    LOCKSTEP_CHECK(header_error.empty(), header_error);
    return;
  }
  for (const auto& [other, other_sum] : manifest.files)
    LOCKSTEP_CHECK(other_sum.hash != hash, path, ": holds the content of ", other,
                   "; were files swapped? Swap them back, or load another checkpoint");
  const std::string differ = str("expected BLAKE2b ", sum.hash, ", got ", hash);
  LOCKSTEP_CHECK(header_error.empty(), header_error, "; ", differ);
  fail(str(path, ": its content has changed since it was saved: ", differ, "; copy the checkpoint again",
           damaged_tensors(data::SafeTensors::open(path), manifest, name, file->bytes())));
}

}  // namespace lockstep::checkpoints
