#pragma once
// Messages between a rank and the store: frames of a fixed header and a body of typed fields. All sizes are checked
// against limits before memory is allocated; malformed input is a DistError protocol.
//
//   | magic "LSc1" | length of the body | request | kind | 0 0 0 | body ...     little-endian; 16 bytes, then the body
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "dist/control.h"

namespace lockstep::dist {

/// Protocol version; both sides must have the same.
inline constexpr uint32_t wire_protocol = 1;
/// "LSc1" in little-endian order.
inline constexpr uint32_t wire_magic = 0x3163534c;
/// Bytes of the header of a frame.
inline constexpr size_t wire_header = 16;
inline constexpr size_t stranger_limit = 4096;                      ///< largest frame from an unauthenticated peer
inline constexpr size_t key_limit = size_t(8) << 10;                ///< longest key
inline constexpr size_t value_limit = size_t(8) << 20;              ///< longest value
inline constexpr size_t body_limit = key_limit + value_limit + 64;  ///< longest body: a key, a value, and other fields

/// Kinds of frames.
enum class FrameKind : uint8_t {
  // Authentication
  challenge = 1,
  hello,
  welcome,
  refused,
  // Membership, heartbeats and failures
  join,
  joined,
  heartbeat,
  activity,
  failure,
  report,
  leave,
  // Requests to the store
  set,
  get,
  try_get,
  add,
  barrier,
  cancel,
  explain,
  reply,
  no_reply,
  error,
};
/// The largest value of FrameKind.
inline constexpr uint8_t last_kind = uint8_t(FrameKind::error);

/// A frame; `request` links a reply to its request.
struct Frame {
  FrameKind kind = FrameKind::heartbeat;
  uint32_t request = 0;
  std::string body;
};

/// Appends fields to a body, little-endian.
class Writer {
 public:
  Writer& u8(uint8_t value) {  ///< a byte
    body.push_back(char(value));
    return *this;
  }
  Writer& u32(uint32_t value) { return integer(value, 4); }           ///< 4 bytes
  Writer& u64(uint64_t value) { return integer(value, 8); }           ///< 8 bytes
  Writer& i64(int64_t value) { return integer(uint64_t(value), 8); }  ///< 8 bytes, two's complement
  Writer& seconds(double value);                                      ///< an f64
  /// A length (4 bytes) and the text.
  Writer& text(std::string_view value) {
    u32(uint32_t(value.size()));
    body.append(value);
    return *this;
  }
  /// Raw bytes without a length.
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

/// Reads fields from a body. DistError protocol when bytes are missing.
class BodyReader {
 public:
  /// `body` must outlive this object.
  explicit BodyReader(std::string_view body) : rest_(body) {}
  uint8_t u8() { return uint8_t(take(1)[0]); }     ///< a byte
  uint32_t u32() { return uint32_t(integer(4)); }  ///< 4 bytes
  uint64_t u64() { return integer(8); }            ///< 8 bytes
  int64_t i64() { return int64_t(integer(8)); }    ///< 8 bytes, two's complement
  /// Reads a duration. DistError protocol unless it is finite and not negative.
  double seconds();
  std::string text(size_t limit);  ///< DistError protocol when longer than `limit`
  /// The next `size` bytes.
  template <size_t size> std::array<uint8_t, size> bytes() {
    std::array<uint8_t, size> out;
    const auto from = take(size);
    for (size_t i = 0; i < size; ++i) out[i] = uint8_t(from[i]);
    return out;
  }
  /// Reads the number of entries that follow. DistError protocol when the rest of the body is too short for them; each
  /// entry has at least `bytes_each` bytes.
  uint32_t count(size_t bytes_each);
  void end() const;  ///< DistError protocol when bytes are left over

 private:
  std::string_view take(size_t bytes);
  uint64_t integer(int bytes);
  std::string_view rest_;
};

/// A frame as bytes. `request`: the number that links a request to its reply; 0 if no reply is expected.
std::string encode(FrameKind kind, uint32_t request, std::string_view body);

/// Splits a byte stream into frames.
class FrameReader {
 public:
  /// `limit`: the longest accepted body.
  explicit FrameReader(size_t limit) : limit_(limit) {}
  void set_limit(size_t limit) { limit_ = limit; }                          ///< changes it for the frames that follow
  void push(const char* data, size_t size) { buffer_.append(data, size); }  ///< appends received bytes
  /// The next complete frame, if any. DistError protocol: wrong magic, unknown kind, or a body above the limit.
  std::optional<Frame> next();
  size_t pending() const { return buffer_.size() - begin_; }  ///< bytes not yet returned

 private:
  size_t limit_;
  size_t begin_ = 0;
  std::string buffer_;
};

// Bodies that both sides read and write
/// Appends an Activity; its long texts are truncated.
void write_activity(Writer& out, const Activity& activity);
/// Reads an Activity.
Activity read_activity(BodyReader& in);
/// Appends a failure; a long message is truncated.
void write_failure(Writer& out, Fault fault, int rank, std::string_view message);
/// Reads a failure.
DistError read_failure(BodyReader& in);

}  // namespace lockstep::dist
