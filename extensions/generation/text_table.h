#pragma once
// Texts in tables: JSON Lines, a JSON list of objects, and CSV, as Hugging Face's load_dataset() reads them.
#include <string>
#include <vector>

#include "data/json.h"

namespace lockstep::data {

/// True for names that end in .json, .jsonl or .csv.
bool is_text_table(const std::string& path);
/// The texts of a table, in order: those of the column "text", or of the first column if there is none of this name.
/// Error, with the file and the line or row, if a row lacks the column or its value is no text. limits: of JSON.
std::vector<std::string> read_text_table(const std::string& path, JsonLimits limits = python_json);
/// The rows of a CSV file (RFC 4180) as text: fields may be quoted, and then hold commas, line ends and "" for a quote.
/// Blank lines are left out. Error for a row with more or fewer fields than the first, and for a quote that is not
/// closed. Errors begin with `origin`.
std::vector<std::vector<std::string>> parse_text_csv(const std::string& text, const std::string& origin);

}  // namespace lockstep::data
