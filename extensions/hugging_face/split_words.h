#pragma once
// Pre-tokenization: the regular expressions by which tokenizers cut text into words, each implemented by hand.
#include <optional>
#include <string_view>
#include <vector>

namespace lockstep::data {

/// The known expressions, by the model that introduced them.
enum class WordPattern { gpt2, llama3, qwen2 };

/// The regular expression of a pattern, as written in tokenizer.json.
const char* to_string(WordPattern pattern);
/// The pattern of a regular expression; none if it is not a known one.
std::optional<WordPattern> word_pattern(std::string_view expression);

/// End of the word that starts at text[at].
size_t word_end(WordPattern pattern, std::string_view text, size_t at);
/// All words, as views into `text`.
std::vector<std::string_view> split_words(std::string_view text, WordPattern pattern = WordPattern::gpt2);

}  // namespace lockstep::data
