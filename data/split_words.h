#pragma once
// Pre-tokenisation: the regular expressions by which tokenizers cut text into words, each written out by hand.
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data {

enum class WordPattern { gpt2, llama3, qwen2 };

/// The expression of a pattern, as files spell it, and back; none when it is not among them.
const char* to_string(WordPattern pattern);
std::optional<WordPattern> word_pattern(std::string_view expression);

/// Where the word that starts at text[at] ends.
size_t word_end(WordPattern pattern, std::string_view text, size_t at);
/// All words, as views into text.
std::vector<std::string_view> split_words(std::string_view text, WordPattern pattern = WordPattern::gpt2);

}  // namespace lockstep::data
