#pragma once
// Unicode normalization to composed form.
#include <string>
#include <string_view>

namespace lockstep::data {

/// Normalization form C: e followed by U+0301 becomes é. Bytes that are not valid UTF-8 stay as they are.
std::string to_nfc(std::string_view text);

}  // namespace lockstep::data
