#pragma once
// The file operations that writing is made of, behind one small interface, so that a test can fail, shorten, kill or
// record the k-th. FileCalls are the system's calls as they are; Files goes on after EINTR and short writes, and throws
// Errors.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "data/files.h"

namespace lockstep::data {

/// One system call each: -1 and errno when it fails, and counts may be short. May be called from several threads.
class FileCalls {
 public:
  virtual ~FileCalls() = default;
  virtual int open(const char* path, int flags);
  virtual int64_t write(int fd, const std::byte* data, size_t bytes, int64_t offset);
  virtual int sync(int fd);
  virtual int close(int fd);
  virtual int rename(const char* from, const char* to);
  virtual int make_folder(const char* path);
  virtual int remove(const char* path);
  virtual int remove_folder(const char* path);
  virtual int lock(int fd);  ///< exclusive, until the file is closed everywhere; EWOULDBLOCK when somebody else has it
};
FileCalls& system_calls();

class Files {
 public:
  explicit Files(FileCalls& calls = system_calls()) : calls_(calls) {}

  /// A new file to write; Error when there is one of that name.
  int create(const std::string& path);
  /// Opens to read and write, made when missing; a symbolic link is not followed.
  int open(const std::string& path);
  void write(int fd, Bytes bytes, int64_t offset, const std::string& path);
  void sync(int fd, const std::string& path);
  /// The descriptor is gone afterwards, whatever this throws.
  void close(int fd, const std::string& path);
  void rename(const std::string& from, const std::string& to);
  /// Nothing when it is there.
  void make_folder(const std::string& path);
  void remove(const std::string& path);
  void remove_folder(const std::string& path);
  /// Makes the names in a folder last: files made, renamed or removed in it.
  void sync_folder(const std::string& path);
  /// False when somebody else has it.
  bool lock(int fd, const std::string& path);

  /// A whole new file, flushed.
  void write_file(const std::string& path, std::string_view text);
  /// Removes a folder and the files in it.
  void remove_tree(const std::string& path);
  /// The folder with all above it, each flushed into the one above.
  void make_folders(const std::string& path);

 private:
  FileCalls& calls_;
};

/// A file that is written from start to end. Closed, but neither flushed nor removed, when it goes away before
/// finish().
class NewFile {
 public:
  NewFile(Files& files, const std::string& path) : files_(files), path_(path), fd_(files.create(path)) {}
  ~NewFile();
  NewFile(const NewFile&) = delete;
  void append(Bytes bytes);
  int64_t size() const { return size_; }
  /// Flushes to the disk, and closes.
  void finish();

 private:
  Files& files_;
  std::string path_;
  int fd_ = -1;
  int64_t size_ = 0;
};

}  // namespace lockstep::data
