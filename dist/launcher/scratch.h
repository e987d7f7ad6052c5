#pragma once
// A folder for files between processes, removed with its object.
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

#include "tensor/check.h"

namespace lockstep::dist {

class Scratch {
 public:
  Scratch() : path_((std::filesystem::temp_directory_path() / "lockstep-XXXXXX").string()) {
    LOCKSTEP_CHECK(::mkdtemp(path_.data()), "cannot make a folder ", path_, ": ", std::strerror(errno), "; set TMPDIR to where there is space");
  }
  ~Scratch() {
    std::error_code ignored;
    if (!keep) std::filesystem::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  const std::string& path() const { return path_; }

  bool keep = false;  // there is something to read in it

 private:
  std::string path_;
};

}  // namespace lockstep::dist
