// Locks a folder of checkpoints. See lock.h.
#include "checkpoint/lock.h"

#include <fmt/chrono.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctime>
#include <optional>

#include "base/check.h"
#include "data/json.h"

namespace lockstep::checkpoints {
namespace {

using data::Json;

constexpr size_t text_size = 512;  // constant, so that a shorter text overwrites a longer one completely

struct Holder {
  std::string host;
  std::string text;  // "pid 4711 on node7 since 2025-01-31 12:00:00 UTC"
};

std::string own_text() {
  const std::string since = fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(std::time(nullptr)));
  std::string text =
      Json(Json::Object{{"pid", int64_t(::getpid())}, {"host", dist::host_name()}, {"since", since}}).dump();
  text.resize(text_size - 1, ' ');
  return text + "\n";
}

std::optional<Holder> read_holder(const std::string& path) {
  try {
    const Json json = data::parse_json(data::read_file(path, text_size), path);
    const std::string& host = json.at("host").as_string();
    return Holder{host, str("pid ", json.at("pid").as_int(), " on ", host, " since ", json.at("since").as_string())};
  } catch (const Error&) {  // the file is empty (just created) or truncated
    return std::nullopt;
  }
}

bool is_same_file(int fd, const std::string& path) {
  struct stat mine, there;
  return ::fstat(fd, &mine) == 0 && ::stat(path.c_str(), &there) == 0 && mine.st_ino == there.st_ino &&
         mine.st_dev == there.st_dev;
}

}  // namespace

FolderLock::FolderLock(data::Files& files, const std::string& dir, bool take_over,
                       const std::function<void(const std::string&)>& warn)
    : files_(files), path_(dir + "/lock") {
  for (;;) {
    fd_ = dist::Fd(files.open(path_));
    if (!files.lock(fd_.get(), path_)) {
      const auto holder = read_holder(path_);
      fail(str(path_, ": another job saves into this folder: ",
               holder ? holder->text : "its lock does not name its process", "; end it, or save into another folder"));
    }
    if (is_same_file(fd_.get(), path_)) break;  // otherwise the lock's previous owner has just removed the file
    files.close(fd_.release(), path_);
  }
  if (const auto holder = read_holder(path_)) {
    LOCKSTEP_CHECK(holder->host == dist::host_name() || take_over, path_,
                   ": a job on another host has left its lock: ", holder->text,
                   "; when it has ended remove this file, or set take_over");
    warn(str(path_, ": stale: ", holder->text, " ended without releasing it; taking it over (no action needed)"));
  }
  files.write(fd_.get(), data::as_bytes(own_text()), 0, path_);
}

FolderLock::~FolderLock() {
  if (!maker_.is_here()) return;
  try {
    files_.remove(path_);   // still locked, so that a job that opens it now notices the removal
  } catch (const Error&) {  // a stale lock is recognized later
  }
}

}  // namespace lockstep::checkpoints
