// wire.cpp: encodes and decodes frames. See wire.h.
#include "dist/wire.h"

#include <bit>
#include <cmath>

#include "base/printable.h"

namespace lockstep::dist {
namespace {

constexpr size_t name_limit = 1024;        // longest name of a group or description of a collective
constexpr size_t message_limit = 1 << 16;  // longest text of a failure

[[noreturn]] void damaged(const std::string& what) {
  throw DistError(Fault::protocol, -1, "[wire] " + what + "; use one build on all ranks");
}

uint32_t load_u32(const char* from) {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value |= uint32_t(uint8_t(from[i])) << (8 * i);
  return value;
}

std::string_view head(std::string_view text, size_t limit) { return text.substr(0, limit); }

void write_counts(Writer& out, const std::vector<std::pair<int, uint64_t>>& counts) {
  out.u32(uint32_t(counts.size()));
  for (const auto& [rank, count] : counts) out.u32(uint32_t(rank)).u64(count);
}

std::vector<std::pair<int, uint64_t>> read_counts(BodyReader& in) {
  std::vector<std::pair<int, uint64_t>> counts(in.count(12));
  for (auto& [rank, count] : counts) {
    rank = int(in.u32());
    count = in.u64();
  }
  return counts;
}

}  // namespace

Writer& Writer::seconds(double value) { return u64(std::bit_cast<uint64_t>(value)); }

double BodyReader::seconds() {
  const double value = std::bit_cast<double>(u64());
  if (!(value >= 0 && std::isfinite(value))) damaged(str("expected seconds >= 0, got ", value));
  return value;
}

std::string_view BodyReader::take(size_t bytes) {
  if (bytes > rest_.size()) damaged(str("expected ", bytes, " more bytes in a message, got ", rest_.size()));
  const auto out = rest_.substr(0, bytes);
  rest_.remove_prefix(bytes);
  return out;
}

uint64_t BodyReader::integer(int bytes) {
  const auto from = take(size_t(bytes));
  uint64_t value = 0;
  for (int i = 0; i < bytes; ++i) value |= uint64_t(uint8_t(from[size_t(i)])) << (8 * i);
  return value;
}

std::string BodyReader::text(size_t limit) {
  const uint32_t size = u32();
  if (size > limit) damaged(str("expected a text of at most ", limit, " bytes, got one of ", size));
  return std::string(take(size));
}

uint32_t BodyReader::count(size_t bytes_each) {
  const uint32_t count = u32();
  if (count > rest_.size() / bytes_each)
    damaged(str("expected ", count, " entries in a message, got bytes for ", rest_.size() / bytes_each));
  return count;
}

void BodyReader::end() const {
  if (!rest_.empty()) damaged(str("expected the end of a message, got ", rest_.size(), " more bytes"));
}

std::string encode(FrameKind kind, uint32_t request, std::string_view body) {
  Writer out;
  out.body.reserve(wire_header + body.size());
  out.u32(wire_magic)
      .u32(uint32_t(body.size()))
      .u32(request)
      .u8(uint8_t(kind))
      .u8(0)
      .u8(0)
      .u8(0)
      .bytes(body.data(), body.size());
  return std::move(out.body);
}

std::optional<Frame> FrameReader::next() {
  const std::string_view rest = std::string_view(buffer_).substr(begin_);
  // Check the magic byte by byte as it arrives, to reject other protocols without waiting for a full header.
  for (size_t i = 0; i < std::min<size_t>(4, rest.size()); ++i)
    if (uint8_t(rest[i]) != uint8_t(wire_magic >> (8 * i))) damaged("expected the magic number of Lockstep's protocol");
  if (rest.size() < wire_header) return std::nullopt;
  const uint32_t length = load_u32(rest.data() + 4);
  const uint8_t kind = uint8_t(rest[12]);
  if (kind < 1 || kind > last_kind || rest[13] || rest[14] || rest[15])
    damaged(str("expected a kind of message from 1 to ", int(last_kind), ", got ", int(kind)));
  if (length > limit_) damaged(str("expected a message of at most ", limit_, " bytes, got one of ", length));
  if (rest.size() < wire_header + length) return std::nullopt;
  Frame frame{FrameKind(kind), load_u32(rest.data() + 8), std::string(rest.substr(wire_header, length))};
  begin_ += wire_header + length;
  if (begin_ == buffer_.size() || begin_ > (size_t(1) << 16)) {
    buffer_.erase(0, begin_);
    begin_ = 0;
  }
  return frame;
}

void write_activity(Writer& out, const Activity& a) {
  out.u64(a.step).u64(a.completed).text(head(a.group, name_limit)).text(head(a.collective, name_limit)).u8(a.waiting);
  out.u32(uint32_t(a.waits_for)).u64(a.messages).u8(a.is_send);
  write_counts(out, a.sent_to);
  write_counts(out, a.taken_from);
}

Activity read_activity(BodyReader& in) {
  Activity a;
  a.step = in.u64();
  a.completed = in.u64();
  a.group = in.text(name_limit);
  a.collective = in.text(name_limit);
  a.waiting = in.u8() != 0;
  a.waits_for = int(in.u32());
  a.messages = in.u64();
  a.is_send = in.u8() != 0;
  a.sent_to = read_counts(in);
  a.taken_from = read_counts(in);
  return a;
}

void write_failure(Writer& out, Fault fault, int rank, std::string_view message) {
  out.u8(uint8_t(fault)).u32(uint32_t(rank)).text(head(message, message_limit));
}

DistError read_failure(BodyReader& in) {
  const uint8_t fault = in.u8();
  if (fault > uint8_t(Fault::refused))
    damaged(str("expected a fault from 0 to ", int(Fault::refused), ", got ", int(fault)));
  const int rank = int(in.u32());
  return {Fault(fault), rank, printable(in.text(message_limit))};
}

}  // namespace lockstep::dist
