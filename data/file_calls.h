#pragma once
// The file operations needed for writing, behind a small interface, so that a test can make the k-th call fail, write
// less, kill the process or be recorded. FileCalls makes the system calls; Files retries after EINTR and short writes,
// and throws Errors.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "data/files.h"

namespace lockstep::data {

/// One system call per function: returns -1 and sets errno on failure, and may write less than asked. Thread-safe.
class FileCalls {
 public:
  virtual ~FileCalls() = default;
  virtual int open(const char* path, int flags);                                       ///< adds O_CLOEXEC; mode 0666
  virtual int64_t write(int fd, const std::byte* data, size_t bytes, int64_t offset);  ///< pwrite
  virtual int sync(int fd);                                                            ///< fsync
  virtual int close(int fd);                                                           ///< close
  virtual int rename(const char* from, const char* to);                                ///< rename
  virtual int make_folder(const char* path);                                           ///< mkdir, mode 0777
  virtual int remove(const char* path);                                                ///< unlink
  virtual int remove_folder(const char* path);                                         ///< rmdir
  virtual int lock(int fd);  ///< flock, exclusive until every copy of fd is closed; EWOULDBLOCK if it is held elsewhere
};
/// The real system calls.
FileCalls& system_calls();

/// File operations that throw an Error, with the path, when a call fails.
class Files {
 public:
  /// `calls` must outlive this object.
  explicit Files(FileCalls& calls = system_calls()) : calls_(calls) {}

  /// Creates a file for writing. Error if it exists.
  int create(const std::string& path);
  /// Opens a file for reading and writing, and creates it if it is missing. Error for a symbolic link.
  int open(const std::string& path);
  /// Writes all bytes at `offset`.
  void write(int fd, Bytes bytes, int64_t offset, const std::string& path);
  /// Flushes a file to the disk (fsync).
  void sync(int fd, const std::string& path);
  /// Closes fd. The descriptor is closed even if close() throws.
  void close(int fd, const std::string& path);
  /// Renames a file; replaces `to` if it exists.
  void rename(const std::string& from, const std::string& to);
  /// Creates one folder. Does nothing if it exists.
  void make_folder(const std::string& path);
  /// Removes a file. Does nothing if it is missing.
  void remove(const std::string& path);
  /// Removes an empty folder. Does nothing if it is missing.
  void remove_folder(const std::string& path);
  /// Flushes a folder's entries to the disk: files that were created, renamed or removed in it.
  void sync_folder(const std::string& path);
  /// Takes the exclusive lock. False if someone else holds it.
  bool lock(int fd, const std::string& path);

  /// Creates a file with this content and flushes it.
  void write_file(const std::string& path, std::string_view text);
  /// Removes a folder with everything in it. Symbolic links are removed, not followed.
  void remove_tree(const std::string& path);
  /// Creates a folder and its missing parents. Each new entry is flushed to the disk.
  void make_folders(const std::string& path);

 private:
  FileCalls& calls_;
};

/// A file written sequentially. If it is destroyed before finish(), it is closed but neither flushed nor removed.
class NewFile {
 public:
  /// Creates the file. Error if it exists.
  NewFile(Files& files, const std::string& path) : files_(files), path_(path), fd_(files.create(path)) {}
  ~NewFile();
  NewFile(const NewFile&) = delete;
  /// Writes the bytes behind those written so far.
  void append(Bytes bytes);
  int64_t size() const { return size_; }  ///< bytes written so far
  /// Flushes the file to the disk and closes it.
  void finish();

 private:
  Files& files_;
  std::string path_;
  int fd_ = -1;
  int64_t size_ = 0;
};

}  // namespace lockstep::data
