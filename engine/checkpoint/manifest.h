#pragma once
// manifest.json: what a checkpoint consists of. Its first line holds the hash of the rest, so that no digit of it
// changes unseen.
#include <string>
#include <string_view>

#include "engine/checkpoint/checkpoint.h"

namespace lockstep::checkpoints {

constexpr const char* manifest_name = "manifest.json";
constexpr const char* trainer_state_name =
    "trainer_state.json";  // beside it, for people; the manifest has it in client_state

std::string to_text(const Manifest& manifest);
/// Error that says what is wrong with it: then it is no manifest, or a damaged one. Whatever this gives back is
/// consistent.
Manifest parse_manifest(std::string_view text, const std::string& origin);
/// The text with its hash in front; `body` is that of the object, from the first key on. For to_text() and fuzzing.
std::string seal_manifest(std::string_view body);

data::Json to_json(const Numbers& numbers);
/// JSON has no NaN and no infinity: these are written as {"double": "nan"}, wherever they are.
data::Json finite(const data::Json& json);
data::Json with_infinities(const data::Json& json);  ///< back again
Numbers parse_numbers(const data::Json& json, const std::string& where);
/// Shortened when long: "0.1", "\"text\"".
std::string text_of(const data::Json& number);

/// The tensor of that name or alias; nullptr when there is none.
const LogicalTensor* find_tensor(const Manifest& manifest, const std::string& name);
/// Name of a part in its file: that of the tensor when it is whole, else NAME[begin:end].
std::string part_name(const std::string& name, int64_t begin, int64_t end, int64_t numel);
/// Error unless it may be the name of a logical tensor.
void check_name(const std::string& name, const std::string& where);
/// Letters, digits, '.', '_', '-', not first a '.', at most 200 bytes.
bool is_plain_name(std::string_view name);

}  // namespace lockstep::checkpoints
