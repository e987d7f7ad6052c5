#pragma once
// The folder tests/golden. Only golden_folder.cpp contains its path, so that a compiler cache also works for clones in
// other folders.

/// The absolute path of the sources' tests/golden.
extern const char* const golden_folder;
