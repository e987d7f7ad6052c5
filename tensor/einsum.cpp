// Replaces the ellipsis of an einsum equation by letters. See einsum.h.
#include "tensor/einsum.h"

#include <algorithm>

#include "base/check.h"

namespace lockstep {
namespace {

constexpr const char* dots = "...";

/// Number of letters of one operand or of the output, which may have one ellipsis.
size_t letters_of(const std::string& names, const std::string& equation) {
  const size_t points = size_t(std::count(names.begin(), names.end(), '.'));
  LOCKSTEP_CHECK(points == 0 || (points == 3 && names.find(dots) != std::string::npos),
                 "[einsum] expected an ellipsis of three dots, once in an operand, got \"", equation, "\"");
  return names.size() - points;
}

}  // namespace

SpelledOut spell_out(const std::string& equation, const std::vector<Shape>& shapes) {
  std::string text = equation;
  std::erase(text, ' ');
  const size_t arrow = text.find("->");
  const bool implicit = arrow == std::string::npos;
  std::vector<std::string> inputs(1);
  for (const char c : text.substr(0, arrow))
    if (c == ',') inputs.emplace_back();
    else inputs.back() += c;
  LOCKSTEP_CHECK(inputs.size() == shapes.size(), "[einsum] expected ", inputs.size(), " operands for \"", equation,
                 "\", got ", shapes.size());
  std::string output = implicit ? "" : text.substr(arrow + 2), unused;
  letters_of(output, equation);
  for (char c = 'A'; c <= 'z'; ++c)
    if ((c <= 'Z' || c >= 'a') && text.find(c) == std::string::npos) unused += c;

  SpelledOut full{{}, shapes};
  std::vector<int64_t> sizes;  // sizes of the ellipsis' dims, last dim first
  std::vector<size_t> counts(inputs.size(), 0);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const size_t letters = letters_of(inputs[i], equation), start = inputs[i].find(dots);
    if (start == std::string::npos) continue;
    LOCKSTEP_CHECK(size_t(shapes[i].rank()) >= letters, "[einsum] expected operand ", i, " to have at least ", letters,
                   " dims (\"", inputs[i], "\"), got ", shapes[i], "; reshape the operand, or change the letters");
    counts[i] = size_t(shapes[i].rank()) - letters;
    for (size_t d = 0; d < counts[i]; ++d) {
      if (sizes.size() <= d) sizes.push_back(1);
      const int64_t size = shapes[i][int(start + counts[i] - 1 - d)];
      LOCKSTEP_CHECK(size == 1 || sizes[d] == 1 || size == sizes[d],
                     "[einsum] expected the dims of ... to broadcast in \"", equation, "\", got sizes ", sizes[d],
                     " and ", size, "; reshape one of them");
      if (size != 1) sizes[d] = size;
    }
  }
  LOCKSTEP_CHECK(sizes.size() <= unused.size(), "[einsum] expected fewer letters in \"", equation,
                 "\": its letters and the dims that ... stands for may be at most 52 in all");
  const std::string names = unused.substr(0, sizes.size());
  std::string once = text.substr(0, arrow);
  std::sort(once.begin(), once.end());
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (const size_t start = inputs[i].find(dots); start != std::string::npos) {
      for (size_t d = 0; d < counts[i]; ++d) full.shapes[i][int(start + counts[i] - 1 - d)] = sizes[d];
      inputs[i].replace(start, 3, names.substr(names.size() - counts[i]));
    }
    full.equation += (i ? "," : "") + inputs[i];
  }
  if (implicit) {
    output = dots;
    for (const char c : once)
      if (c != ',' && c != '.' && std::count(once.begin(), once.end(), c) == 1) output += c;
  }
  if (const size_t start = output.find(dots); start != std::string::npos) output.replace(start, 3, names);
  full.equation += "->" + output;
  return full;
}

}  // namespace lockstep
