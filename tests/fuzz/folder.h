#pragma once
// A folder in memory whose files are parts of the input, for readers of folders.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace fuzz {

/// A temporary folder in /dev/shm, removed at the end of the process.
class Folder {
 public:
  Folder() : path_("/dev/shm/fuzz-XXXXXX") {
    if (!mkdtemp(path_.data())) std::abort();
    static std::vector<std::string> all;
    if (all.empty())
      std::atexit([] {
        for (const std::string& path : all) std::filesystem::remove_all(path);
      });
    all.push_back(path_);
  }
  /// A folder that `fill`, a function of its path, fills.
  template <class Fill> explicit Folder(const Fill& fill) : Folder() { fill(path_); }
  Folder(const Folder&) = delete;
  const std::string& path() const { return path_; }

  /// Writes the parts of `text`, which zero bytes separate, to the files `names`; an empty part removes its file.
  void write(std::string_view text, std::initializer_list<const char*> names) const {
    for (const char* name : names) {
      const std::string_view part = text.substr(0, text.find('\0'));
      text.remove_prefix(std::min(text.size(), part.size() + 1));
      const std::string file = path_ + "/" + name;
      unlink(file.c_str());
      if (part.empty()) continue;
      const int fd = open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
      if (fd < 0 || ::write(fd, part.data(), part.size()) != ssize_t(part.size())) std::abort();
      close(fd);
    }
  }

 private:
  std::string path_;
};

}  // namespace fuzz
