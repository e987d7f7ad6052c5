#pragma once
// The folder tests/golden. Only golden_folder.cpp contains its path, so that a compiler cache also works for clones in
// other folders.

/// The absolute path of the sources' tests/golden, or the folder that LOCKSTEP_GOLDEN_DIR names, for programs that were
/// carried to another machine.
const char* golden_folder();
