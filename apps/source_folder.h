#pragma once
// The source folder and commit of this build. Only source_folder.cpp contains them, so all other object files are
// the same in every clone and can come from a compiler cache.
namespace apps {

/// The root of the repository that the programs were built from.
extern const char* const source_folder;
/// The commit, from `git describe`.
extern const char* const revision;

}  // namespace apps
