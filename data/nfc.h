#pragma once
// Unicode's canonical composition.
#include <string>
#include <string_view>

namespace lockstep::data {

/// Normalisation form C: e and U+0301 become é. Bytes that are no UTF-8 stay as they are.
std::string to_nfc(std::string_view text);

}  // namespace lockstep::data
