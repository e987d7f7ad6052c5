#pragma once
// manifest.json: what a checkpoint consists of. Its first line holds the hash of the rest, so that no digit of it
// changes unseen.
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/checkpoint/checkpoint.h"

namespace lockstep::checkpoints {

struct FileSum {
  int64_t bytes = 0;
  std::string hash;  ///< BLAKE2b, 64 digits
};

/// Elements [begin, end) of a logical tensor, and where they are.
struct Part {
  std::string file;
  std::string name;  ///< in that file
  int64_t begin = 0;
  int64_t end = 0;
  uint32_t crc = 0;  ///< crc32c of its bytes: says which tensor is damaged when the file's hash differs
};

struct LogicalTensor {
  DType dtype = f32;
  Shape shape;
  std::vector<Part> parts;  ///< in order; without gaps or overlaps from 0 to the last element
  int64_t numel() const { return numel_of(shape); }
};

struct Manifest {
  static constexpr int64_t version = 1;
  std::string id;  ///< random; also in the metadata of its files
  std::string tag;
  int64_t sequence = 0;  ///< 1, 2, ... in the order of saving into one folder
  int world = 1;
  std::string plan;
  std::map<std::string, FileSum> files;
  std::map<std::string, LogicalTensor> tensors;
  std::map<std::string, std::string> aliases;
  Numbers numbers;
  data::Json client_state;
};

constexpr const char* manifest_name = "manifest.json";

std::string to_text(const Manifest& manifest);
/// Error that says what is wrong with it: then it is no manifest, or a damaged one. Whatever this gives back is
/// consistent.
Manifest parse_manifest(std::string_view text, const std::string& origin);
/// The text with its hash in front; `body` is that of the object, from the first key on. For to_text() and fuzzing.
std::string seal_manifest(std::string_view body);

data::Json to_json(const Numbers& numbers);
Numbers parse_numbers(const data::Json& json, const std::string& where);
/// Shortened when long: "0.1", "\"text\"".
std::string text_of(const Number& number);

/// The tensor of that name or alias; nullptr when there is none.
const LogicalTensor* find_tensor(const Manifest& manifest, const std::string& name);
/// Name of a part in its file: that of the tensor when it is whole, else NAME[begin:end].
std::string part_name(const std::string& name, int64_t begin, int64_t end, int64_t numel);
/// Error unless it may be the name of a logical tensor.
void check_name(const std::string& name, const std::string& where);
/// Letters, digits, '.', '_', '-', not first a '.', at most 200 bytes.
bool is_plain_name(std::string_view name);

}  // namespace lockstep::checkpoints
