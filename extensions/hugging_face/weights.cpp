// Reading and writing of weights in Hugging Face folders. See weights.h.
#include "extensions/hugging_face/weights.h"

#include <filesystem>
#include <set>

#include "base/check.h"
#include "base/classic_text.h"
#include "data/files.h"
#include "data/json.h"

namespace lockstep::nn {

using data::Json;

namespace {

constexpr const char* full_file = "model.safetensors";
constexpr const char* index_file = "model.safetensors.index.json";
constexpr data::JsonLimits index_limits{.bytes = int64_t(256) << 20, .python = true};

/// Reads model.safetensors.index.json: maps each tensor's name to the name of the file that holds the tensor. Error for
/// files outside the folder.
std::map<std::string, std::string> read_index(const std::string& path) {
  const Json index = data::read_json(path, index_limits);
  std::map<std::string, std::string> files;
  for (const auto& [name, file] : index.at("weight_map", path).as_object(path + ": weight_map")) {
    const std::string& text = file.as_string(path + ": weight_map: " + name);
    LOCKSTEP_CHECK(std::filesystem::path(text).filename() == text && text.ends_with(".safetensors"), path,
                   ": expected names of .safetensors files in this folder, got '", text, "' for ", name, "; fix it");
    files[name] = text;
  }
  LOCKSTEP_CHECK(!files.empty(), path, ": expected a weight_map with tensors, got an empty one; fetch it again");
  return files;
}

}  // namespace

void Weights::add(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    files_.push_back(data::SafeTensors::open(path));
    for (const data::SafeTensorsEntry& entry : files_.back().entries()) {
      const bool fresh = places_.emplace(bare(entry.name), Place{files_.size() - 1, entry}).second;
      LOCKSTEP_CHECK(fresh, path, ": tensor '", entry.name, "' occurs twice: in another file, or without the prefix \"",
                     prefix_, "\"; remove one of the two");
    }
  }
}

Weights Weights::of_files(const std::vector<std::string>& paths, const std::string& prefix) {
  Weights w(paths.at(0), prefix);
  w.add(paths);
  return w;
}

Weights Weights::open(const std::string& folder, const std::string& prefix) {
  namespace fs = std::filesystem;
  Weights w(folder, prefix);
  const std::string full = folder + "/" + full_file, index = folder + "/" + index_file;
  std::vector<std::string> paths;
  std::map<std::string, std::string> by_name;
  if (!fs::exists(full) && fs::exists(index)) {
    by_name = read_index(index);
    std::set<std::string> files;
    for (const auto& [name, file] : by_name) files.insert(file);
    for (const std::string& file : files) {
      paths.push_back(folder + "/" + file);
      LOCKSTEP_CHECK(fs::exists(paths.back()), index, ": expected the shard ", file,
                     " beside it, there is none; fetch it");
    }
  } else {
    LOCKSTEP_CHECK(fs::exists(full), folder, ": expected ", full_file, " or ", index_file, ", there is neither",
                   fs::exists(folder + "/pytorch_model.bin") || fs::exists(folder + "/pytorch_model.bin.index.json")
                       ? "; pytorch_model.bin is a pickle, which runs code: save it again with safe_serialization"
                       : "; check the path");
    paths.push_back(full);
  }
  w.add(paths);
  for (const auto& [name, file] : by_name) {
    const auto found = w.places_.find(w.bare(name));
    LOCKSTEP_CHECK(found != w.places_.end() && paths[found->second.file] == folder + "/" + file, index, ": expected '",
                   name, "' in ", file, ", it is ", found == w.places_.end() ? "not there" : "in another file",
                   "; fetch the folder again");
  }
  return w;
}

const Weights::Place& Weights::place(const std::string& name) const {
  const auto found = places_.find(bare(name));
  LOCKSTEP_CHECK(found != places_.end(), folder_, ": expected a tensor '", name,
                 "', there is none; fetch all files of the model");
  return found->second;
}

const data::SafeTensorsEntry& Weights::entry(const std::string& name) const { return place(name).entry; }

Tensor Weights::tensor(const std::string& name) const {
  const Place& at = place(name);
  return files_[at.file].tensor(at.entry);
}

std::vector<std::string> Weights::names() const {
  std::vector<std::string> all;
  for (const auto& [bare, place] : places_) all.push_back(place.entry.name);
  return all;
}

FileTotals Weights::held() const {
  FileTotals all{.tensors = int64_t(places_.size())};
  for (const auto& [bare, place] : places_) all.bytes += place.entry.bytes;
  return all;
}

void write_weights(const std::string& folder, const std::vector<NamedMaker>& tensors, int64_t max_shard_size) {
  namespace fs = std::filesystem;
  LOCKSTEP_CHECK(max_shard_size > 0, "[save_pretrained] expected max_shard_size > 0, got ", max_shard_size);
  std::vector<std::vector<const NamedMaker*>> shards(1);
  int64_t bytes = 0, total = 0;
  for (const NamedMaker& t : tensors) {
    if (bytes > 0 && bytes + t.bytes > max_shard_size) shards.emplace_back(), bytes = 0;
    shards.back().push_back(&t);
    bytes += t.bytes, total += t.bytes;
  }
  std::set<std::string> written;
  Json::Object weight_map;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string file =
        shards.size() == 1 ? full_file : format("model-%05zu-of-%05zu.safetensors", i + 1, shards.size());
    std::vector<std::pair<std::string, Tensor>> values;
    for (const NamedMaker* t : shards[i]) {
      values.emplace_back(t->name, t->make());
      weight_map.emplace_back(t->name, file);
    }
    data::save_safetensors(folder + "/" + file, values, {{"format", "pt"}});
    written.insert(file);
  }
  if (shards.size() > 1) {
    const Json index = Json::Object{{"metadata", Json::Object{{"total_size", total}}}, {"weight_map", weight_map}};
    data::write_atomically(folder + "/" + index_file, index.dump(2) + "\n");
    written.insert(index_file);
  }
  // Remove files of an earlier save: a stale model.safetensors would take precedence over the index.
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    const bool is_shard =
        name.starts_with("model-") && name.find("-of-") != std::string::npos && name.ends_with(".safetensors");
    if ((is_shard || name == full_file || name == index_file) && !written.count(name)) fs::remove(entry.path());
  }
}

}  // namespace lockstep::nn
