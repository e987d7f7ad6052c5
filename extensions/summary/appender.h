#pragma once
// Files that report about a run. A run continues without them when a disk is full.
#include <functional>
#include <string>
#include <string_view>

#include "base/output_file.h"

namespace lockstep {

/// A file to which bytes are appended. When add() returns, the operating system has them: they survive a kill, but not
/// necessarily a power cut.
class Appender {
 public:
  using Warn = std::function<void(const std::string&)>;  ///< prints a warning
  /// Appends to an existing file. Error, beginning with `prefix`, if it cannot be opened. `warn` is called once if
  /// writing fails; from then on add() discards its bytes.
  Appender(std::string path, Warn warn, std::string_view prefix);
  const std::string& path() const { return path_; }   ///< the file's path
  bool is_empty() const { return file_.is_empty(); }  ///< true if the file has no bytes
  /// Appends bytes.
  void add(std::string_view bytes);
  /// Waits until the disk has all bytes (fsync).
  void sync();

 private:
  void give_up();
  std::string path_;
  Warn warn_;
  OutputFile file_;
  bool over_ = false;
};

/// Creates a folder and its parents. Error, beginning with `prefix`, if that fails.
void make_log_folder(const std::string& folder, std::string_view prefix);

}  // namespace lockstep
