#pragma once
// For the tests of data/: golden files, temporary folders, and the message of an Error.
#include <doctest/doctest.h>

#include <filesystem>
#include <string>

#include "tensor/check.h"
#include "tests/golden_folder.h"
#include "tests/temp_dir.h"

/// tests/golden/NAME: by the define of the build, else beside this file.
inline std::string golden(const std::string& name) { return (std::filesystem::path(golden_folder) / name).string(); }

using testing::TempDir;

/// The message of the Error that fn throws; "" when it throws none.
template <class Fn> std::string error_of(Fn&& fn) {
  try {
    fn();
  } catch (const lockstep::Error& error) { return error.what(); }
  return "";
}

#define CHECK_ERROR(expression, text)                                                  \
  CHECK_MESSAGE(error_of([&] { (void)(expression); }).find(text) != std::string::npos, \
                error_of([&] { (void)(expression); }))
