// Files: see files.h. The order of the steps in write_atomically() makes a save survive kill -9 and a power cut.
#include "data/files.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>

#include "data/file_calls.h"
#include "data/open_file.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

FileCalls* calls_of_tests = nullptr;

/// Returns "NAME.tmp-HOST-". The process id and a counter follow in a temporary file's name.
std::string temporary_prefix(const fs::path& target) {
  char host[256] = "host";
  ::gethostname(host, sizeof host - 1);
  return str(target.filename().string(), ".tmp-", host, "-");
}

}  // namespace

std::string read_file(const std::string& path, int64_t max_bytes) {
  OpenFile file;
  open_regular(file, path, max_bytes);
  std::string text;
  while (int64_t(text.size()) < file.size)
    LOCKSTEP_CHECK(append_next(file, text, size_t(file.size) - text.size(), path), "[file] expected ", file.size,
                   " bytes, got ", text.size(), " (the file shrank while it was read): ", path, "; read it again");
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

void write_atomically(const std::string& path, const std::function<void(NewFile&)>& write) {
  static std::atomic<int64_t> counter{0};
  const fs::path target(path);
  const fs::path folder = target.has_parent_path() ? target.parent_path() : fs::path(".");
  const std::string prefix = temporary_prefix(target);
  LOCKSTEP_CHECK(target.has_filename() && !fs::is_directory(target), "[file] expected a path to a file, got ", path);
  remove_leftovers(path);
  const std::string temporary = (folder / str(prefix, ::getpid(), "-", counter++)).string();

  // 1. Write the content to a new file and flush it to the disk before anything refers to it.
  Files files(calls_of_tests ? *calls_of_tests : system_calls());
  NewFile file(files, temporary);
  try {
    write(file);
    file.finish();
    // 2. Rename the new file to the target's name, atomically.
    files.rename(temporary, path);
  } catch (const Error& error) {
    ::unlink(temporary.c_str());
    fail(str(error.what(), "; the old file is unchanged"));
  }
  // 3. Flush the folder's entry. Until then a power cut may bring back the old file, intact.
  try {
    files.sync_folder(folder.string());
  } catch (const Error& error) {
    fail(str(error.what(), "; the new file is in place, but a power cut may bring the old one back; save again"));
  }
}

void write_atomically(const std::string& path, const std::vector<Bytes>& chunks) {
  write_atomically(path, [&](NewFile& file) {
    for (const Bytes chunk : chunks) file.append(chunk);
  });
}

void write_atomically(const std::string& path, std::string_view text) {
  write_atomically(path, std::vector<Bytes>{as_bytes(text)});
}

void use_file_calls(FileCalls* calls) { calls_of_tests = calls; }

}  // namespace lockstep::data
