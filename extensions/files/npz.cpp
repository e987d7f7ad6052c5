// Reads and writes .npz files, NumPy's zip archives of arrays. See npy.h.
#include <set>

#include "data/excerpt.h"
#include "data/file_calls.h"
#include "extensions/files/npy.h"
#include "extensions/files/npy_array.h"
#include "extensions/files/zip.h"

namespace lockstep::data {
namespace {

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

Tensor read_member(Bytes file, const ZipMember& member, const std::string& where) {
  ZipReader reader(file, member, where);
  Tensor tensor = read_npy_array(
      member.bytes, [&](std::byte* out, int64_t count) { reader.read(out, count); },
      str(where, ": member \"", excerpt(member.name), "\""));
  reader.finish();
  return tensor;
}

std::vector<ZipMember> npz_members(Bytes file, const std::string& where) {
  std::vector<ZipMember> members = zip_members(file, where);
  std::set<std::string_view> names;
  for (const ZipMember& member : members) {
    LOCKSTEP_CHECK(member.name.ends_with(".npy"), where, ": expected members named NAME.npy, got \"",
                   excerpt(member.name), "\"; save it with numpy.savez()");
    LOCKSTEP_CHECK(names.insert(member.name).second, where, ": member \"", excerpt(member.name),
                   "\" appears twice; write the file again");
  }
  return members;
}

std::string without_ending(const std::string& name) { return name.substr(0, name.size() - 4); }

}  // namespace

NamedTensors parse_npz(Bytes file, const std::string& origin) {
  const std::string where = "[npz] " + origin;
  NamedTensors tensors;
  for (const ZipMember& member : npz_members(file, where))
    tensors.emplace_back(without_ending(member.name), read_member(file, member, where));
  return tensors;
}

NamedTensors read_npz(const std::string& path) { return parse_file(path, parse_npz); }

std::vector<std::string> npz_names(const std::string& path) {
  const auto file = MappedFile::open(path);
  std::vector<std::string> names;
  for (const ZipMember& member : npz_members(file->bytes(), "[npz] " + path))
    names.push_back(without_ending(member.name));
  return names;
}

Tensor read_npz(const std::string& path, const std::string& name) {
  const auto file = MappedFile::open(path);
  const std::string where = "[npz] " + path;
  std::string known;
  for (const ZipMember& member : npz_members(file->bytes(), where)) {
    if (member.name != name + ".npy") {
      known += (known.empty() ? "" : ", ") + excerpt(without_ending(member.name));
      continue;
    }
    Tensor tensor = read_member(file->bytes(), member, where);
    file->check();
    return tensor;
  }
  fail(str(where, ": no array \"", name, "\" among: ", known.size() > 300 ? known.substr(0, 300) + ", ..." : known,
           "; name one of them"));
}

void save_npz(const std::string& path, const NamedTensors& tensors, bool compress) {
  const std::string where = "[save_npz] " + path;
  std::set<std::string> names;
  std::vector<std::string> starts;
  for (const auto& [name, tensor] : tensors) {
    LOCKSTEP_CHECK(names.insert(name).second, where, ": the name \"", name,
                   "\" appears twice; give each array its own");
    LOCKSTEP_CHECK(name.size() <= 65531, where, ": expected names of at most 65531 bytes, got ", name.size(),
                   "; shorten it");
    starts.push_back(npy_start(tensor, str(where, ": \"", name, "\"")));
  }
  write_atomically(path, [&](NewFile& file) {
    ZipWriter writer(file, compress);
    for (size_t i = 0; i < tensors.size(); ++i) {
      const Tensor contiguous = tensors[i].second.contiguous();
      writer.add(tensors[i].first + ".npy", {as_bytes(starts[i]), npy_elements(contiguous)});
    }
    writer.finish();
  });
}

}  // namespace lockstep::data
