#pragma once
// Values of a JSON object under dotted paths, such as "zero_optimization.stage".
#include <cstdint>
#include <string>
#include <string_view>

#include "data/json.h"

namespace lockstep::train {

/// True if a and b are equal. Numbers compare as numbers: 1e-5 equals 0.00001, and 4 equals 4.0.
bool same_value(const data::Json& a, const data::Json& b);
/// The value under a dotted path such as "zero_optimization.stage", or nullptr.
const data::Json* find_at(const data::Json& root, std::string_view path);
/// Sets the value under a dotted path and creates the objects on the way.
void put_at(data::Json& root, std::string_view path, data::Json value);
/// Reads `from` into `to`. If the value is of another kind than `to`, throws an Error that begins with `where`.
inline void read_as(const data::Json& from, bool& to, const std::string& where) { to = from.as_bool(where); }
inline void read_as(const data::Json& from, int64_t& to, const std::string& where) { to = from.as_int(where); }
inline void read_as(const data::Json& from, double& to, const std::string& where) { to = from.as_number(where); }
/// True if the path has a value other than "auto".
bool is_said(const data::Json& root, std::string_view path);
/// True if the path has the value "auto".
bool is_auto(const data::Json& root, std::string_view path);

}  // namespace lockstep::train
