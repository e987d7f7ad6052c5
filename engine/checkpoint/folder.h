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

#include "engine/checkpoint/files.h"
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
/// The first file that is missing or has another size than the manifest says, and how; "" when there is none.
std::string missing_file(const std::string& folder, const Manifest& manifest);

/// The newest checkpoint whose manifest is right and whose files are all there in their sizes; "" when there is none.
/// `but`: not these.
std::string newest_whole(const std::string& dir, const std::vector<std::string>& but = {});

}  // namespace lockstep::checkpoints
