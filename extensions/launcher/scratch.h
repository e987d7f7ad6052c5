#pragma once
// A temporary folder that is deleted together with its object.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"

namespace lockstep::dist {

/// $TMPDIR, or /tmp. Error naming it when it is not a folder.
inline std::string temporary_folder() {
  const char* given = std::getenv("TMPDIR");
  const std::string folder = given && *given ? given : "/tmp";
  std::error_code error;
  LOCKSTEP_CHECK(std::filesystem::is_directory(folder, error), given && *given ? "TMPDIR=" : "", folder,
                 ": the folder for temporary files does not exist; set TMPDIR to one that exists");
  return folder;
}

/// A new folder "lockstep-XXXXXX" in temporary_folder().
class ScratchFolder {
 public:
  ScratchFolder() : path_(temporary_folder() + "/lockstep-XXXXXX") {
    LOCKSTEP_CHECK(::mkdtemp(path_.data()), "cannot make a folder ", path_, ": ", std::strerror(errno),
                   "; set TMPDIR to a folder with space that you may write to");
  }
  ~ScratchFolder() {
    std::error_code ignored;
    if (!kept_) std::filesystem::remove_all(path_, ignored);
    else if (counted_) keep_last_ten();
  }
  ScratchFolder(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }  ///< path of the folder
  bool is_kept() const { return kept_; }             ///< true after keep()

  /// Makes the destructor keep the folder. `counted`: it also deletes all kept folders of the user but the ten newest.
  void keep(bool counted) { kept_ = true, counted_ |= counted; }

 private:
  void keep_last_ten() const {
    namespace fs = std::filesystem;
    std::ofstream(path_ + "/ended");
    std::vector<std::pair<fs::file_time_type, fs::path>> all;
    std::error_code ignored;
    for (fs::directory_iterator it(fs::path(path_).parent_path(), ignored), end; !ignored && it != end;
         it.increment(ignored)) {
      struct stat info;
      const fs::path mark = it->path() / "ended";
      if (it->path().filename().string().rfind("lockstep-", 0) != 0 || lstat(mark.c_str(), &info) != 0 ||
          info.st_uid != geteuid())
        continue;
      all.emplace_back(fs::last_write_time(mark, ignored), it->path());
    }
    std::sort(all.begin(), all.end());
    for (size_t i = 0; i + 10 < all.size(); ++i) fs::remove_all(all[i].second, ignored);
  }

  std::string path_;
  bool kept_ = false, counted_ = false;
};

}  // namespace lockstep::dist
