#pragma once
// The tensors of a Hugging Face folder: of model.safetensors, or of the shards that model.safetensors.index.json names.
#include <map>
#include <string>
#include <vector>

#include "data/safetensors.h"
#include "nn/build_empty.h"

namespace lockstep::nn {

class Weights {
 public:
  /// Opens and checks all files. prefix: what names may begin with or not.
  static Weights open(const std::string& folder, const std::string& prefix);
  static Weights of_files(const std::vector<std::string>& paths, const std::string& prefix);
  bool contains(const std::string& name) const { return places_.count(bare(name)) > 0; }
  /// Its shape and dtype; error when there is none.
  const data::SafeTensorsEntry& entry(const std::string& name) const;
  /// A view of the file.
  Tensor tensor(const std::string& name) const;
  /// As they stand in the files.
  std::vector<std::string> names() const;
  Held held() const;
  const std::string& folder() const { return folder_; }

 private:
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
  std::map<std::string, Place> places_;  // by names without prefix
};

/// Puts tensors into model.safetensors or, when they take more than `most` bytes, into shards of that many with an
/// index; then removes the files of an earlier save. make: a tensor's values, when they are written.
struct NamedMaker {
  std::string name;
  int64_t bytes;
  std::function<Tensor()> make;
};
void write_weights(const std::string& folder, const std::vector<NamedMaker>& tensors, int64_t most);

}  // namespace lockstep::nn
