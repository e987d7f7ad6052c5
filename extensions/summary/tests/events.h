#pragma once
// A reader of TensorBoard's event files, written from the formats' descriptions and not with the writer's code.
#include <doctest/doctest.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tests/temp_dir.h"

namespace testing {

/// CRC-32C (Castagnoli), bit by bit, masked as in TFRecord files.
inline uint32_t masked_crc32c(std::string_view bytes) {
  uint32_t crc = 0xffffffffu;
  for (const char byte : bytes) {
    crc ^= uint8_t(byte);
    for (int i = 0; i < 8; ++i) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
  }
  crc = ~crc;
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

template <class T> T take(std::string_view& in) {
  REQUIRE(in.size() >= sizeof(T));
  T value;
  std::memcpy(&value, in.data(), sizeof value);
  in.remove_prefix(sizeof value);
  return value;
}
inline std::string_view take_bytes(std::string_view& in, size_t count) {
  REQUIRE(in.size() >= count);
  const std::string_view bytes = in.substr(0, count);
  in.remove_prefix(count);
  return bytes;
}
inline uint64_t take_varint(std::string_view& in) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = take<uint8_t>(in);
    value |= uint64_t(byte & 127) << shift;
    if (byte < 128) return value;
  }
}

/// A message of protocol buffers: its fields, in order.
struct ProtoMessage {
  struct Field {
    int number;
    uint64_t bits;        // of a number
    std::string content;  // of a string or a message
  };
  std::vector<Field> fields;

  explicit ProtoMessage(std::string_view in) {
    while (!in.empty()) {
      const uint64_t key = take_varint(in);
      Field field{int(key >> 3), 0, ""};
      switch (key & 7) {
        case 0: field.bits = take_varint(in); break;
        case 1: field.bits = take<uint64_t>(in); break;
        case 2: field.content = take_bytes(in, size_t(take_varint(in))); break;
        case 5: field.bits = take<uint32_t>(in); break;
        default: FAIL("a kind of field that does not exist");
      }
      fields.push_back(field);
    }
  }
  const Field* find(int number) const {
    for (const Field& one : fields)
      if (one.number == number) return &one;
    return nullptr;
  }
  bool has(int number) const { return find(number) != nullptr; }
  std::vector<ProtoMessage> all(int number) const {
    std::vector<ProtoMessage> found;
    for (const Field& one : fields)
      if (one.number == number) found.emplace_back(one.content);
    return found;
  }
  ProtoMessage at(int number) const { return ProtoMessage(text(number)); }
  std::string text(int number) const { return find(number) ? find(number)->content : ""; }
  int64_t integer(int number) const { return find(number) ? int64_t(find(number)->bits) : 0; }
  double real(int number) const { return find(number) ? std::bit_cast<double>(find(number)->bits) : 0; }
  float single(int number) const { return find(number) ? std::bit_cast<float>(uint32_t(find(number)->bits)) : 0; }
  std::vector<double> reals(int number) const {  // packed
    std::vector<double> values;
    const std::string bytes = text(number);
    for (std::string_view in = bytes; !in.empty();) values.push_back(take<double>(in));
    return values;
  }
};

/// The events of a file; checks every checksum.
inline std::vector<ProtoMessage> read_events(std::string_view file) {
  std::vector<ProtoMessage> all;
  while (!file.empty()) {
    const std::string_view length = take_bytes(file, 8);
    std::string_view number = length;
    const auto bytes = take<uint64_t>(number);
    CHECK(take<uint32_t>(file) == masked_crc32c(length));
    const std::string_view body = take_bytes(file, size_t(bytes));
    CHECK(take<uint32_t>(file) == masked_crc32c(body));
    all.emplace_back(body);
  }
  return all;
}

/// The events of the files in a folder, without those below it.
inline std::vector<ProtoMessage> events_in(const TempDir& dir, const std::string& folder) {
  std::vector<ProtoMessage> all;
  for (const auto& entry : std::filesystem::directory_iterator(dir / folder)) {
    if (!entry.is_regular_file()) continue;
    CHECK(entry.path().filename().string().starts_with("events.out.tfevents."));
    const std::string content = dir.read(entry.path().string());
    for (const ProtoMessage& event : read_events(content)) all.push_back(event);
  }
  return all;
}

/// An event's only value, with its step.
struct EventValue {
  std::string tag;
  int64_t step;
  ProtoMessage value;
};
/// The values in a folder, in order.
inline std::vector<EventValue> values_in(const TempDir& dir, const std::string& folder) {
  std::vector<EventValue> all;
  for (const ProtoMessage& event : events_in(dir, folder))
    for (const ProtoMessage& value : event.at(5).all(1)) all.push_back({value.text(1), event.integer(2), value});
  return all;
}

}  // namespace testing
