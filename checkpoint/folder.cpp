// Names, finds and checks the folders of checkpoints. See folder.h.
#include "checkpoint/folder.h"

#include <algorithm>
#include <filesystem>

#include "base/classic_text.h"

namespace lockstep::checkpoints {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view temporary = ".tmp-";
constexpr size_t id_digits = 16;

}  // namespace

void check_tag(const std::string& tag) {
  const bool reserved = tag == "latest" || tag == "lock" || tag == manifest_name || tag.find(temporary) != tag.npos;
  LOCKSTEP_CHECK(is_plain_name(tag) && !reserved,
                 "expected a tag of letters, digits, '.', '_' and '-' (\"step-100\"; not latest, lock, ", manifest_name,
                 " or ", temporary, "), got \"", tag, "\"");
}

std::optional<Found> parse_folder(const std::string& name) {
  const size_t mark = name.find('~');
  Found found{name, name.substr(0, mark), 1};
  if (mark != name.npos) {
    found.number = read_number<int64_t>(name.substr(mark + 1)).value_or(0);
    if (found.number < 2) return std::nullopt;
  }
  if (!is_plain_name(found.tag) || found.tag.find(temporary) != found.tag.npos) return std::nullopt;
  return found;
}

std::vector<Found> list_checkpoints(const std::string& dir) {
  std::vector<Found> all;
  std::error_code error;
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    const auto found = parse_folder(it->path().filename().string());
    if (found && fs::is_regular_file(it->path() / manifest_name, ignored)) all.push_back(*found);
  }
  std::sort(all.begin(), all.end(),
            [](const Found& a, const Found& b) { return std::pair(a.tag, a.number) < std::pair(b.tag, b.number); });
  return all;
}

std::string next_folder(const std::string& dir, const std::string& tag) {
  int64_t number = 0;
  std::error_code error;
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
    const auto found = parse_folder(it->path().filename().string());
    if (found && found->tag == tag) number = std::max(number, found->number);
  }
  return number == 0 ? tag : str(tag, "~", number + 1);
}

bool is_temporary(const std::string& name) {
  const size_t at = name.rfind(temporary);
  if (at == name.npos || name.size() != at + temporary.size() + id_digits) return false;
  const std::string_view id = std::string_view(name).substr(at + temporary.size());
  return parse_folder(name.substr(0, at)) && id.find_first_not_of("0123456789abcdef") == id.npos;
}

std::string temporary_name(const std::string& name, const std::string& id) { return str(name, temporary, id); }

std::string read_latest(const std::string& dir) {
  const std::string path = dir + "/latest";
  if (!fs::exists(path)) return "";
  std::string name = data::read_file(path, 256);
  if (name.ends_with('\n')) name.pop_back();
  LOCKSTEP_CHECK(parse_folder(name), path, ": expected the name of a checkpoint, got ", name.size(),
                 " bytes that are not one; remove this file");
  return name;
}

std::string read_manifest_text(const std::string& folder) {
  return data::read_file(folder + "/" + manifest_name, int64_t(1) << 30);
}

Manifest read_manifest(const std::string& folder) {
  return parse_manifest(read_manifest_text(folder), folder + "/" + manifest_name);
}

void check_size(const std::string& path, const FileSum& sum) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  LOCKSTEP_CHECK(!error, path, ": expected a file of ", sum.bytes, " bytes, got: ", error.message(),
                 "; copy the checkpoint again, or load another one");
  LOCKSTEP_CHECK(int64_t(size) == sum.bytes, path, ": expected ", sum.bytes, " bytes, got ", size,
                 int64_t(size) < sum.bytes ? " (truncated)" : "", "; copy the checkpoint again, or load another one");
}

namespace {

/// The newest complete checkpoint: its manifest is valid, and all files exist with the right sizes. Skips the folders
/// in `but`. "" if there is none.
std::string newest_complete(const std::string& dir, const std::vector<std::string>& but) {
  int64_t newest = -1;
  std::string folder;
  for (const Found& found : list_checkpoints(dir)) {
    if (std::find(but.begin(), but.end(), found.folder) != but.end()) continue;
    try {
      const Manifest manifest = read_manifest(dir + "/" + found.folder);
      if (manifest.sequence <= newest) continue;
      for (const auto& [name, sum] : manifest.files) check_size(str(dir, "/", found.folder, "/", name), sum);
      newest = manifest.sequence;
      folder = found.folder;
    } catch (const Error&) {  // damaged
    }
  }
  return folder;
}

}  // namespace

std::string find_checkpoint(const std::string& dir, const std::string& tag, std::string& warning,
                            const std::vector<std::string>& but) {
  if (fs::exists(fs::path(dir) / manifest_name)) {
    if (!but.empty()) return "";
    const std::string own = tag.empty() ? "" : read_manifest(dir).tag;
    LOCKSTEP_CHECK(tag == own, dir, ": this is a checkpoint of tag ", own, ", not ", tag,
                   "; leave the tag out, or give the folder with all checkpoints");
    return dir;
  }
  const std::vector<Found> all = list_checkpoints(dir);
  if (!tag.empty()) {
    std::string newest, tags;
    for (const Found& found : all) {
      if (found.tag == tag) newest = found.folder;
      else if (tags.find(" " + found.tag + ",") == tags.npos) tags += " " + found.tag + ",";
    }
    if (!tags.empty()) tags.pop_back();
    LOCKSTEP_CHECK(!newest.empty(), dir, ": expected a checkpoint of tag ", tag, ", there ",
                   all.empty() ? "are no checkpoints; give another folder" : "are" + tags + "; choose one of these");
    return dir + "/" + newest;
  }
  std::string why;
  if (but.empty()) {
    try {
      const std::string latest = read_latest(dir);
      if (!latest.empty() && fs::exists(fs::path(dir) / latest / manifest_name)) return dir + "/" + latest;
      if (latest.empty() && all.empty()) {
        warning = dir + ": holds no checkpoint; save one, or give another folder";
        return "";
      }
      why = latest.empty() ? dir + "/latest is missing" : dir + "/latest names " + latest + ", which does not exist";
    } catch (const Error& error) { why = error.what(); }
  }
  const std::string newest = newest_complete(dir, but);
  LOCKSTEP_CHECK(!newest.empty(), dir, ": expected a complete checkpoint, ",
                 all.empty() ? "there is none" : str("none of the ", all.size(), " is"), why.empty() ? "" : "; " + why,
                 "; give another folder");
  warning = str(why, why.empty() ? "" : "; ", "taking ", dir, "/", newest, ", the newest complete one (or give a tag)");
  return dir + "/" + newest;
}

}  // namespace lockstep::checkpoints
