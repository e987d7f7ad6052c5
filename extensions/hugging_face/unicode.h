#pragma once
// The character classes of GPT-2's pre-tokenization.
#include <cstdint>

namespace lockstep::data {

/// Character classes: \p{L}, \p{N}, \s, and the rest.
enum class CharClass : uint8_t { letter, number, space, other };

/// \p{L}, \p{N} or \s as in Unicode regular expressions; otherwise CharClass::other.
CharClass class_of(uint32_t code);

}  // namespace lockstep::data
