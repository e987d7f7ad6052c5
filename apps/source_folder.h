#pragma once
// The source folder and commit of this build. Only source_folder.cpp contains them, so that a compiler cache also
// serves clones in other folders.
namespace apps {

/// The root of the repository that the programs were built from.
extern const char* const source_folder;
/// The commit, from `git describe`.
extern const char* const revision;

}  // namespace apps
