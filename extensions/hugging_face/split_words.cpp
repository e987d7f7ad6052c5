// Cuts text into words by the rules of the known regular expressions. See split_words.h.
#include "extensions/hugging_face/split_words.h"

#include <algorithm>

#include "extensions/hugging_face/unicode.h"

namespace lockstep::data {
namespace {

// In the order of WordPattern.
constexpr const char* expressions[] = {
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
};

constexpr std::string_view endings[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};

CharClass class_at(std::string_view text, size_t at, int& bytes) {
  const Char c = decode_utf8(text, at);
  bytes = c.bytes;
  return class_of(c);
}

bool is_line_end(char c) { return c == '\r' || c == '\n'; }

/// End of the run of characters of class `wanted` that starts at `at`. Sets `last` to the start of its last character.
size_t run_end(std::string_view text, size_t at, CharClass wanted, size_t& last) {
  int bytes;
  while (at < text.size() && class_at(text, at, bytes) == wanted) {
    last = at;
    at += size_t(bytes);
  }
  return at;
}

/// End of an English ending such as 's, 't or 're at text[at], or `at` if there is none. With any_case, U+017F (long s)
/// counts as s, because its upper case is S.
size_t ending_at(std::string_view text, size_t at, bool any_case) {
  if (text[at] != '\'') return at;
  constexpr std::string_view long_s = "'\u017f";
  if (any_case && text.substr(at, long_s.size()) == long_s) return at + long_s.size();
  const auto lower = [&](char c) { return any_case && c >= 'A' && c <= 'Z' ? char(c + 32) : c; };
  for (const std::string_view ending : endings)
    if (std::ranges::equal(text.substr(at, ending.size()), ending, {}, lower)) return at + ending.size();
  return at;
}

/// End of the word that consists of the white space at `at`. If text follows, the last white space character belongs to
/// the next word.
size_t spaces_end(std::string_view text, size_t at) {
  size_t last = at;
  const size_t end = run_end(text, at, CharClass::space, last);
  return end < text.size() && last > at ? last : end;
}

size_t gpt2_word(std::string_view text, size_t at) {
  if (const size_t end = ending_at(text, at, false); end > at) return end;
  // A space belongs to the word that follows.
  const size_t start = text[at] == ' ' && at + 1 < text.size() ? at + 1 : at;
  int bytes;
  size_t last;
  const CharClass kind = class_at(text, start, bytes);
  return kind == CharClass::space ? spaces_end(text, at) : run_end(text, start, kind, last);
}

/// End of the word at `at` by the rules of Llama 3 and Qwen 2; they differ in how many digits form a number (`digits`).
size_t llama_word(std::string_view text, size_t at, int digits) {
  if (const size_t end = ending_at(text, at, true); end > at) return end;
  int bytes;
  size_t last = at;
  const CharClass kind = class_at(text, at, bytes);
  // Letters, optionally preceded by one character that is not a letter, number or newline.
  if (kind == CharClass::letter) return run_end(text, at, kind, last);
  const size_t next = at + size_t(bytes);
  if (kind != CharClass::number && !is_line_end(text[at]))
    if (const size_t end = run_end(text, next, CharClass::letter, last); end > next) return end;
  if (kind == CharClass::number) {
    size_t end = next;
    while (--digits > 0 && end < text.size() && class_at(text, end, bytes) == kind) end += size_t(bytes);
    return end;
  }
  // Punctuation, optionally preceded by a space and followed by newlines.
  const size_t start = text[at] == ' ' ? next : at;
  size_t end = run_end(text, start, CharClass::other, last);
  if (end > start) {
    while (end < text.size() && is_line_end(text[end])) ++end;
    return end;
  }
  // White space up to and including its last newline.
  end = run_end(text, at, CharClass::space, last);
  for (size_t i = end; i > at; --i)
    if (is_line_end(text[i - 1])) return i;
  return spaces_end(text, at);
}

}  // namespace

const char* to_string(WordPattern pattern) { return expressions[size_t(pattern)]; }

std::optional<WordPattern> word_pattern(std::string_view expression) {
  const auto* const found = std::ranges::find(expressions, expression);
  return found == std::end(expressions) ? std::nullopt : std::optional(WordPattern(found - expressions));
}

size_t word_end(WordPattern pattern, std::string_view text, size_t at) {
  if (pattern == WordPattern::gpt2) return gpt2_word(text, at);
  return llama_word(text, at, pattern == WordPattern::llama3 ? 3 : 1);
}

std::vector<std::string_view> split_words(std::string_view text, WordPattern pattern) {
  std::vector<std::string_view> words;
  for (size_t at = 0, end; at < text.size(); at = end) {
    end = word_end(pattern, text, at);
    words.push_back(text.substr(at, end - at));
  }
  return words;
}

}  // namespace lockstep::data
