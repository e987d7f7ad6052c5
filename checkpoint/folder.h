#pragma once
// The names in a folder of checkpoints:
//
//   lock                    the job that saves here (lock.h)
//   latest                  name of the newest checkpoint; updated last
//   step-100/               a checkpoint: manifest.json and the files that it lists
//   step-200~2/             the second checkpoint with the tag step-200; committing it removes the first
//   step-300.tmp-ID/        being written, or left by a save that was killed; the next save removes it
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "data/file_calls.h"

namespace lockstep::checkpoints {

/// Error unless `tag` is a valid tag: letters, digits, '.', '_' and '-'.
void check_tag(const std::string& tag);

/// The name of a checkpoint's folder, parsed.
struct Found {
  std::string folder;  ///< name of the folder
  std::string tag;
  int64_t number = 1;  ///< 2 in "step-200~2": counts the checkpoints saved under this tag
};
/// Parses a folder's name; nullopt when it is not the name of a checkpoint.
std::optional<Found> parse_folder(const std::string& name);
/// The checkpoints in a folder: its subfolders with a manifest, which is not read. Sorted by tag and number.
std::vector<Found> list_checkpoints(const std::string& dir);
/// The name of the folder for the next checkpoint with this tag.
std::string next_folder(const std::string& dir, const std::string& tag);
bool is_temporary(const std::string& name);                                  ///< true for step-300.tmp-ID
std::string temporary_name(const std::string& name, const std::string& id);  ///< step-300.tmp-ID

/// The content of `latest`, or "" if there is none. Error when it cannot be the name of a checkpoint.
std::string read_latest(const std::string& dir);
/// The text of a checkpoint's manifest.
std::string read_manifest_text(const std::string& folder);
Manifest read_manifest(const std::string& folder);  ///< reads and parses a checkpoint's manifest
/// Error that names the file if it is missing or has a different size.
void check_size(const std::string& path, const FileSum& sum);

/// Finds the folder of a checkpoint: `dir` itself if it holds a manifest. Otherwise, if `tag` is given, the last
/// checkpoint in `dir` with this tag (Error if there is none); if `tag` is empty, the checkpoint that `latest` names.
/// If `latest` is missing, damaged or dangling, takes the newest complete checkpoint and says so in `warning`; Error if
/// no checkpoint is complete. Without a tag, returns "" if there are no checkpoints. `but`: names of folders to skip.
std::string find_checkpoint(const std::string& dir, const std::string& tag, std::string& warning,
                            const std::vector<std::string>& but = {});

}  // namespace lockstep::checkpoints
