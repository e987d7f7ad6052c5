// Verifies, merges and exports checkpoints. See checkpoint_tools.h.
#include "extensions/checkpoint_tools/checkpoint_tools.h"

#include <filesystem>
#include <set>

#include "checkpoint/folder.h"
#include "checkpoint/tensor_file.h"

namespace lockstep::checkpoints {
namespace {

namespace fs = std::filesystem;

constexpr const char* op = "[checkpoint] ";

/// Returns the file `name` of the checkpoint, opened at the first call. Checks its header, but not its bytes.
const data::SafeTensors& file_of(Opened& checkpoint, const std::string& name) {
  if (!checkpoint.files.count(name))
    checkpoint.files.emplace(name, open_part(checkpoint.folder, checkpoint.manifest, name));
  return checkpoint.files.at(name);
}

/// A whole tensor: a view into its file if it has one part, otherwise assembled in memory.
Tensor read_tensor(Opened& checkpoint, const std::string& name) {
  const LogicalTensor* tensor = find_tensor(checkpoint.manifest, name);
  LOCKSTEP_CHECK(tensor, op, checkpoint.folder, ": expected a tensor \"", name,
                 "\", there is none; this is a bug in Lockstep, please report it");
  const auto part_of = [&](const StoredPiece& part) { return file_of(checkpoint, part.file).tensor(part.name); };
  if (tensor->parts.size() == 1) return part_of(tensor->parts[0]).view(tensor->shape);
  const Tensor all(Storage::allocate(tensor->numel() * size_of(tensor->dtype), cpu), 0, tensor->shape,
                   contiguous_strides(tensor->shape), tensor->dtype);
  for (const StoredPiece& part : tensor->parts)
    all.view({-1}).narrow(0, part.begin, part.end - part.begin).copy_(part_of(part).view({-1}));
  return all;
}

}  // namespace

Opened open_checkpoint(const std::string& dir, const std::string& tag,
                       const std::function<void(const std::string&)>& warn) {
  std::string warning;
  const std::string folder = find_checkpoint(dir, tag, warning);
  LOCKSTEP_CHECK(!folder.empty(), op, warning);
  if (!warning.empty()) warn(op + warning);
  return {folder, read_manifest(folder)};
}

std::vector<std::string> verify_checkpoint(const Opened& checkpoint) {
  std::vector<std::string> problems;
  for (const auto& [name, sum] : checkpoint.manifest.files) {
    try {
      verify_file(checkpoint.folder, checkpoint.manifest, name);
    } catch (const Error& error) { problems.push_back(error.what()); }
  }
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(checkpoint.folder)) names.insert(entry.path().filename().string());
  for (const std::string& name : names)
    if (name != manifest_name && name != trainer_state_name && !checkpoint.manifest.files.count(name))
      problems.push_back(str(checkpoint.folder, "/", name, ": the manifest does not list it; move it away"));
  return problems;
}

std::string merge_checkpoint(Opened& checkpoint, const std::string& out,
                             const std::function<void(const std::string&)>& warn) {
  const Manifest& m = checkpoint.manifest;
  LOCKSTEP_CHECK(!fs::exists(out) || !fs::equivalent(out, fs::path(checkpoint.folder).parent_path()), op,
                 "expected another folder to merge into than that of the checkpoint, got ", out);
  // Pass each stored part as a piece that refers to the mapped file. Saver joins consecutive pieces to one part.
  for (const auto& [name, sum] : m.files) verify_file(checkpoint.folder, m, name);
  Contents contents{.aliases = m.aliases, .numbers = m.numbers, .client_state = m.client_state, .plan = m.plan};
  for (const auto& [name, tensor] : m.tensors)
    for (const StoredPiece& part : tensor.parts)
      contents.pieces.push_back(
          {name, tensor.shape, tensor.dtype, part.begin, part.end, file_of(checkpoint, part.file).tensor(part.name)});
  Saver saver(out, nullptr, {.warn = warn});
  saver.save(m.tag, contents);
  data::check_mapped_files();
  return saver.committed();
}

int64_t export_checkpoint(Opened& checkpoint, const std::string& path, const ExportOptions& options) {
  LOCKSTEP_CHECK(is_floating(options.dtype), op, "expected a floating dtype to export as, got ", options.dtype);
  const Manifest& m = checkpoint.manifest;
  for (const auto& [name, sum] : m.files) verify_file(checkpoint.folder, m, name);
  struct Source {
    std::string name;
    bool turned;
  };
  std::map<std::string, Source> sources;  // by name in the new file
  std::vector<data::SafeTensorsEntry> entries;
  data::Metadata metadata{{"format", "pt"}};
  const auto renamed = [&](const std::string& name) {
    const std::string bare = name.substr(options.prefix.size());
    return options.rename ? options.rename(bare) : std::pair(bare, false);
  };
  for (const auto& [name, tensor] : m.tensors) {
    if (!name.starts_with(options.prefix)) continue;
    const auto [there, turned] = renamed(name);
    LOCKSTEP_CHECK(!turned || tensor.shape.rank() == 2, op, "expected ", name,
                   " to be a matrix, because the new names store it transposed, got ", tensor.shape,
                   "; export with other names, or without renaming");
    // A run in 16 bits also saves its parameters in f32, as the optimizer's master weights.
    const std::string master = "optimizer.master." + name.substr(options.prefix.size());
    const bool has_master = options.prefix == "model." && options.dtype == f32 && tensor.dtype != f32;
    const std::string& from = has_master && m.tensors.count(master) ? master : name;
    LOCKSTEP_CHECK(sources.emplace(there, Source{from, turned}).second, op, "two tensors would be called ", there,
                   "; the second is ", name, "; give each a name of its own");
    entries.push_back({there, is_floating(tensor.dtype) ? options.dtype : tensor.dtype,
                       turned ? Shape{tensor.shape[1], tensor.shape[0]} : tensor.shape});
  }
  LOCKSTEP_CHECK(!entries.empty(), op, checkpoint.folder, ": expected tensors whose names begin with \"",
                 options.prefix, "\", there are none among ", m.tensors.size(), "; give another prefix");
  for (const auto& [name, target] : m.aliases)
    if (name.starts_with(options.prefix) && target.starts_with(options.prefix))
      metadata[renamed(name).first] = renamed(target).first;

  data::write_atomically(path, [&](data::NewFile& to) {
    TensorFile file(to, path, entries, metadata);
    for (const auto& entry : entries) {
      const Source& source = sources.at(entry.name);
      Tensor tensor = read_tensor(checkpoint, source.name).to(entry.dtype);
      if (source.turned) tensor = tensor.t();
      file.append(tensor.contiguous());
    }
    data::check_mapped_files();
  });
  return int64_t(entries.size());
}

}  // namespace lockstep::checkpoints
