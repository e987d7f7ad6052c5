#pragma once
// Weights: the tensors of a Hugging Face folder, from model.safetensors or from the shards that
// model.safetensors.index.json lists.
#include <map>
#include <string>
#include <vector>

#include "data/safetensors.h"
#include "nn/init.h"

namespace lockstep::nn {

/// Opened safetensors files, and the tensors in them by name. The prefix given to open() may be left out of a name.
class Weights {
 public:
  /// Opens and checks all files of a folder. prefix: names in the files may begin with this text or lack it.
  static Weights open(const std::string& folder, const std::string& prefix);
  /// Opens and checks the given files.
  static Weights of_files(const std::vector<std::string>& paths, const std::string& prefix);
  /// True if there is a tensor with this name.
  bool contains(const std::string& name) const { return places_.count(bare(name)) > 0; }
  /// Shape and dtype of a tensor. Error if there is none.
  const data::SafeTensorsEntry& entry(const std::string& name) const;
  /// Returns a tensor as a view of the memory-mapped file. Error if there is none.
  Tensor tensor(const std::string& name) const;
  /// All names, as written in the files.
  std::vector<std::string> names() const;
  /// Number and total size of the tensors.
  FileTotals held() const;
  /// The folder, or the first file if files were given. Used in error messages.
  const std::string& folder() const { return folder_; }

 private:
  Weights(std::string folder, std::string prefix) : folder_(std::move(folder)), prefix_(std::move(prefix)) {}
  void add(const std::vector<std::string>& paths);
  struct Place {
    size_t file = 0;
    data::SafeTensorsEntry entry;
  };
  std::string bare(const std::string& name) const {
    return name.starts_with(prefix_) ? name.substr(prefix_.size()) : name;
  }
  const Place& place(const std::string& name) const;

  std::string folder_, prefix_;
  std::vector<data::SafeTensors> files_;
  std::map<std::string, Place> places_;  // keyed by name without prefix
};

/// A tensor to write: name, size, and a function that makes its values when they are written.
struct NamedMaker {
  std::string name;
  int64_t bytes;
  std::function<Tensor()> make;  ///< called once
};
/// Writes model.safetensors or, for more than `max_shard_size` bytes in total, an index and shards of at most that
/// size. A larger tensor gets a shard of its own. Then removes the files that an earlier save left.
void write_weights(const std::string& folder, const std::vector<NamedMaker>& tensors, int64_t max_shard_size);

}  // namespace lockstep::nn
