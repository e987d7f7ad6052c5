#pragma once
// Protocol buffers as bytes: the parts of the encoding that TensorBoard's events need. Each function returns one field
// of a message; a message is the concatenation of its fields.
#include <bit>
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::protobuf {

/// How a field's value is stored.
enum class Wire { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

template <class T> std::string little_endian(T value) {
  std::string out;
  for (size_t i = 0; i < sizeof value; ++i) out += char(value >> (8 * i) & 0xff);
  return out;
}
inline std::string varint(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out += char(value | 0x80);
  return out + char(value);
}
inline std::string head(int number, Wire wire) { return varint(uint64_t(number) << 3 | uint64_t(wire)); }

/// A double.
inline std::string field(int number, double value) {
  return head(number, Wire::fixed64) + little_endian(std::bit_cast<uint64_t>(value));
}
/// A float.
inline std::string field(int number, float value) {
  return head(number, Wire::fixed32) + little_endian(std::bit_cast<uint32_t>(value));
}
/// An integer, an enumerator or a bool.
inline std::string field(int number, int64_t value) { return head(number, Wire::varint) + varint(uint64_t(value)); }
/// A string, or a message.
inline std::string field(int number, const std::string& value) {
  return head(number, Wire::bytes) + varint(value.size()) + value;
}
inline std::string field(int number, const char* value) { return field(number, std::string(value)); }
/// A packed list of doubles.
inline std::string field(int number, const std::vector<double>& values) {
  std::string all;
  for (const double value : values) all += little_endian(std::bit_cast<uint64_t>(value));
  return field(number, all);
}

}  // namespace lockstep::protobuf
