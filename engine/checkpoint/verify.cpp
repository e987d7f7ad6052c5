#include "engine/checkpoint/verify.h"

#include <algorithm>
#include <filesystem>

#include "dist/fingerprint.h"
#include "engine/checkpoint/folder.h"
#include "engine/checkpoint/hash.h"

namespace lockstep::checkpoints {
namespace {

namespace fs = std::filesystem;

const std::string& value_of(const data::Metadata& metadata, const char* key) {
  static const std::string none = "none";
  const auto found = metadata.find(key);
  return found == metadata.end() ? none : found->second;
}

/// The tensors with bytes that are not those that were saved: " (differs: model.w, ...)".
std::string damaged_tensors(const data::SafeTensors& file, const Manifest& manifest, const std::string& name,
                            data::Bytes bytes) {
  std::map<std::string, uint32_t> crcs;
  for (const auto& [logical, tensor] : manifest.tensors)
    for (const Part& part : tensor.parts)
      if (part.file == name) crcs[part.name] = part.crc;
  std::string list;
  int count = 0;
  for (const auto& entry : file.entries()) {
    if (dist::crc32c(bytes.data() + entry.offset, size_t(entry.bytes)) == crcs.at(entry.name)) continue;
    if (++count <= 4) list += (count > 1 ? ", " : "") + entry.name;
  }
  return count == 0 ? "; no tensor is damaged, its header is"
                    : str("; damaged: ", list, count > 4 ? str(" and ", count - 4, " more") : "");
}

}  // namespace

std::string find_checkpoint(const std::string& dir, const std::string& tag, std::string& warning,
                            const std::vector<std::string>& but) {
  if (fs::exists(fs::path(dir) / manifest_name)) {
    if (!but.empty()) return "";
    const std::string own = tag.empty() ? "" : read_manifest(dir).tag;
    LOCKSTEP_CHECK(tag == own, dir, ": this is a checkpoint of tag ", own, ", not ", tag);
    return dir;
  }
  const std::vector<Found> all = list_checkpoints(dir);
  if (!tag.empty()) {
    std::string newest, tags;
    for (const Found& found : all) {
      if (found.tag == tag) newest = found.folder;
      else if (tags.find(" " + found.tag + ",") == tags.npos) tags += " " + found.tag + ",";
    }
    if (!tags.empty()) tags.pop_back();
    LOCKSTEP_CHECK(!newest.empty(), dir, ": expected a checkpoint of tag ", tag, ", there ",
                   all.empty() ? "is none of any tag" : "are" + tags);
    return dir + "/" + newest;
  }
  std::string why;
  if (but.empty()) {
    try {
      const std::string latest = read_latest(dir);
      if (!latest.empty() && fs::exists(fs::path(dir) / latest / manifest_name)) return dir + "/" + latest;
      if (latest.empty() && all.empty()) {
        warning = dir + ": holds no checkpoint";
        return "";
      }
      why = latest.empty() ? dir + "/latest is missing" : dir + "/latest names " + latest + ", which is not there";
    } catch (const Error& error) { why = error.what(); }
  }
  const std::string newest = newest_whole(dir, but);
  LOCKSTEP_CHECK(!newest.empty(), dir, ": expected a whole checkpoint, ",
                 all.empty() ? "there is none" : str("none of the ", all.size(), " is"), why.empty() ? "" : "; " + why);
  warning = (why.empty() ? "" : why + "; ") + "taking " + dir + "/" + newest + ", the newest whole one";
  return dir + "/" + newest;
}

data::SafeTensors open_part(const std::string& folder, const Manifest& manifest, const std::string& name) {
  const std::string path = folder + "/" + name;
  const FileSum& sum = manifest.files.at(name);
  std::error_code error;
  const auto size = fs::file_size(path, error);
  LOCKSTEP_CHECK(!error, path, ": expected a file of ", sum.bytes, " bytes, got: ", error.message());
  LOCKSTEP_CHECK(int64_t(size) == sum.bytes, path, ": expected ", sum.bytes, " bytes, got ", size,
                 int64_t(size) < sum.bytes ? " (truncated)" : "");
  data::SafeTensors file = data::SafeTensors::open(path);
  const std::string &id = value_of(file.metadata(), "checkpoint"), &own = value_of(file.metadata(), "file");
  LOCKSTEP_CHECK(id == manifest.id, path, ": expected a file of checkpoint ", manifest.id, " (", manifest.tag,
                 "), got one of ", id, " (", value_of(file.metadata(), "tag"), ")");
  LOCKSTEP_CHECK(own == name, path, ": this is ", own, ", under another name");
  size_t parts = 0;
  for (const auto& [logical, tensor] : manifest.tensors) {
    for (const Part& part : tensor.parts) {
      if (part.file != name) continue;
      ++parts;
      LOCKSTEP_CHECK(file.contains(part.name), path, ": expected a tensor \"", part.name, "\", there is none");
    }
  }
  LOCKSTEP_CHECK(parts == file.entries().size(), path, ": expected ", parts, " tensors, got ", file.entries().size());
  std::map<std::string, const data::SafeTensorsEntry*> entries;
  for (const auto& entry : file.entries()) entries[entry.name] = &entry;
  for (const auto& [logical, tensor] : manifest.tensors) {
    for (const Part& part : tensor.parts) {
      if (part.file != name) continue;
      const auto& entry = *entries.at(part.name);
      LOCKSTEP_CHECK(entry.dtype == tensor.dtype && numel_of(entry.shape) == part.end - part.begin, path, ": \"",
                     part.name, "\": expected ", part.end - part.begin, " elements of ", name_of(tensor.dtype),
                     ", got ", numel_of(entry.shape), " of ", name_of(entry.dtype));
    }
  }
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
    LOCKSTEP_CHECK(other_sum.hash != hash, path, ": holds the content of ", other, "; were files swapped?");
  const std::string differ = str("expected BLAKE2b ", sum.hash, ", got ", hash);
  LOCKSTEP_CHECK(header_error.empty(), header_error, "; ", differ);
  fail(str(path, ": its content has changed since it was saved: ", differ,
           damaged_tensors(data::SafeTensors::open(path), manifest, name, file->bytes())));
}

}  // namespace lockstep::checkpoints
