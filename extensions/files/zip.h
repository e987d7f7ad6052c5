#pragma once
// Internal to this folder: zip files as .npz uses them (PKWARE's APPNOTE 6.3.9). Members are stored or deflated, each
// with a CRC-32; a directory ends the file. Sizes have 64 bits if needed (zip64). We do not use libzip: it cannot write
// NumPy's bytes, and its errors name no place in the file.
#include <memory>
#include <string>
#include <vector>

#include "data/files.h"

struct z_stream_s;

namespace lockstep::data {

/// A member of a zip file.
struct ZipMember {
  std::string name;
  int method = 0;  ///< 0: stored, 8: deflated
  uint32_t crc = 0;
  int64_t bytes = 0, packed = 0;  ///< size of the data, and size in the file
  int64_t offset = 0, data = 0;   ///< offsets in the file of the member's header and of its data
};

/// Returns the members of a zip file that was read into memory as a whole, in directory order. Error if the directory
/// is missing or does not match the rest of the file, or if two members overlap. The Error begins with `origin`.
std::vector<ZipMember> zip_members(Bytes file, const std::string& origin);

/// Reads the data of one member sequentially.
class ZipReader {
 public:
  /// Errors begin with `where`.
  ZipReader(Bytes file, const ZipMember& member, const std::string& where);
  ~ZipReader();
  ZipReader(const ZipReader&) = delete;
  /// Reads the next `count` bytes of the member. Error if the member has fewer bytes left.
  void read(std::byte* out, int64_t count);
  /// Error unless all data have been read and the CRC is right.
  void finish();

 private:
  int64_t inflate_some(std::byte* out, int64_t room);

  std::string where_;
  Bytes rest_;
  int64_t bytes_, done_ = 0;
  uint32_t crc_, wanted_crc_;
  std::unique_ptr<z_stream_s> stream_;  // set for deflated members
  bool ended_ = false;
};

/// Appends members to a new file, byte for byte as Python's zipfile does (date in 1980, 64-bit sizes in member
/// headers).
class ZipWriter {
 public:
  /// Writes to `file`; `deflate` compresses the members.
  ZipWriter(NewFile& file, bool deflate) : file_(file), deflate_(deflate) {}
  /// Writes one member with the concatenated chunks as its data.
  void add(const std::string& name, const std::vector<Bytes>& chunks);
  /// Writes the directory. The file itself stays open.
  void finish();

 private:
  NewFile& file_;
  bool deflate_;
  std::vector<ZipMember> members_;
};

/// Returns the bytes of the directory that lists these members. `start`: offset of the directory in the file.
std::string zip_directory(const std::vector<ZipMember>& members, int64_t start);

}  // namespace lockstep::data
