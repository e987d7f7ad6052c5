#pragma once
// The names in a folder of checkpoints:
//
//   lock                    who saves here (lock.h)
//   latest                  the name of the newest folder; moved last
//   step-100/               a checkpoint: manifest.json and the files it lists
//   step-200~2/             the second one saved under the tag step-200; the first is removed when this is committed
//   step-300.tmp-ID/        being written, or what is left of a save that was killed; the next save removes it
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/file_calls.h"
#include "engine/checkpoint/manifest.h"

namespace lockstep::checkpoints {

/// Error unless `tag` may be one: letters, digits, '.', '_' and '-'.
void check_tag(const std::string& tag);

struct Found {
  std::string folder;  ///< its name
  std::string tag;
  int64_t number = 1;  ///< of the checkpoints saved under this tag
};
std::optional<Found> parse_folder(const std::string& name);
/// Checkpoints in a folder, by tag and number. Those that have a manifest: whether it is right is not looked at.
std::vector<Found> list_checkpoints(const std::string& dir);
/// The name under which a checkpoint of this tag is committed.
std::string next_folder(const std::string& dir, const std::string& tag);
bool is_temporary(const std::string& name);
std::string temporary_name(const std::string& name, const std::string& id);

/// What `latest` says; "" when there is none. Error when it names nothing that could be a checkpoint.
std::string read_latest(const std::string& dir);
std::string read_manifest_text(const std::string& folder);
Manifest read_manifest(const std::string& folder);
/// Error that names the file when it is missing or has another size.
void check_size(const std::string& path, const FileSum& sum);

/// The folder of a checkpoint: DIR itself when it holds a manifest, else DIR/TAG, the last saved under this tag;
/// without a tag the one that `latest` names. "" when DIR holds no checkpoint. When `latest` is missing, damaged or
/// names nothing, the newest whole one, and `warning` says so. Error when there is no such tag, or checkpoints of which
/// none is whole. `but`: names of folders not to take.
std::string find_checkpoint(const std::string& dir, const std::string& tag, std::string& warning,
                            const std::vector<std::string>& but = {});

}  // namespace lockstep::checkpoints
