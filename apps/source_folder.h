#pragma once
// The folder and the commit that the programs were built from. Only source_folder.cpp contains them, so that a compiler
// cache also serves clones in other folders.
namespace apps {

extern const char* const source_folder;
/// The commit of the sources, from `git describe`.
extern const char* const revision;

}  // namespace apps
