#pragma once
// Files in folders that others may write to: never through a symbolic link, and never waiting for who is at the other
// end of a pipe. What stands in /dev, /dev/fd or below /proc (/dev/stdout, /dev/null) is the system's, and opened as it
// is.
#include <string>
#include <string_view>

namespace lockstep {

/// A descriptor to write with; the file is made when missing. More flags: O_TRUNC, O_APPEND. Error for links and for
/// what is no regular file; `prefix` opens it.
int open_output(const std::string& path, int flags, std::string_view prefix = "");

/// The first `most` bytes of a regular file, or all; Error when it cannot be read.
std::string read_start(const std::string& path, size_t most);

/// A file that grows. What add() was given is with the system when it returns.
class OutputFile {
 public:
  OutputFile() = default;
  /// Goes on at the end of what is there, or begins anew. Error as open_output().
  OutputFile(const std::string& path, bool anew, std::string_view prefix = "");
  OutputFile(OutputFile&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  OutputFile& operator=(OutputFile&& other) noexcept;
  ~OutputFile();

  bool is_open() const { return fd_ >= 0; }
  bool is_empty() const;
  /// False, with errno, when not all of it could be written.
  bool add(std::string_view bytes);

 private:
  int fd_ = -1;
};

}  // namespace lockstep
