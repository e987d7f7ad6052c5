// Texts for error messages. See suggest.h.
#include "base/suggest.h"

#include <algorithm>

namespace lockstep {
namespace {

/// Levenshtein distance of a and b if it is below `limit`, else some number >= `limit`.
size_t distance(std::string_view a, std::string_view b, size_t limit) {
  if (std::max(a.size(), b.size()) - std::min(a.size(), b.size()) >= limit) return limit;
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t change = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, change});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string suggestion(std::string_view word, const std::vector<std::string>& known) {
  size_t least = std::max<size_t>(2, word.size() / 3) + 1;
  const std::string* nearest = nullptr;
  for (const std::string& name : known) {
    const size_t d = distance(word, name, least);
    if (d >= least) continue;
    least = d;
    nearest = &name;
  }
  return nearest ? "; did you mean " + *nearest + "?" : "";
}

std::string listed(const std::vector<std::string>& names) {
  std::string all;
  for (size_t i = 0; i < names.size(); ++i) all += (i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") + names[i];
  return all;
}

std::string list_names(const std::vector<std::string>& names, size_t max_names) {
  std::string list;
  for (size_t k = 0; k < names.size() && k < max_names; ++k) list += (k ? ", " : "") + names[k];
  return names.size() > max_names ? list + " and " + std::to_string(names.size() - max_names) + " more" : list;
}

std::string counted(int64_t n, const std::string& what) {
  return std::to_string(n) + " " + what + (n == 1 ? "" : what.ends_with("ch") ? "es" : "s");
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts{""};
  for (const char c : text) {
    if (c == separator) parts.emplace_back();
    else parts.back() += c;
  }
  return parts;
}

}  // namespace lockstep
