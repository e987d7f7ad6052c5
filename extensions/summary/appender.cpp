// Appends to files that report about a run. See appender.h.
#include "extensions/summary/appender.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/check.h"

namespace lockstep {

Appender::Appender(std::string path, Warn warn, std::string_view prefix)
    : path_(std::move(path)), warn_(std::move(warn)), file_(path_, false, prefix) {}

void Appender::add(std::string_view bytes) {
  if (!over_ && !file_.add(bytes)) give_up();
}

void Appender::sync() {
  if (over_) return;
  const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  const bool good = fd >= 0 && ::fsync(fd) == 0;
  const int error = errno;
  if (fd >= 0) ::close(fd);
  errno = error;
  if (!good) give_up();
}

void Appender::give_up() {
  over_ = true;
  if (warn_)
    warn_(str("warning: ", path_, ": writing failed: ", std::strerror(errno),
              "; free disk space or check its permissions; the run goes on without this file"));
}

void make_log_folder(const std::string& folder, std::string_view prefix) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  LOCKSTEP_CHECK(!error, prefix, folder, ": cannot make this folder: ", error.message(),
                 "; check the path and its permissions");
}

}  // namespace lockstep
