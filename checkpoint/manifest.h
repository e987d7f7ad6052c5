#pragma once
// manifest.json describes the contents of a checkpoint. Its first line holds the hash of the rest, so that any change
// is detected.
#include <string>
#include <string_view>

#include "checkpoint/checkpoint.h"

namespace lockstep::checkpoints {

/// File name of the manifest.
constexpr const char* manifest_name = "manifest.json";
/// Name of a file next to the manifest: the trainer's client_state, for people to read.
constexpr const char* trainer_state_name = "trainer_state.json";

/// The text of manifest.json.
std::string to_text(const Manifest& manifest);
/// Parses a manifest and checks its consistency. Error says what is wrong: not a manifest, or a damaged one.
Manifest parse_manifest(std::string_view text, const std::string& origin);
/// Returns the text of a manifest: a line with the hash of `body`, then `body` (the JSON from its first key on). For
/// to_text() and fuzzing.
std::string seal_manifest(std::string_view body);

/// Numbers as a JSON object.
data::Json to_json(const Numbers& numbers);
/// Encodes NaN and infinity, which JSON lacks, as {"double": "nan"} at any depth.
data::Json finite(const data::Json& json);
data::Json with_infinities(const data::Json& json);  ///< the inverse of finite()
/// The inverse of to_json(); Error names `where`.
Numbers parse_numbers(const data::Json& json, const std::string& where);
/// Formats a JSON number or string for messages: "0.1", "\"text\"". Long values are cut to 60 characters.
std::string text_of(const data::Json& number);

/// The tensor with this name or alias; nullptr if there is none.
const LogicalTensor* find_tensor(const Manifest& manifest, const std::string& name);
/// Name of a part in its file: the tensor's name if the part is the whole tensor, otherwise NAME[begin:end].
std::string part_name(const std::string& name, int64_t begin, int64_t end, int64_t numel);
/// Error unless `name` is a valid name of a logical tensor.
void check_name(const std::string& name, const std::string& where);
/// True for names of letters, digits, '.', '_' and '-' that do not begin with '.' and have at most 200 bytes.
bool is_plain_name(std::string_view name);

}  // namespace lockstep::checkpoints
