// Reads and writes zip files. See zip.h.
#include "extensions/files/zip.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "data/excerpt.h"
#include "data/file_calls.h"
#include "data/little_endian.h"

namespace lockstep::data {
namespace {

// Signatures: "PK" and two more bytes.
constexpr uint64_t member_mark = 0x04034b50, entry_mark = 0x02014b50, end_mark = 0x06054b50;
constexpr uint64_t end64_mark = 0x06064b50, locator_mark = 0x07064b50;
constexpr size_t member_size = 30, entry_size = 46, end_size = 22, end64_size = 56, locator_size = 20;
constexpr uint64_t wide_mark = 0xffffffff;  // a 32-bit field with this value: the size is in a 64-bit field
constexpr int needs = 45;                   // format version 4.5, which introduced 64-bit sizes

/// General purpose flags. Bit 11: the name is UTF-8.
uint64_t zip_flags(const std::string& name) {
  return std::any_of(name.begin(), name.end(), [](char c) { return uint8_t(c) >= 0x80; }) ? 0x800 : 0;
}

struct Directory {
  uint64_t members, offset, size, end;
};

Directory find_directory(Bytes file, const std::string& origin) {
  const auto is_end = [&](size_t at) {
    return little(file, at, 4) == end_mark && at + end_size + little(file, at + 20, 2) == file.size();
  };
  size_t end = file.size() < end_size ? file.size() : file.size() - end_size;
  const size_t first = end > 0xffff ? end - 0xffff : 0;  // an archive comment may follow the end record
  while (end + end_size <= file.size() && end > first && !is_end(end)) --end;
  LOCKSTEP_CHECK(end + end_size <= file.size() && is_end(end), origin,
                 ": expected a zip file, with a directory at its end, found none in ", file.size(),
                 " bytes (is the file truncated?); copy or download it again");
  Directory found{little(file, end + 10, 2), little(file, end + 16, 4), little(file, end + 12, 4), end};
  uint64_t disks = little(file, end + 4, 2) | little(file, end + 6, 2);
  if (end >= locator_size && little(file, end - locator_size, 4) == locator_mark) {
    const uint64_t at = little(file, end - locator_size + 8, 8);
    LOCKSTEP_CHECK(
        at <= end - locator_size && end - locator_size - at >= end64_size && little(file, at, 4) == end64_mark, origin,
        ": expected the 64-bit end of a directory at byte ", at, ", found none; write the file again");
    found = {little(file, at + 32, 8), little(file, at + 48, 8), little(file, at + 40, 8), at};
    disks = little(file, at + 16, 4) | little(file, at + 20, 4);
  }
  LOCKSTEP_CHECK(disks == 0, origin, ": expected a zip file in one part, got a part of several; join the parts");
  LOCKSTEP_CHECK(found.offset <= found.end && found.size == found.end - found.offset, origin,
                 ": expected a directory that ends at byte ", found.end, ", got ", found.size, " bytes at ",
                 found.offset, "; write the file again");
  return found;
}

/// A value above 32 bits is stored as 0xffffffff. Replaces each of these by the next value of the zip64 field.
void take_64_bits(Bytes extra, const std::vector<uint64_t*>& values, const std::string& where) {
  const auto missing = size_t(std::count_if(values.begin(), values.end(), [](auto* v) { return *v == wide_mark; }));
  if (missing == 0) return;
  for (size_t at = 0; at + 4 <= extra.size();) {
    const size_t size = little(extra, at + 2, 2);
    if (size > extra.size() - at - 4) break;
    if (little(extra, at, 2) == 1 && size >= 8 * missing) {
      at += 4;
      for (uint64_t* value : values)
        if (*value == wide_mark) *value = little(extra, at, 8), at += 8;
      return;
    }
    at += 4 + size;
  }
  fail(str(where, ": expected ", missing, " 64-bit sizes, found none; write the file again"));
}

/// Checks the member's local header and sets the offset of its data.
void find_data(Bytes file, ZipMember& member, uint64_t end, const std::string& where) {
  const uint64_t at = uint64_t(member.offset);
  LOCKSTEP_CHECK(at <= end && end - at >= member_size && little(file, at, 4) == member_mark, where,
                 ": expected its header at byte ", at, ", found none; write the file again");
  const uint64_t name = little(file, at + 26, 2), before = member_size + name + little(file, at + 28, 2);
  LOCKSTEP_CHECK(before <= end - at && name == member.name.size() &&
                     std::memcmp(&file[at + member_size], member.name.data(), name) == 0,
                 where, ": expected a header of that name at byte ", at, ", got another; write the file again");
  LOCKSTEP_CHECK(uint64_t(member.packed) <= end - at - before, where, ": expected ", member.packed, " bytes at ",
                 at + before, ", where the directory leaves ", end - at - before, "; write the file again");
  member.data = int64_t(at + before);
}

}  // namespace

std::vector<ZipMember> zip_members(Bytes file, const std::string& origin) {
  const Directory directory = find_directory(file, origin);
  std::vector<ZipMember> members;
  uint64_t at = directory.offset;
  while (at < directory.end) {
    const std::string nth = str(origin, ": entry ", members.size(), " of the directory");
    LOCKSTEP_CHECK(directory.end - at >= entry_size && little(file, at, 4) == entry_mark, nth,
                   ": expected an entry at byte ", at, ", found none; write the file again");
    const uint64_t name = little(file, at + 28, 2), extra = little(file, at + 30, 2),
                   size = entry_size + name + extra + little(file, at + 32, 2);
    LOCKSTEP_CHECK(size <= directory.end - at, nth, ": expected at most ", directory.end - at, " bytes, got ", size,
                   "; write the file again");
    ZipMember& member = members.emplace_back();
    if (name) member.name.assign(reinterpret_cast<const char*>(&file[at + entry_size]), name);
    const std::string where = str(origin, ": member \"", excerpt(member.name), "\"");
    member.method = int(little(file, at + 10, 2));
    member.crc = uint32_t(little(file, at + 16, 4));
    LOCKSTEP_CHECK((little(file, at + 8, 2) & 1) == 0, where, ": expected plain data, got encrypted data; decrypt it");
    LOCKSTEP_CHECK(member.method == 0 || member.method == 8, where,
                   ": expected method 0 (stored) or 8 (deflated), got ", member.method, "; write it by one of these");
    uint64_t packed = little(file, at + 20, 4), bytes = little(file, at + 24, 4), offset = little(file, at + 42, 4);
    take_64_bits(file.subspan(at + entry_size + name, extra), {&bytes, &packed, &offset}, where);
    LOCKSTEP_CHECK(std::max({packed, bytes, offset}) <= uint64_t(INT64_MAX), where, ": expected sizes of 63 bits, got ",
                   std::max({packed, bytes, offset}), "; write the file again");
    member.packed = int64_t(packed), member.bytes = int64_t(bytes), member.offset = int64_t(offset);
    find_data(file, member, directory.offset, where);
    // Deflate makes at most 1032 bytes from one, so a small file cannot demand a huge allocation.
    LOCKSTEP_CHECK(member.method ? member.bytes / 1032 <= member.packed + 16 : member.bytes == member.packed, where,
                   ": expected sizes that match, got ", packed, " bytes in the file for ", bytes, "; write it again");
    at += size;
  }
  LOCKSTEP_CHECK(members.size() == directory.members, origin, ": expected ", directory.members,
                 " members as the directory says, got ", members.size(), "; write the file again");
  std::vector<const ZipMember*> order;
  for (const ZipMember& member : members) order.push_back(&member);
  std::sort(order.begin(), order.end(), [](auto* a, auto* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < order.size(); ++i)
    LOCKSTEP_CHECK(order[i - 1]->data + order[i - 1]->packed <= order[i]->offset, origin, ": members \"",
                   excerpt(order[i - 1]->name), "\" and \"", excerpt(order[i]->name),
                   "\" overlap; write the file again");
  return members;
}

ZipReader::ZipReader(Bytes file, const ZipMember& member, const std::string& where)
    : where_(where),
      rest_(file.subspan(size_t(member.data), size_t(member.packed))),
      bytes_(member.bytes),
      crc_(uint32_t(crc32_z(0, nullptr, 0))),
      wanted_crc_(member.crc) {
  if (member.method == 0) return;
  auto stream = std::make_unique<z_stream>();
  LOCKSTEP_CHECK(inflateInit2(stream.get(), -15) == Z_OK, where_, ": zlib cannot start; free memory");
  stream_ = std::move(stream);
}

ZipReader::~ZipReader() {
  if (stream_) inflateEnd(stream_.get());
}

int64_t ZipReader::inflate_some(std::byte* out, int64_t room) {
  const uInt in = uInt(std::min<size_t>(rest_.size(), 1u << 30)), limit = uInt(std::min<int64_t>(room, 1 << 30));
  stream_->next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(rest_.data()));
  stream_->avail_in = in;
  stream_->next_out = reinterpret_cast<Bytef*>(out);
  stream_->avail_out = limit;
  const int status = inflate(stream_.get(), Z_NO_FLUSH);
  rest_ = rest_.subspan(in - stream_->avail_in);
  ended_ = status == Z_STREAM_END;
  LOCKSTEP_CHECK(ended_ || status == Z_OK || status == Z_BUF_ERROR, where_,
                 ": deflated data are corrupt: ", stream_->msg ? stream_->msg : "unknown reason",
                 "; write the file again");
  return limit - stream_->avail_out;
}

void ZipReader::read(std::byte* out, int64_t count) {
  if (!stream_ && count > 0) {
    LOCKSTEP_CHECK(count <= int64_t(rest_.size()), where_, ": expected ", done_ + count, " bytes, got ", bytes_,
                   "; write the file again");
    std::memcpy(out, rest_.data(), size_t(count));
    rest_ = rest_.subspan(size_t(count));
  }
  for (int64_t done = 0; stream_ && done < count;) {
    const size_t before = rest_.size();
    const int64_t some = ended_ ? 0 : inflate_some(out + done, count - done);
    done += some;
    LOCKSTEP_CHECK(some > 0 || rest_.size() < before, where_, ": expected ", bytes_, " bytes, deflated, got ",
                   done_ + done, "; write the file again");
  }
  if (count > 0) crc_ = uint32_t(crc32_z(crc_, reinterpret_cast<const Bytef*>(out), size_t(count)));
  done_ += count;
}

void ZipReader::finish() {
  std::byte more;
  int64_t rest = bytes_ - done_;
  while (stream_ && !ended_ && rest == 0) {
    const size_t before = rest_.size();
    rest = inflate_some(&more, 1);
    if (rest == 0 && !ended_ && rest_.size() == before) break;
  }
  LOCKSTEP_CHECK(rest == 0 && rest_.empty() && (!stream_ || ended_), where_, ": expected ", done_,
                 " bytes and the end of its data there, got ", rest || !rest_.empty() ? "more" : "no end",
                 "; write the file again");
  LOCKSTEP_CHECK(crc_ == wanted_crc_, where_, ": expected the CRC-32 ", wanted_crc_, " stored in the file, got ", crc_,
                 " of its data (they are damaged); write the file again");
}

void ZipWriter::add(const std::string& name, const std::vector<Bytes>& chunks) {
  ZipMember member{.name = name, .method = deflate_ ? 8 : 0, .offset = file_.size()};
  LOCKSTEP_CHECK(name.size() <= 0xffff, "[zip] expected names of at most 65535 bytes, got ", name.size());
  for (const Bytes chunk : chunks) {
    member.bytes += int64_t(chunk.size());
    if (!chunk.empty())
      member.crc = uint32_t(crc32_z(member.crc, reinterpret_cast<const Bytef*>(chunk.data()), chunk.size()));
  }
  std::string packed;
  if (deflate_) {
    z_stream stream{};
    LOCKSTEP_CHECK(deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, -15, 8, Z_DEFAULT_STRATEGY) == Z_OK,
                   "[zip] zlib cannot start; free memory");
    const auto feed = [&](Bytes in, int flush) {
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(in.data()));
      stream.avail_in = uInt(in.size());
      char out[1 << 14];
      do {
        stream.next_out = reinterpret_cast<Bytef*>(out);
        stream.avail_out = sizeof out;
        deflate(&stream, flush);
        packed.append(out, sizeof out - stream.avail_out);
      } while (stream.avail_out == 0);
    };
    for (Bytes chunk : chunks)
      for (; !chunk.empty(); chunk = chunk.subspan(std::min<size_t>(chunk.size(), 1 << 30)))
        feed(chunk.first(std::min<size_t>(chunk.size(), 1 << 30)), Z_NO_FLUSH);
    feed({}, Z_FINISH);
    deflateEnd(&stream);
  }
  member.packed = deflate_ ? int64_t(packed.size()) : member.bytes;

  std::string header;
  const auto put = [&](uint64_t value, int count) { append_little(header, value, count); };
  put(member_mark, 4), put(needs, 2), put(zip_flags(name), 2), put(uint64_t(member.method), 2);
  put(0, 2), put(1 << 5 | 1, 2);  // date and time: midnight, January 1, 1980
  put(member.crc, 4), put(wide_mark, 4), put(wide_mark, 4), put(name.size(), 2), put(20, 2);
  header += name;
  put(1, 2), put(16, 2), put(uint64_t(member.bytes), 8), put(uint64_t(member.packed), 8);
  file_.append(as_bytes(header));
  if (deflate_) file_.append(as_bytes(packed));
  else
    for (const Bytes chunk : chunks) file_.append(chunk);
  members_.push_back(std::move(member));
}

void ZipWriter::finish() { file_.append(as_bytes(zip_directory(members_, file_.size()))); }

std::string zip_directory(const std::vector<ZipMember>& members, int64_t start) {
  std::string out;
  const auto put = [&](uint64_t value, int count) { append_little(out, value, count); };
  for (const ZipMember& member : members) {
    const auto bytes = uint64_t(member.bytes), packed = uint64_t(member.packed), offset = uint64_t(member.offset);
    std::string wide;
    if (std::max(bytes, packed) >= wide_mark) append_little(wide, bytes, 8), append_little(wide, packed, 8);
    const bool wide_sizes = !wide.empty();
    if (offset >= wide_mark) append_little(wide, offset, 8);
    put(entry_mark, 4), put(3 << 8 | needs, 2), put(needs, 2);  // made by: Unix
    put(zip_flags(member.name), 2), put(uint64_t(member.method), 2), put(0, 2), put(1 << 5 | 1, 2), put(member.crc, 4);
    put(wide_sizes ? wide_mark : packed, 4), put(wide_sizes ? wide_mark : bytes, 4), put(member.name.size(), 2);
    put(wide.empty() ? 0 : wide.size() + 4, 2), put(0, 2), put(0, 2), put(0, 2);  // no comment; disk 0; binary
    put(uint64_t(0600) << 16, 4), put(std::min(offset, wide_mark), 4);
    out += member.name;
    if (!wide.empty()) put(1, 2), put(wide.size(), 2), out += wide;
  }
  const uint64_t count = members.size(), size = out.size(), offset = uint64_t(start);
  if (count >= 0xffff || size >= wide_mark || offset >= wide_mark) {
    put(end64_mark, 4), put(end64_size - 12, 8), put(needs, 2), put(needs, 2), put(0, 4), put(0, 4);
    put(count, 8), put(count, 8), put(size, 8), put(offset, 8);
    put(locator_mark, 4), put(0, 4), put(offset + size, 8), put(1, 4);
  }
  put(end_mark, 4), put(0, 2), put(0, 2), put(std::min<uint64_t>(count, 0xffff), 2);
  put(std::min<uint64_t>(count, 0xffff), 2), put(std::min(size, wide_mark), 4), put(std::min(offset, wide_mark), 4),
      put(0, 2);
  return out;
}

}  // namespace lockstep::data
