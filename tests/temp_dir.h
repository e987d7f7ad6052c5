#pragma once
// A temporary folder that exists as long as its object.
#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

namespace testing {

/// A folder on a real disk, for tests of files; tests/run_all.py keeps other temporary files in memory.
inline std::filesystem::path disk() {
  const char* named = ::getenv("LOCKSTEP_TEST_DISK");
  return named ? std::filesystem::path(named) : std::filesystem::temp_directory_path();
}

/// A new folder below `in`; the destructor removes it with everything in it.
struct TempDir {
  std::filesystem::path path;
  explicit TempDir(const std::filesystem::path& in = std::filesystem::temp_directory_path()) {
    std::string name = (in / "lockstep-XXXXXX").string();
    if (!::mkdtemp(name.data()))
      throw std::filesystem::filesystem_error("mkdtemp", name, std::error_code(errno, std::generic_category()));
    path = name;
  }
  ~TempDir() { std::filesystem::remove_all(path); }
  TempDir(const TempDir&) = delete;

  /// The folder's path.
  std::string str() const { return path.string(); }
  /// The path of an entry of the folder.
  std::string operator/(const std::string& name) const { return (path / name).string(); }
  /// Writes a file and returns its path.
  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(path / name, std::ios::binary) << content;
    return *this / name;
  }
  /// The content of a file.
  std::string read(const std::string& name) const {
    std::ifstream in(path / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  /// The sorted names of the entries of the folder, or of its subfolder `below`, separated by blanks.
  std::string list(const std::string& below = "") const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path / below))
      names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    std::string text;
    for (const std::string& name : names) text += (text.empty() ? "" : " ") + name;
    return text;
  }
  /// The number of entries of the folder.
  int files() const { return int(std::distance(std::filesystem::directory_iterator(path), {})); }
};

}  // namespace testing
