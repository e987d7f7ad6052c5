#pragma once
// For the tests of data/: golden files, temporary folders, and the message of an Error.
#include <doctest/doctest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tensor/check.h"

/// tests/golden/NAME: by the define of the build, else beside this file.
inline std::string golden(const std::string& name) {
#ifdef LOCKSTEP_SOURCE_DIR
  return std::string(LOCKSTEP_SOURCE_DIR) + "/tests/golden/" + name;
#else
  return (std::filesystem::path(LOCKSTEP_GOLDEN) / name).string();
#endif
}

struct TempDir {
  std::filesystem::path path;
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "lockstep-XXXXXX").string();
    path = ::mkdtemp(name.data());
  }
  ~TempDir() { std::filesystem::remove_all(path); }
  std::string operator/(const std::string& name) const { return (path / name).string(); }
  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(path / name, std::ios::binary) << content;
    return *this / name;
  }
  int files() const { return int(std::distance(std::filesystem::directory_iterator(path), {})); }
};

/// The message of the Error that fn throws; "" when it throws none.
template <class Fn>
std::string error_of(Fn&& fn) {
  try {
    fn();
  } catch (const lockstep::Error& error) {
    return error.what();
  }
  return "";
}

#define CHECK_ERROR(expression, text) CHECK_MESSAGE(error_of([&] { (void)(expression); }).find(text) != std::string::npos, error_of([&] { (void)(expression); }))
