#pragma once
// Helpers for the tests of data/: golden files, temporary folders, error messages.
#include <doctest/doctest.h>

#include <filesystem>
#include <string>

#include "base/check.h"
#include "tests/golden_folder.h"
#include "tests/messages.h"
#include "tests/temp_dir.h"

/// The path of tests/golden/NAME; the folder is a define of the build.
inline std::string golden(const std::string& name) { return (std::filesystem::path(golden_folder()) / name).string(); }

using ::testing::TempDir;

/// The message of the Error that fn throws; "" if it throws none.
template <class Fn> std::string error_of(Fn&& fn) {
  try {
    fn();
  } catch (const lockstep::Error& error) { return error.what(); }
  return "";
}
