#pragma once
// The folder tests/golden. Only golden_folder.cpp contains its path, so that a compiler cache also works for clones in
// other folders.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

/// The absolute path of the sources' tests/golden, or the folder that LOCKSTEP_GOLDEN_DIR names, for programs that were
/// carried to another machine.
const char* golden_folder();

/// The content of a file in docs/images of the sources, for tests of the core and of extensions.
inline std::string docs_image(const std::string& name) {
  std::filesystem::path root = golden_folder();
  while (root.has_relative_path() && !std::filesystem::exists(root / "docs/images")) root = root.parent_path();
  std::ifstream in(root / "docs/images" / name, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
