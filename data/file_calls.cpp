// Makes the system calls, repeats interrupted ones, and turns failures into Errors. See file_calls.h.
#include "data/file_calls.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "data/open_file.h"

namespace lockstep::data {

namespace fs = std::filesystem;

int FileCalls::open(const char* path, int flags) { return ::open(path, flags | O_CLOEXEC, 0666); }
int64_t FileCalls::write(int fd, const std::byte* data, size_t bytes, int64_t offset) {
  return ::pwrite(fd, data, bytes, offset);
}
int FileCalls::sync(int fd) { return ::fsync(fd); }
int FileCalls::close(int fd) { return ::close(fd); }
int FileCalls::rename(const char* from, const char* to) { return ::rename(from, to); }
int FileCalls::make_folder(const char* path) { return ::mkdir(path, 0777); }
int FileCalls::remove(const char* path) { return ::unlink(path); }
int FileCalls::remove_folder(const char* path) { return ::rmdir(path); }
int FileCalls::lock(int fd) { return ::flock(fd, LOCK_EX | LOCK_NB); }

FileCalls& system_calls() {
  static FileCalls calls;
  return calls;
}

namespace {

constexpr size_t max_at_once = size_t(1) << 30;  // Linux transfers at most a little less than 2 GiB per call

template <class Call> auto attempt(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

int opened(FileCalls& calls, const std::string& path, int flags, const char* what) {
  const int fd = attempt([&] { return calls.open(path.c_str(), flags); });
  if (fd < 0) fail_system(what, path);
  return fd;
}

}  // namespace

int Files::create(const std::string& path) { return opened(calls_, path, O_WRONLY | O_CREAT | O_EXCL, "create"); }
int Files::open(const std::string& path) { return opened(calls_, path, O_RDWR | O_CREAT | O_NOFOLLOW, "open"); }

void Files::write(int fd, Bytes bytes, int64_t offset, const std::string& path) {
  while (!bytes.empty()) {
    const int64_t written =
        attempt([&] { return calls_.write(fd, bytes.data(), std::min(bytes.size(), max_at_once), offset); });
    if (written < 0) fail_system("write", path);
    LOCKSTEP_CHECK(written > 0, "[file] cannot write ", path, ": the system wrote 0 of ", bytes.size(),
                   " bytes; check the disk");
    bytes = bytes.subspan(size_t(written));
    offset += written;
  }
}

void Files::sync(int fd, const std::string& path) {
  if (attempt([&] { return calls_.sync(fd); }) < 0) fail_system("flush", path);
}

void Files::close(int fd, const std::string& path) {
  // Some file systems report a full disk only on close. On Linux, close() frees the descriptor even after EINTR.
  if (calls_.close(fd) < 0 && errno != EINTR) fail_system("close", path);
}

void Files::rename(const std::string& from, const std::string& to) {
  if (attempt([&] { return calls_.rename(from.c_str(), to.c_str()); }) < 0) fail_system("rename " + from + " to", to);
}

void Files::make_folder(const std::string& path) {
  if (attempt([&] { return calls_.make_folder(path.c_str()); }) < 0 && (errno != EEXIST || !fs::is_directory(path)))
    fail_system("make folder", path);
}

void Files::remove(const std::string& path) {
  if (attempt([&] { return calls_.remove(path.c_str()); }) < 0 && errno != ENOENT) fail_system("remove", path);
}

void Files::remove_folder(const std::string& path) {
  if (attempt([&] { return calls_.remove_folder(path.c_str()); }) < 0 && errno != ENOENT)
    fail_system("remove folder", path);
}

void Files::sync_folder(const std::string& path) {
  const int fd = opened(calls_, path, O_RDONLY | O_DIRECTORY, "open folder");
  const int result = attempt([&] { return calls_.sync(fd); });
  const int error = errno;
  calls_.close(fd);
  errno = error;
  if (result < 0 && error != EINVAL) fail_system("flush folder", path);  // EINVAL: this file system cannot sync folders
}

bool Files::lock(int fd, const std::string& path) {
  if (attempt([&] { return calls_.lock(fd); }) == 0) return true;
  if (errno != EWOULDBLOCK) fail_system("lock", path);
  return false;
}

void Files::write_file(const std::string& path, std::string_view text) {
  NewFile file(*this, path);
  file.append(as_bytes(text));
  file.finish();
}

void Files::remove_tree(const std::string& path) {
  std::error_code error;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    if (it->is_directory() && !it->is_symlink()) remove_tree(it->path().string());
    else remove(it->path().string());
  }
  remove_folder(path);
}

void Files::make_folders(const std::string& path) {
  if (fs::is_directory(path)) return;
  const fs::path above =
      fs::path(path).has_filename() ? fs::path(path).parent_path() : fs::path(path).parent_path().parent_path();
  if (!above.empty()) make_folders(above.string());
  make_folder(path);
  sync_folder(above.empty() ? "." : above.string());
}

NewFile::~NewFile() {
  if (fd_ < 0) return;
  try {
    files_.close(std::exchange(fd_, -1), path_);
  } catch (const Error&) {  // the file is abandoned anyway
  }
}

void NewFile::append(Bytes bytes) {
  files_.write(fd_, bytes, size_, path_);
  size_ += int64_t(bytes.size());
}

void NewFile::finish() {
  files_.sync(fd_, path_);
  files_.close(std::exchange(fd_, -1), path_);
}

}  // namespace lockstep::data
