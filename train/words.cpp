// Parses options with several values in one string. See words.h.
#include "train/words.h"

#include <algorithm>
#include <sstream>

#include "base/check.h"
#include "base/suggest.h"

namespace lockstep::train {

std::pair<std::string, data::Json> parse_words(const std::string& text, const std::vector<std::string>& known,
                                               const std::string& origin) {
  std::stringstream in(text);
  std::string first;
  std::getline(in, first, ',');
  data::Json values(data::Json::Object{});
  for (std::string word; std::getline(in, word, ',');) {
    const size_t equals = word.find('=');
    const std::string key = word.substr(0, equals);
    LOCKSTEP_CHECK(equals != word.npos && std::find(known.begin(), known.end(), key) != known.end(), origin, " ", text,
                   ": expected KEY=VALUE after the first word, got '", word, "'", suggestion(key, known));
    const std::string value = word.substr(equals + 1);
    LOCKSTEP_CHECK(!values.find(key), origin, " ", text, ": expected each key once, got '", key, "' twice");
    try {
      values[key] = data::parse_json(value, origin);
    } catch (const Error&) { values[key] = value; }  // the value is not JSON: keep the string
  }
  return {first, values};
}

}  // namespace lockstep::train
