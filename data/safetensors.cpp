// Reads and writes safetensors files. See safetensors.h.
#include "data/safetensors.h"

#include <bit>
#include <cstring>
#include <numeric>

#include "data/files.h"
#include "data/json.h"
#include "data/json_events.h"

namespace lockstep::data {
namespace {

constexpr int64_t max_header = 100'000'000;  // limit of the reference implementation
constexpr std::pair<std::string_view, DType> dtypes[] = {{"F32", f32},      {"F64", f64}, {"F16", f16}, {"BF16", bf16},
                                                         {"I64", i64},      {"I32", i32}, {"I8", i8},   {"U8", u8},
                                                         {"BOOL", boolean}, {"C64", c64}};

/// Parses {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, "__metadata__": {"key": "value"}} from
/// events, without building a tree: a header may list a million tensors.
class HeaderReader final : public JsonEvents {
 public:
  HeaderReader(std::string_view text, const std::string& origin) : JsonEvents(text, origin, 3) {}
  SafeTensorsHeader header;

  bool start_object(size_t) override {
    enter();
    if (depth() > 2 || in_array_) refuse_value("an object");
    if (depth() == 2) {
      in_metadata_ = key_ == "__metadata__";
      if (in_metadata_ && std::exchange(has_metadata_, true))
        refuse("__metadata__ appears twice; write the file again");
      if (!in_metadata_) header.entries.push_back({key_, f32, {}, -1, -1});
      present_ = 0;
    }
    return true;
  }
  bool end_object() override {
    leave();
    if (depth() == 1 && !in_metadata_) {
      if (present_ != 7)
        refuse("tensor \"", header.entries.back().name, "\": expected dtype, shape and data_offsets, got ",
               std::popcount(unsigned(present_)), " of them; write the file again");
      check_size(header.entries.back());
    }
    return true;
  }
  bool key(string_t& name) override {
    key_ = std::move(name);
    if (depth() == 2 && !in_metadata_) {
      field_ = key_ == "dtype" ? 1 : key_ == "shape" ? 2 : key_ == "data_offsets" ? 4 : 0;
      if (!field_)
        refuse("tensor \"", header.entries.back().name, "\": unknown key \"", key_,
               "\"; expected dtype, shape and data_offsets; write the file again");
      if (present_ & field_)
        refuse("tensor \"", header.entries.back().name, "\": ", key_, " appears twice; write the file again");
      present_ |= field_;
    }
    return true;
  }
  bool string(string_t& value) override {
    if (depth() != 2 || in_array_) refuse_value("a string");
    if (in_metadata_) {
      if (!header.metadata.emplace(key_, std::move(value)).second)
        refuse("__metadata__: key \"", key_, "\" appears twice; write the file again");
      return true;
    }
    if (field_ != 1) refuse_value("a string");
    for (const auto& [name, dtype] : dtypes)
      if (value == name) return header.entries.back().dtype = dtype, true;
    refuse("tensor \"", header.entries.back().name,
           "\": expected dtype F32, F64, F16, BF16, I64, I32, I8, U8, BOOL or C64, got ", value,
           "; convert the tensor and write the file again");
  }
  bool start_array(size_t) override {
    enter();
    if (depth() != 3 || in_metadata_ || in_array_ || field_ == 1) refuse_value("a list");
    in_array_ = true;
    count_ = 0;
    return true;
  }
  bool end_array() override {
    leave();
    in_array_ = false;
    if (field_ == 4 && count_ != 2)
      refuse("tensor \"", header.entries.back().name, "\": expected 2 data_offsets, got ", count_,
             "; write the file again");
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (!in_array_) refuse_value("a number");
    SafeTensorsEntry& entry = header.entries.back();
    if (value > uint64_t(INT64_MAX))
      refuse("tensor \"", entry.name, "\": ", value, " does not fit in 63 bits; write the file again");
    // Until check_size(), entry.offset holds the first number of data_offsets, and entry.bytes the second.
    if (field_ == 4) (count_ == 0 ? entry.offset : entry.bytes) = int64_t(value);
    else if (count_ == Dims::max_rank)
      refuse("tensor \"", entry.name, "\": expected at most ", Dims::max_rank,
             " dims, got more; reshape it and write the file again");
    else entry.shape.push_back(int64_t(value));
    ++count_;
    return true;
  }
  bool number_integer(number_integer_t value) override { refuse_value(value); }
  bool number_float(number_float_t, const string_t& text) override { refuse_value(text); }
  bool null() override {
    const bool none = depth() == 1 && !in_array_ && key_ == "__metadata__" && !std::exchange(has_metadata_, true);
    return none || (refuse_value("null"), false);
  }
  bool boolean(bool) override { refuse_value("a bool"); }

 private:
  template <class T> [[noreturn]] void refuse_value(const T& value) const {
    refuse("expected ", wanted(), ", got ", value, "; write the file again");
  }

  const char* wanted() const {
    if (depth() < 1 || (depth() == 1 && !in_array_)) return "an object";
    if (in_array_ || depth() == 3) return "sizes that are whole numbers from 0 up";
    return in_metadata_ ? "a string" : field_ == 1 ? "the name of a dtype" : "a list";
  }

  /// Error unless the data's size matches dtype and shape, and fits in 63 bits. Replaces the begin and end of the data,
  /// which `entry` holds so far, by offset and size.
  void check_size(SafeTensorsEntry& entry) {
    int64_t bytes = size_of(entry.dtype);
    bool fits = true;
    for (const int64_t size : entry.shape) fits = fits && !__builtin_mul_overflow(bytes, size, &bytes);
    if (!fits)
      refuse("tensor \"", entry.name, "\": shape ", entry.shape,
             " has more elements than 63 bits can count; write the file again");
    const int64_t begin = entry.offset, end = entry.bytes;
    if (end < begin || end - begin != bytes)
      refuse("tensor \"", entry.name, "\": expected ", bytes, " bytes for ", name_of(entry.dtype), entry.shape,
             ", got data_offsets [", begin, ", ", end, "]; write the file again");
    entry.bytes = bytes;
  }

  std::string key_;
  int field_ = 0, present_ = 0, count_ = 0;  // field: 1 dtype, 2 shape, 4 data_offsets
  bool in_metadata_ = false, has_metadata_ = false, in_array_ = false;
};

std::vector<uint32_t> sorted_by_name(const std::vector<SafeTensorsEntry>& entries) {
  std::vector<uint32_t> order(entries.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return entries[a].name < entries[b].name; });
  return order;
}

/// Parses the JSON header and checks it against the number of data bytes. Offsets count from the start of the data.
SafeTensorsHeader parse_header(std::string_view text, int64_t data_bytes, const std::string& origin) {
  LOCKSTEP_CHECK(
      !text.empty() && text[0] == '{', origin,
      ": expected a header that starts with '{'; is it a safetensors file? Check the path, or download it again");
  HeaderReader reader(text, origin);
  reader.run();
  auto& entries = reader.header.entries;
  const auto order = sorted_by_name(entries);
  for (size_t i = 1; i < order.size(); ++i)
    LOCKSTEP_CHECK(entries[order[i - 1]].name != entries[order[i]].name, origin, ": tensor \"", entries[order[i]].name,
                   "\" appears twice; write the file again");
  // There may be no gaps, overlaps or unclaimed bytes: nothing hides in the file, no byte belongs to two tensors.
  std::stable_sort(entries.begin(), entries.end(),
                   [](auto& a, auto& b) { return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes); });
  int64_t end = 0;
  for (const auto& entry : entries) {
    LOCKSTEP_CHECK(entry.offset == end, origin, ": tensor \"", entry.name, "\": expected data at offset ", end,
                   ", got ", entry.offset, entry.offset < end ? " (tensors overlap)" : " (a gap)",
                   "; write the file again");
    LOCKSTEP_CHECK(entry.bytes <= data_bytes - end, origin, ": tensor \"", entry.name, "\": expected at least ", end,
                   " + ", entry.bytes, " bytes of data, got ", data_bytes,
                   " (is the file truncated?); copy or download it again");
    end += entry.bytes;
  }
  LOCKSTEP_CHECK(end == data_bytes, origin, ": expected ", end, " bytes of data, got ", data_bytes,
                 "; write the file again");
  return std::move(reader.header);
}

}  // namespace

SafeTensorsHeader parse_safetensors(Bytes file, const std::string& origin) {
  const std::string where = "[safetensors] " + origin;
  LOCKSTEP_CHECK(file.size() >= 8, where, ": expected at least 8 bytes, got ", file.size(),
                 " (is it truncated?); copy or download it again");
  uint64_t length;
  std::memcpy(&length, file.data(), 8);
  LOCKSTEP_CHECK(length <= uint64_t(max_header), where, ": expected a header of at most ", max_header, " bytes, got ",
                 length, " (is this a safetensors file?); check the path, or download it again");
  LOCKSTEP_CHECK(length <= file.size() - 8, where, ": expected a header of ", length, " bytes, got a file of ",
                 file.size(), " bytes (is the file truncated?); copy or download it again");
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + 8, length);
  const int64_t start = int64_t(8 + length);
  SafeTensorsHeader header = parse_header(text, int64_t(file.size()) - start, where);
  for (auto& entry : header.entries) entry.offset += start;
  return header;
}

SafeTensors SafeTensors::open(const std::string& path) {
  SafeTensors result;
  result.path_ = path;
  result.file_ = MappedFile::open(path);
  result.header_ = parse_safetensors(result.file_->bytes(), path);
  result.by_name_ = sorted_by_name(result.entries());
  return result;
}

std::vector<std::string> SafeTensors::names() const {
  std::vector<std::string> names;
  for (const auto& entry : entries()) names.push_back(entry.name);
  return names;
}

const SafeTensorsEntry* SafeTensors::find(const std::string& name) const {
  const auto at = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                   [&](uint32_t i, const std::string& wanted) { return entries()[i].name < wanted; });
  return at != by_name_.end() && entries()[*at].name == name ? &entries()[*at] : nullptr;
}

Tensor SafeTensors::tensor(const std::string& name) const {
  const SafeTensorsEntry* entry = find(name);
  if (!entry) {
    std::string known;
    for (size_t i = 0; i < std::min<size_t>(entries().size(), 8); ++i) known += (i ? ", " : "") + entries()[i].name;
    fail(str("[safetensors] ", path_, ": no tensor \"", name, "\" among ", entries().size(), ": ", known,
             entries().size() > 8 ? ", ..." : "", "; name one of them"));
  }
  return tensor(*entry);
}

Tensor SafeTensors::tensor(const SafeTensorsEntry& entry) const {
  std::byte* data = file_->data() + entry.offset;
  if (entry.dtype == boolean)
    for (int64_t i = 0; i < entry.bytes; ++i)
      LOCKSTEP_CHECK(uint8_t(data[i]) <= 1, "[safetensors] ", path_, ": tensor \"", entry.name,
                     "\": expected 0 or 1, got ", int(data[i]), " at ", i, "; write the file again");
  Ref<Storage> storage;
  if (reinterpret_cast<uintptr_t>(data) % size_t(size_of(entry.dtype)) == 0 && entry.bytes > 0) {
    storage = Storage::adopt(data, entry.bytes, cpu, [keep = file_] {});
  } else {
    storage = Storage::allocate(entry.bytes, cpu);
    if (entry.bytes) std::memcpy(storage->data(), data, size_t(entry.bytes));
  }
  return Tensor(std::move(storage), 0, entry.shape, contiguous_strides(entry.shape), entry.dtype);
}

std::string safetensors_start(std::vector<SafeTensorsEntry>& entries, const Metadata& metadata,
                              const std::string& origin) {
  std::stable_sort(entries.begin(), entries.end(),
                   [](auto& a, auto& b) { return size_of(a.dtype) > size_of(b.dtype); });
  std::vector<std::pair<std::string, Json>> members;
  if (!metadata.empty()) {
    Json::Object texts;
    for (const auto& [key, value] : metadata) texts.emplace_back(key, value);
    members.emplace_back("__metadata__", std::move(texts));
  }
  int64_t end = 0;
  for (SafeTensorsEntry& entry : entries) {
    LOCKSTEP_CHECK(entry.name != "__metadata__", origin, ": a tensor cannot be called __metadata__; rename it");
    entry.offset = end;
    entry.bytes = numel_of(entry.shape) * size_of(entry.dtype);
    end += entry.bytes;
    Json::Array shape(entry.shape.begin(), entry.shape.end());
    const auto known =
        std::find_if(std::begin(dtypes), std::end(dtypes), [&](auto& row) { return row.second == entry.dtype; });
    LOCKSTEP_CHECK(known != std::end(dtypes), origin, ": tensor \"", entry.name, "\": the format has no name for ",
                   entry.dtype, "; save it as view_as_real() or c64");
    members.emplace_back(entry.name, Json::Object{{"dtype", std::string(known->first)},
                                                  {"shape", std::move(shape)},
                                                  {"data_offsets", Json::Array{entry.offset, end}}});
  }
  std::string header = Json(std::move(members)).dump();
  header.append((8 - header.size() % 8) % 8, ' ');
  LOCKSTEP_CHECK(int64_t(header.size()) <= max_header, origin, ": expected a header of at most ", max_header,
                 " bytes, got ", header.size(), "; save fewer tensors in a file, or shorten the metadata");
  parse_header(header, end, origin);  // refuse what could not be loaded: duplicate or non-UTF-8 names

  const uint64_t length = header.size();
  std::string start(8, '\0');
  std::memcpy(start.data(), &length, 8);
  start += header;
  for (SafeTensorsEntry& entry : entries) entry.offset += int64_t(start.size());
  return start;
}

void save_safetensors(const std::string& path, const std::vector<std::pair<std::string, Tensor>>& tensors,
                      const Metadata& metadata) {
  const std::string where = "[save_safetensors] " + path;
  std::vector<Tensor> sorted;
  std::vector<SafeTensorsEntry> entries;
  for (const auto& [name, tensor] : tensors) {
    LOCKSTEP_CHECK(tensor.defined() && tensor.device().is_cpu(), where, ": expected tensors on the cpu, got \"", name,
                   "\" ", tensor.defined() ? "elsewhere" : "undefined", "; move it with .to(cpu), or leave it out");
    sorted.push_back(tensor.contiguous());
    entries.push_back({name, tensor.dtype(), tensor.shape()});
  }
  const std::string start = safetensors_start(entries, metadata, where);
  // Sort the tensors as safetensors_start() sorts the entries.
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](auto& a, auto& b) { return size_of(a.dtype()) > size_of(b.dtype()); });
  std::vector<Bytes> chunks{as_bytes(start)};
  for (const Tensor& tensor : sorted)
    if (tensor.numel() > 0)
      chunks.push_back(
          {static_cast<const std::byte*>(tensor.raw_data()), size_t(tensor.numel() * size_of(tensor.dtype()))});
  write_atomically(path, chunks);
}

}  // namespace lockstep::data
