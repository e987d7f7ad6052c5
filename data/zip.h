#pragma once
// zip as .npz files use it (PKWARE's APPNOTE 6.3.9): members, stored or deflated, each with a CRC-32, and a directory
// at the end of the file, in 64 bits where sizes ask for it. Internal to data/.
#include <memory>
#include <string>
#include <vector>

#include "data/files.h"

struct z_stream_s;

namespace lockstep::data {

struct ZipMember {
  std::string name;
  int method = 0;  ///< 0: stored, 8: deflated
  uint32_t crc = 0;
  int64_t bytes = 0, packed = 0;  ///< of its data, and of what the file holds for them
  int64_t offset = 0, data = 0;   ///< in the file, of the member and of its data
};

/// The members of a whole file in memory, in the order of its directory. Error, opened by `origin`, unless the
/// directory is there, says what the file is, and each member is a part of the file that no other shares.
std::vector<ZipMember> zip_members(Bytes file, const std::string& origin);

/// The data of one member, from front to back.
class ZipReader {
 public:
  ZipReader(Bytes file, const ZipMember& member, const std::string& origin);
  ~ZipReader();
  ZipReader(const ZipReader&) = delete;
  /// Error when the data end before.
  void read(std::byte* out, int64_t count);
  /// Error unless this was all, and the CRC is right.
  void finish();

 private:
  int64_t inflate_some(std::byte* out, int64_t room);

  std::string origin_;
  Bytes rest_;
  int64_t bytes_, done_ = 0;
  uint32_t crc_, wanted_crc_;
  std::unique_ptr<z_stream_s> stream_;  // of deflated members
  bool ended_ = false;
};

/// Appends members to a new file, in the bytes of Python's zipfile (a date in 1980, sizes in 64 bits).
class ZipWriter {
 public:
  ZipWriter(NewFile& file, bool deflate) : file_(file), deflate_(deflate) {}
  void add(const std::string& name, const std::vector<Bytes>& chunks);
  void finish();

 private:
  NewFile& file_;
  bool deflate_;
  std::vector<ZipMember> members_;
};

/// The directory of these members, for a file that has `start` bytes before it.
std::string zip_directory(const std::vector<ZipMember>& members, int64_t start);

}  // namespace lockstep::data
