#pragma once
// Files: mapping, reading with a size limit, and atomic writes: a crash leaves the old or the new content.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace lockstep::data {

/// A view of bytes.
using Bytes = std::span<const std::byte>;
class FileCalls;
class NewFile;

/// The characters of a string as bytes.
inline Bytes as_bytes(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }

/// A whole file mapped into memory. Pages are private: writes to them never reach the file. The file should not change
/// while it is mapped: if the file is truncated, the missing part reads as zeros, and check() raises an Error.
class MappedFile {
 public:
  /// Error if the file is missing, unreadable, not a regular file, or larger than `max_bytes`.
  static std::shared_ptr<MappedFile> open(const std::string& path, int64_t max_bytes = INT64_MAX);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;

  std::byte* data() const { return data_; }               ///< writable; nullptr if the file is empty
  int64_t size() const { return size_; }                  ///< size in bytes
  Bytes bytes() const { return {data_, size_t(size_)}; }  ///< the whole file
  /// Error if the file's size or modification time changed since it was mapped, or part of it could not be read.
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
/// Returns parse(bytes, path, options...) for the bytes of a file. Error if the file changed while it was parsed.
auto parse_file(const std::string& path, const auto& parse, const auto&... options) {
  const auto file = MappedFile::open(path);
  auto result = parse(file->bytes(), path, options...);
  file->check();
  return result;
}
/// Calls check() for every mapped file. Needed after reading from tensors that may lie in a mapped file.
void check_mapped_files();

/// The content of a file. Error if it is larger than `max_bytes` or shrinks while it is read.
std::string read_file(const std::string& path, int64_t max_bytes);

/// Removes temporary files beside `path`: those that processes of this machine left when they ended in the middle of
/// write_atomically().
void remove_leftovers(const std::string& path);

/// Replaces the content of `path` by the chunks, in order: writes a temporary file beside it, fsyncs it, renames it,
/// and fsyncs the folder. If writing fails, the Error leaves the old file as it was and the temporary file is removed.
/// Calls remove_leftovers() first.
void write_atomically(const std::string& path, const std::vector<Bytes>& chunks);
void write_atomically(const std::string& path, std::string_view text);
/// write_atomically() of content that `write` appends piece by piece.
void write_atomically(const std::string& path, const std::function<void(NewFile& file)>& write);

/// For tests: replaces the system calls of write_atomically(). nullptr restores them.
void use_file_calls(FileCalls* calls);

}  // namespace lockstep::data
