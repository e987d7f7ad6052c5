#pragma once
// Files: read with a limit, map, and write so that the old or the new content is there at every instant.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace lockstep::data {

using Bytes = std::span<const std::byte>;
class FileCalls;
class NewFile;

/// Views the characters of a string as bytes.
inline Bytes as_bytes(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }

/// A whole file in memory. Pages are private: writing to them never reaches the file. The file should not change
/// meanwhile: what it loses reads as zeros, and check() tells.
class MappedFile {
 public:
  /// Error when the file is missing, unreadable, not a regular file or larger than `max_bytes`.
  static std::shared_ptr<MappedFile> open(const std::string& path, int64_t max_bytes = INT64_MAX);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;

  std::byte* data() const { return data_; }
  int64_t size() const { return size_; }
  Bytes bytes() const { return {data_, size_t(size_)}; }
  /// Error when the file has another size or time of change than when it was mapped, or some of it could not be read.
  void check() const;

 private:
  struct Range;
  friend void check_mapped_files();
  MappedFile() = default;
  std::string path_;
  std::byte* data_ = nullptr;
  int64_t size_ = 0, changed_at_ = 0;
  int fd_ = -1;
  Range* range_ = nullptr;
};
/// parse(bytes, path, options...) of a whole file, which has not changed meanwhile.
auto parse_file(const std::string& path, const auto& parse, const auto&... options) {
  const auto file = MappedFile::open(path);
  auto result = parse(file->bytes(), path, options...);
  file->check();
  return result;
}
/// check() of every mapped file: for whoever has just read from tensors that may lie in one.
void check_mapped_files();

/// The content of a file of at most `max_bytes`.
std::string read_file(const std::string& path, int64_t max_bytes);

/// Removes the temporary files that ended processes of this machine left for `path`.
void remove_leftovers(const std::string& path);

/// Writes the chunks, one after the other, as the new content of `path`: temporary file beside it, fsync, rename, fsync
/// of the folder. After an Error the old file is as it was and the temporary file is gone. Temporary files that killed
/// processes of this machine left for the same path are removed first.
void write_atomically(const std::string& path, const std::vector<Bytes>& chunks);
void write_atomically(const std::string& path, std::string_view text);
/// The same for content that `write` appends piece by piece.
void write_atomically(const std::string& path, const std::function<void(NewFile& file)>& write);

/// For tests: what write_atomically() calls from now on; nullptr: the system.
void use_file_calls(FileCalls* calls);

}  // namespace lockstep::data
