// Finds and sets values under dotted paths. See json_paths.h.
#include "train/json_paths.h"

#include <algorithm>

#include "base/check.h"

namespace lockstep::train {

using data::Json;

const Json* find_at(const Json& root, std::string_view path) {
  const Json* at = &root;
  for (size_t begin = 0; at && begin <= path.size();) {
    const size_t dot = std::min(path.find('.', begin), path.size());
    at = at->find(path.substr(begin, dot - begin));
    begin = dot + 1;
  }
  return at;
}

void put_at(Json& root, std::string_view path, Json value) {
  Json* at = &root;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t dot = std::min(path.find('.', begin), path.size());
    LOCKSTEP_CHECK(at->is_null() || at->is_object(), "--set ", path, ": ", path.substr(0, begin ? begin - 1 : 0),
                   " is ", at->kind(), ", not an object; set that key instead");
    at = &(*at)[path.substr(begin, dot - begin)];
    begin = dot + 1;
  }
  *at = std::move(value);
}

bool is_auto(const Json& root, std::string_view path) {
  const Json* found = find_at(root, path);
  return found && found->is_string() && found->as_string() == "auto";
}

bool is_said(const Json& root, std::string_view path) { return find_at(root, path) && !is_auto(root, path); }

bool same_value(const Json& a, const Json& b) {
  if (a.is_number() && b.is_number()) return a.as_number() == b.as_number();
  if (!a.is_array() || !b.is_array()) return a == b;
  const auto &x = a.as_array(), &y = b.as_array();
  return std::equal(x.begin(), x.end(), y.begin(), y.end(), same_value);
}

}  // namespace lockstep::train
