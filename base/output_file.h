#pragma once
// Files in folders that other users may write to: never opened through a symbolic link, and never blocking on a pipe.
// Paths in /dev and /dev/fd and below /proc (/dev/stdout, /dev/null) belong to the system and are opened as they are.
#include <string>
#include <string_view>

namespace lockstep {

/// Opens a file for writing and returns the descriptor; creates the file if missing. flags: O_TRUNC or O_APPEND. Error
/// for symbolic links and for anything but a regular file. The Error's text begins with `prefix`.
int open_output(const std::string& path, int flags, std::string_view prefix = "");

/// Returns the first `limit` bytes of a regular file, or all bytes of a shorter file. Error when it cannot be read.
std::string read_start(const std::string& path, size_t limit);

/// A file that grows. Unbuffered: when add() returns, the operating system has received the bytes.
class OutputFile {
 public:
  OutputFile() = default;
  /// Appends to an existing file, or truncates it if `anew`. Throws the Errors of open_output().
  OutputFile(const std::string& path, bool anew, std::string_view prefix = "");
  OutputFile(OutputFile&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  OutputFile& operator=(OutputFile&& other) noexcept;
  ~OutputFile();

  /// False if default-constructed or moved from.
  bool is_open() const { return fd_ >= 0; }
  /// True if the file has no bytes.
  bool is_empty() const;
  /// False, with errno, if not all bytes could be written.
  bool add(std::string_view bytes);

 private:
  int fd_ = -1;
};

}  // namespace lockstep
