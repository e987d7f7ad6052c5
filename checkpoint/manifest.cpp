// Writes and parses manifests. See manifest.h.
#include "checkpoint/manifest.h"

#include <algorithm>
#include <cmath>

#include "checkpoint/hash.h"

namespace lockstep::checkpoints {
namespace {

using data::Json;

constexpr const char* format_name = "lockstep-checkpoint";
constexpr data::JsonLimits limits{.bytes = int64_t(1) << 30, .depth = 64};
constexpr std::string_view first_key = "{\"blake2b\": \"", after_hash = "\",\n";
constexpr size_t hash_digits = 64;

bool is_hash(std::string_view text) {
  return text.size() == hash_digits && text.find_first_not_of("0123456789abcdef") == text.npos;
}

/// Appends "key": {...} with one member per line.
template <class Map, class Value>
void add_object(std::string& out, const char* key, const Map& map, const Value& value) {
  out += str(",\n\"", key, "\": {");
  const char* comma = "\n";
  for (const auto& [name, item] : map) {
    out += comma + Json(name).dump() + ": " + value(item).dump();
    comma = ",\n";
  }
  out += "}";
}

/// Reads the members of a JSON object. A key that is not in `keys` is an Error.
class Reader {
 public:
  Reader(const Json& json, std::string where, std::initializer_list<std::string_view> keys)
      : json_(json), where_(std::move(where)) {
    for (const auto& member : json.as_object(where_))
      LOCKSTEP_CHECK(std::find(keys.begin(), keys.end(), member.first) != keys.end(), where_, ": unknown key \"",
                     member.first, "\"; use the release that wrote it");
  }
  const Json& at(const char* key) const { return json_.at(key, where_); }
  std::string path(const char* key) const { return where_ + ": " + key; }
  const std::string& text(const char* key) const { return at(key).as_string(path(key)); }
  int64_t integer(const char* key, int64_t least, int64_t greatest) const {
    const int64_t value = at(key).as_int(path(key));
    LOCKSTEP_CHECK(value >= least && value <= greatest, path(key), ": expected ", least, " to ", greatest, ", got ",
                   value, "; use the release that wrote it");
    return value;
  }
  const Json::Object& object(const char* key) const { return at(key).as_object(path(key)); }
  const Json::Array& list(const char* key) const { return at(key).as_array(path(key)); }

 private:
  const Json& json_;
  std::string where_;
};

Shape parse_shape(const Json::Array& list, const std::string& where) {
  LOCKSTEP_CHECK(list.size() <= size_t(Dims::max_rank), where, ": expected at most ", Dims::max_rank, " dims, got ",
                 list.size(), "; use the release that wrote it");
  Shape shape;
  for (const Json& size : list) {
    shape.push_back(size.as_int(where));
    LOCKSTEP_CHECK(shape.back() >= 0, where, ": expected sizes from 0 up, got ", shape.back(),
                   "; use the release that wrote it");
  }
  int64_t bytes = 8;  // size of the largest element type
  for (const int64_t size : shape)
    LOCKSTEP_CHECK(size == 0 || !__builtin_mul_overflow(bytes, size, &bytes), where, ": shape ", shape,
                   " has more elements than 63 bits can count; use the release that wrote it");
  return shape;
}

DType dtype_named(const std::string& name, const std::string& where) {
  for (int d = 0; d <= int(boolean); ++d)
    if (name_of(DType(d)) == name) return DType(d);
  fail(str(where, ": expected the name of a dtype, got \"", name, "\"; use the release that wrote it"));
}

LogicalTensor parse_tensor(const std::string& name, const Json& json, const std::string& where) {
  const Reader in(json, where, {"dtype", "shape", "parts"});
  LogicalTensor tensor{
      dtype_named(in.text("dtype"), in.path("dtype")), parse_shape(in.list("shape"), in.path("shape")), {}};
  const int64_t numel = tensor.numel();
  int64_t reached = 0;
  for (const Json& item : in.list("parts")) {
    const Reader part(item, where + ": part", {"file", "name", "begin", "end", "crc32c"});
    tensor.parts.push_back({part.text("file"), part.text("name"), part.integer("begin", 0, numel),
                            part.integer("end", 0, numel), uint32_t(part.integer("crc32c", 0, UINT32_MAX))});
    const StoredPiece& p = tensor.parts.back();
    LOCKSTEP_CHECK(p.begin == reached && (p.end > p.begin || numel == 0), where,
                   ": expected parts that follow each other from 0 to ", numel, ", got [", p.begin, ", ", p.end,
                   ") after ", reached, "; use the release that wrote it");
    LOCKSTEP_CHECK(p.name == part_name(name, p.begin, p.end, numel), where, ": expected part [", p.begin, ", ", p.end,
                   ") to be called \"", part_name(name, p.begin, p.end, numel), "\", got \"", p.name,
                   "\"; use the release that wrote it");
    reached = p.end;
  }
  LOCKSTEP_CHECK(reached == numel && (numel > 0 || tensor.parts.size() == 1), where, ": expected parts up to element ",
                 numel, ", got ", tensor.parts.size(), " up to ", reached, "; use the release that wrote it");
  return tensor;
}

/// Applies `change` to each element of a list, or each member of an object.
Json each(const Json& json, Json (*change)(const Json&)) {
  if (json.is_array()) {
    Json::Array list;
    for (const Json& item : json.as_array()) list.push_back(change(item));
    return list;
  }
  Json::Object members;
  for (const auto& [name, value] : json.as_object()) members.emplace_back(name, change(value));
  return members;
}

}  // namespace

bool is_plain_name(std::string_view name) {
  constexpr const char* plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  return !name.empty() && name.size() <= 200 && name[0] != '.' && name.find_first_not_of(plain) == name.npos;
}

void check_name(const std::string& name, const std::string& where) {
  const bool good = !name.empty() && name != "__metadata__" &&
                    std::none_of(name.begin(), name.end(), [](char c) { return c == '[' || uint8_t(c) < 0x20; });
  LOCKSTEP_CHECK(good, where, "expected names of tensors without '[' or control bytes, not '' or __metadata__, got \"",
                 name, "\"");
}

std::string part_name(const std::string& name, int64_t begin, int64_t end, int64_t numel) {
  return begin == 0 && end == numel ? name : str(name, "[", begin, ":", end, "]");
}

const LogicalTensor* find_tensor(const Manifest& manifest, const std::string& name) {
  const auto alias = manifest.aliases.find(name);
  const auto found = manifest.tensors.find(alias == manifest.aliases.end() ? name : alias->second);
  return found == manifest.tensors.end() ? nullptr : &found->second;
}

Json finite(const Json& json) {
  if (json.is_array() || json.is_object()) return each(json, finite);
  const double value = json.is_number() ? json.as_number() : 0;
  if (std::isfinite(value)) return json;
  return Json::Object{{"double", std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf"}};
}

Json with_infinities(const Json& json) {
  for (const double value : {std::nan(""), double(INFINITY), -double(INFINITY)})
    if (json == finite(value)) return value;
  return json.is_array() || json.is_object() ? each(json, with_infinities) : json;
}

Json to_json(const Numbers& numbers) {
  Json::Object members;
  for (const auto& [name, value] : numbers) members.emplace_back(name, finite(value));
  return members;
}

Numbers parse_numbers(const Json& json, const std::string& where) {
  Numbers numbers;
  for (const auto& [name, value] : json.as_object(where)) {
    numbers[name] = with_infinities(value);
    LOCKSTEP_CHECK(numbers[name].is_number() || numbers[name].is_string(), where, ": ", name,
                   ": expected a number, a text, nan, inf or -inf, got ", value.dump(),
                   "; use the release that wrote it");
  }
  return numbers;
}

std::string text_of(const Json& number) {
  const Json json = finite(number);
  const std::string text = json.is_object() ? json.at("double").as_string() : json.dump();
  return text.size() > 60 ? text.substr(0, 57) + "..." : text;
}

std::string seal_manifest(std::string_view body) {
  return str(first_key, hash_of(data::as_bytes(body)), after_hash, body);
}

std::string to_text(const Manifest& m) {
  std::string out = str("\"format\": \"", format_name, "\", \"version\": ", Manifest::version,
                        ",\n\"id\": ", Json(m.id).dump(), ", \"tag\": ", Json(m.tag).dump(),
                        ", \"sequence\": ", m.sequence, ", \"world\": ", m.world, ", \"plan\": ", Json(m.plan).dump());
  add_object(out, "files", m.files, [](const FileSum& file) {
    return Json(Json::Object{{"bytes", file.bytes}, {"blake2b", file.hash}});
  });
  add_object(out, "tensors", m.tensors, [](const LogicalTensor& tensor) {
    Json::Array parts;
    for (const StoredPiece& p : tensor.parts)
      parts.push_back(Json::Object{
          {"file", p.file}, {"name", p.name}, {"begin", p.begin}, {"end", p.end}, {"crc32c", int64_t(p.crc)}});
    return Json(Json::Object{{"dtype", std::string(name_of(tensor.dtype))},
                             {"shape", Json::Array(tensor.shape.begin(), tensor.shape.end())},
                             {"parts", std::move(parts)}});
  });
  add_object(out, "aliases", m.aliases, [](const std::string& name) { return Json(name); });
  add_object(out, "numbers", m.numbers, finite);
  out += ",\n\"client_state\": " + finite(m.client_state).dump() + "}\n";
  return seal_manifest(out);
}

Manifest parse_manifest(std::string_view text, const std::string& origin) {
  const size_t body = first_key.size() + hash_digits + after_hash.size();
  LOCKSTEP_CHECK(text.starts_with(first_key) && text.size() > body &&
                     text.substr(body - after_hash.size(), after_hash.size()) == after_hash,
                 origin,
                 ": expected the manifest of a checkpoint, which starts with its hash, got something else; copy the "
                 "checkpoint again, or load another one");
  const std::string_view said = text.substr(first_key.size(), hash_digits);
  const std::string found = hash_of(data::as_bytes(text.substr(body)));
  LOCKSTEP_CHECK(found == said, origin, ": the manifest is damaged: its first line says BLAKE2b ", said,
                 ", the rest has ", found, "; copy the checkpoint again, or load another one");

  const Json json = data::parse_json(text, origin, limits);
  const Json* format = json.find("format");
  LOCKSTEP_CHECK(format && *format == Json(format_name), origin, ": expected format \"", format_name, "\", got ",
                 format ? format->dump() : "none", "; use the release that wrote it");
  LOCKSTEP_CHECK(json.at("version", origin) == Json(Manifest::version), origin, ": expected version ",
                 Manifest::version, ", got ", json.at("version").dump(), ": written by another release; use that one");
  const Reader in(json, origin,
                  {"blake2b", "format", "version", "id", "tag", "sequence", "world", "plan", "files", "tensors",
                   "aliases", "numbers", "client_state"});
  Manifest m;
  m.id = in.text("id");
  m.tag = in.text("tag");
  LOCKSTEP_CHECK(is_plain_name(m.tag), in.path("tag"), ": expected letters, digits, '.', '_' and '-', got \"", m.tag,
                 "\"; use the release that wrote it");
  m.sequence = in.integer("sequence", 0, INT64_MAX);
  m.world = int(in.integer("world", 1, 1 << 24));
  m.plan = in.text("plan");
  for (const auto& [name, item] : in.object("files")) {
    const Reader file(item, in.path("files") + ": " + name, {"bytes", "blake2b"});
    LOCKSTEP_CHECK(is_plain_name(name) && name != manifest_name, in.path("files"), ": expected plain names, got \"",
                   name, "\"; use the release that wrote it");
    LOCKSTEP_CHECK(is_hash(file.text("blake2b")), file.path("blake2b"), ": expected ", hash_digits,
                   " hexadecimal digits; use the release that wrote it");
    m.files[name] = {file.integer("bytes", 8, INT64_MAX), file.text("blake2b")};
  }
  for (const auto& [name, item] : in.object("tensors")) {
    check_name(name, origin + ": ");
    const LogicalTensor& tensor = m.tensors[name] = parse_tensor(name, item, in.path("tensors") + ": " + name);
    for (const StoredPiece& part : tensor.parts)
      LOCKSTEP_CHECK(m.files.count(part.file), in.path("tensors"), ": ", name,
                     ": expected one of the files listed, got \"", part.file, "\"; use the release that wrote it");
  }
  for (const auto& [name, item] : in.object("aliases")) {
    const std::string& target = item.as_string(in.path("aliases"));
    LOCKSTEP_CHECK(m.tensors.count(target) && !m.tensors.count(name), in.path("aliases"),
                   ": expected another name for a tensor that is there, got \"", name, "\" for \"", target,
                   "\"; use the release that wrote it");
    m.aliases[name] = target;
  }
  m.numbers = parse_numbers(in.at("numbers"), in.path("numbers"));
  m.client_state = with_infinities(in.at("client_state"));
  return m;
}

}  // namespace lockstep::checkpoints
