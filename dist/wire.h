#pragma once
// Messages between a rank and the store: frames of a fixed header and a body of typed fields. Everything that arrives
// is bounded before memory is taken for it, and refused with DistError protocol when it is not what it claims to be.
//
//   | magic "LSc1" | length of the body | request | kind | 0 0 0 | body ...       little-endian, 16 bytes and the body
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "dist/control.h"

namespace lockstep::dist {

inline constexpr uint32_t wire_protocol = 1;
inline constexpr uint32_t wire_magic = 0x3163534c;
inline constexpr size_t wire_header = 16;
inline constexpr size_t stranger_limit = 4096;  ///< bytes before a peer has proved that it knows the token
inline constexpr size_t key_limit = size_t(8) << 10;
inline constexpr size_t value_limit = size_t(8) << 20;
inline constexpr size_t body_limit = key_limit + value_limit + 64;

enum class Kind : uint8_t {
  challenge = 1,
  hello,
  welcome,
  refused,  // who is there
  join,
  joined,
  heartbeat,
  activity,
  failure,
  report,
  leave,  // the job
  set,
  get,
  try_get,
  add,
  barrier,
  cancel,
  explain,
  reply,
  no_reply,
  error,  // the store
};
inline constexpr uint8_t last_kind = uint8_t(Kind::error);

struct Frame {
  Kind kind = Kind::heartbeat;
  uint32_t request = 0;
  std::string body;
};

/// Appends fields to a body.
class Writer {
 public:
  Writer& u8(uint8_t value) {
    body.push_back(char(value));
    return *this;
  }
  Writer& u32(uint32_t value) { return integer(value, 4); }
  Writer& u64(uint64_t value) { return integer(value, 8); }
  Writer& i64(int64_t value) { return integer(uint64_t(value), 8); }
  Writer& seconds(double value);
  Writer& text(std::string_view value) {
    u32(uint32_t(value.size()));
    body.append(value);
    return *this;
  }
  Writer& bytes(const void* data, size_t size) {
    body.append(static_cast<const char*>(data), size);
    return *this;
  }
  std::string body;

 private:
  Writer& integer(uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) body.push_back(char(value >> (8 * i)));
    return *this;
  }
};

/// Takes fields out of a body; DistError protocol when there are fewer bytes than a field needs.
class Fields {
 public:
  explicit Fields(std::string_view body) : rest_(body) {}
  uint8_t u8() { return uint8_t(take(1)[0]); }
  uint32_t u32() { return uint32_t(integer(4)); }
  uint64_t u64() { return integer(8); }
  int64_t i64() { return int64_t(integer(8)); }
  /// Finite and not negative.
  double seconds();
  std::string text(size_t limit);
  template <size_t size> std::array<uint8_t, size> bytes() {
    std::array<uint8_t, size> out;
    const auto from = take(size);
    for (size_t i = 0; i < size; ++i) out[i] = uint8_t(from[i]);
    return out;
  }
  /// A count of things that take at least `bytes_each` here.
  uint32_t count(size_t bytes_each);
  void end() const;  ///< nothing may be left over

 private:
  std::string_view take(size_t bytes);
  uint64_t integer(int bytes);
  std::string_view rest_;
};

std::string encode(Kind kind, uint32_t request, std::string_view body);

/// Cuts a stream of bytes, as they arrive, into frames.
class FrameReader {
 public:
  explicit FrameReader(size_t limit) : limit_(limit) {}
  void set_limit(size_t limit) { limit_ = limit; }
  void push(const char* data, size_t size) { buffer_.append(data, size); }
  /// The next whole frame, if there is one. DistError protocol: magic, kind, or a length above the limit.
  std::optional<Frame> next();
  size_t pending() const { return buffer_.size() - begin_; }

 private:
  size_t limit_;
  size_t begin_ = 0;
  std::string buffer_;
};

// Bodies that both sides read and write.
void write_activity(Writer& out, const Activity& activity);
Activity read_activity(Fields& in);
void write_failure(Writer& out, Fault fault, int rank, std::string_view message);
DistError read_failure(Fields& in);

}  // namespace lockstep::dist
