// Files: see files.h. The order of write_atomically's steps is what makes a save survive kill -9 and a power cut.
#include "data/files.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "data/open_file.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

std::atomic<int64_t> operations{0}, fault_at{0};
FileFault planned_fault;

/// Counts an operation; the fault that hits it, if any.
FileFault next_operation() {
  if (++operations != fault_at) return {};
  if (planned_fault.kill) _exit(137);
  return planned_fault;
}

/// Runs a system call that gives -1 on failure, again when a signal interrupts it.
template <class Call> int64_t attempt(Call call) {
  if (const FileFault fault = next_operation(); fault.error) return errno = fault.error, -1;
  int64_t result;
  do result = call();
  while (result < 0 && errno == EINTR);
  return result;
}

/// NAME.tmp-HOST-, before the process and a number.
std::string temporary_prefix(const fs::path& target) {
  char host[256] = "host";
  ::gethostname(host, sizeof host - 1);
  return str(target.filename().string(), ".tmp-", host, "-");
}

void write_all(int fd, Bytes chunk, const std::string& path) {
  while (!chunk.empty()) {
    const FileFault fault = next_operation();
    size_t wanted = std::min<size_t>(chunk.size(), size_t(1) << 30);
    if (fault.short_write) wanted = (wanted + 1) / 2;
    const ssize_t written = fault.error ? (errno = fault.error, -1) : ::write(fd, chunk.data(), wanted);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_system("write", path, "; the old file is unchanged");
    chunk = chunk.subspan(size_t(written));
  }
}

}  // namespace

std::string read_file(const std::string& path, int64_t max_bytes) {
  OpenFile file;
  open_regular(file, path, max_bytes);
  std::string text(size_t(file.size), '\0');
  for (size_t done = 0; done < text.size();) {
    const ssize_t got = ::read(file.fd, text.data() + done, text.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_system("read", path);
    LOCKSTEP_CHECK(got > 0, "[file] expected ", file.size, " bytes, got ", done,
                   " (the file shrank while it was read): ", path);
    done += size_t(got);
  }
  return text;
}

void remove_leftovers(const std::string& path) {
  const fs::path target(path);
  const std::string prefix = temporary_prefix(target);
  std::error_code ignored;
  for (fs::directory_iterator it(target.has_parent_path() ? target.parent_path() : fs::path("."), ignored), end;
       !ignored && it != end; it.increment(ignored)) {
    const std::string name = it->path().filename();
    if (name.rfind(prefix, 0) != 0) continue;
    const long pid = std::strtol(name.c_str() + prefix.size(), nullptr, 10);
    if (pid > 0 && pid != ::getpid() && ::kill(pid_t(pid), 0) != 0 && errno == ESRCH) fs::remove(it->path(), ignored);
  }
}

void write_atomically(const std::string& path, const std::vector<Bytes>& chunks) {
  static std::atomic<int64_t> counter{0};
  const fs::path target(path);
  const fs::path folder = target.has_parent_path() ? target.parent_path() : fs::path(".");
  const std::string prefix = temporary_prefix(target);
  LOCKSTEP_CHECK(target.has_filename() && !fs::is_directory(target), "[file] expected a path to a file, got ", path);
  remove_leftovers(path);
  const std::string temporary = (folder / str(prefix, ::getpid(), "-", counter++)).string();

  // 1. Content to a new file, flushed to the disk before anything points at it.
  Descriptor file;
  file.fd = int(attempt([&] { return ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); }));
  if (file.fd < 0) fail_system("create", temporary);
  try {
    for (const Bytes chunk : chunks) write_all(file.fd, chunk, temporary);
    if (attempt([&] { return ::fsync(file.fd); }) < 0) fail_system("flush", temporary, "; the old file is unchanged");
    // Some file systems report a full disk only here. A descriptor is gone after close, whatever close says.
    const int fd = std::exchange(file.fd, -1);
    const FileFault fault = next_operation();
    if (::close(fd) != 0 || (fault.error && (errno = fault.error)))
      fail_system("close", temporary, "; the old file is unchanged");
    // 2. The new name, in one step.
    if (attempt([&] { return ::rename(temporary.c_str(), path.c_str()); }) < 0)
      fail_system("rename to", path, "; the old file is unchanged");
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  // 3. The folder's entry. Until it is flushed a power cut may bring the old file back, whole.
  Descriptor directory;
  directory.fd = int(attempt([&] { return ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  const char* placed = "; the new file is in place, but a power cut may bring the old one back";
  if (directory.fd < 0) fail_system("open folder", folder, placed);
  if (attempt([&] { return ::fsync(directory.fd); }) < 0 && errno != EINVAL)
    fail_system("flush folder", folder, placed);
}

void write_atomically(const std::string& path, std::string_view text) {
  write_atomically(path, std::vector<Bytes>{as_bytes(text)});
}

void fail_file_operation(int64_t k, FileFault fault) {
  planned_fault = fault;
  operations = 0;
  fault_at = k;
}

int64_t file_operations() { return operations; }

}  // namespace lockstep::data
