#pragma once
// Where this program's sources were when it was built. One small file is compiled with the path, so that a compiler
// cache serves clones in other folders.
namespace apps {

extern const char* const source_folder;
/// The commit of the sources, from `git describe`.
extern const char* const revision;

}  // namespace apps
