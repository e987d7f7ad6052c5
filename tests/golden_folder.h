#pragma once
// Where tests/golden is. One small file is compiled with the path, so that a compiler cache serves clones in other
// folders.

/// The absolute path of the sources' tests/golden.
extern const char* const golden_folder;
