// Preloaded into a program (LD_PRELOAD), kills its process with SIGKILL at the k-th operation that changes a file below
// a folder, before or after the system call. Variables: LOCKSTEP_TEST_KILL_FOLDER, _KILL_AT (k; 0: never), _KILL_RANK
// (kill only this RANK; none: any process), _KILL_COUNT (a file that gets the number of operations at the end).
// tests/kill_sweep.py chooses k.
#undef _FILE_OFFSET_BITS  // otherwise open and pwrite would be aliases of open64 and pwrite64
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

struct Settings {
  std::string folder, count;
  long at = 0;
  bool mine = true;
};

const char* text(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

const Settings& settings() {
  static const Settings& s = *[] {
    auto* made = new Settings{text("LOCKSTEP_TEST_KILL_FOLDER"), text("LOCKSTEP_TEST_KILL_COUNT"),
                              std::atol(text("LOCKSTEP_TEST_KILL_AT"))};
    const std::string wanted = text("LOCKSTEP_TEST_KILL_RANK");
    made->mine = !made->folder.empty() && (wanted.empty() || wanted == text("RANK"));
    return made;
  }();
  return s;
}

std::atomic<long> operations{0};

bool below(const char* path) {
  return path && settings().mine && std::strncmp(path, settings().folder.c_str(), settings().folder.size()) == 0;
}

bool below(int fd) {
  if (fd < 3 || !settings().mine) return false;
  char path[PATH_MAX];
  const ssize_t n = readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path, sizeof path - 1);
  if (n <= 0) return false;
  path[n] = 0;
  return below(path);
}

/// An operation has two points at which the process may be killed: just before it (odd) and just after it (even).
struct Operation {
  explicit Operation(bool counts) : counts(counts) { step(); }
  ~Operation() { step(); }
  void step() const {
    if (counts && ++operations == settings().at) ::kill(::getpid(), SIGKILL);
  }
  bool counts;
};

template <class F> F next(const char* name) { return reinterpret_cast<F>(dlsym(RTLD_NEXT, name)); }

struct AtEnd {
  ~AtEnd() {
    if (!settings().mine || settings().count.empty()) return;
    if (FILE* file = std::fopen(settings().count.c_str(), "w")) {
      std::fprintf(file, "%ld\n", operations.load());
      std::fclose(file);
    }
  }
} at_end;

}  // namespace

#define LOCKSTEP_FORWARD(type, name, parameters, arguments, counted) \
  extern "C" type name parameters {                                  \
    static const auto real = next<type(*) parameters>(#name);        \
    const Operation operation(counted);                              \
    return real arguments;                                           \
  }

LOCKSTEP_FORWARD(ssize_t, write, (int fd, const void* data, size_t n), (fd, data, n), below(fd))
LOCKSTEP_FORWARD(ssize_t, writev, (int fd, const iovec* parts, int n), (fd, parts, n), below(fd))
LOCKSTEP_FORWARD(ssize_t, pwrite, (int fd, const void* data, size_t n, off_t at), (fd, data, n, at), below(fd))
LOCKSTEP_FORWARD(ssize_t, pwrite64, (int fd, const void* data, size_t n, off64_t at), (fd, data, n, at), below(fd))
LOCKSTEP_FORWARD(int, rename, (const char* from, const char* to), (from, to), below(to))
LOCKSTEP_FORWARD(int, mkdir, (const char* path, mode_t mode), (path, mode), below(path))
LOCKSTEP_FORWARD(int, unlink, (const char* path), (path), below(path))
LOCKSTEP_FORWARD(int, rmdir, (const char* path), (path), below(path))
LOCKSTEP_FORWARD(int, remove, (const char* path), (path), below(path))
LOCKSTEP_FORWARD(int, fsync, (int fd), (fd), below(fd))
LOCKSTEP_FORWARD(int, ftruncate, (int fd, off_t size), (fd, size), below(fd))

extern "C" int open(const char* path, int flags, ...) {
  static const auto real = next<int (*)(const char*, int, ...)>("open");
  va_list more;
  va_start(more, flags);
  const mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0;
  va_end(more);
  const Operation operation((flags & (O_CREAT | O_TRUNC)) && below(path));
  return real(path, flags, mode);
}
extern "C" int open64(const char* path, int flags, ...) {
  static const auto real = next<int (*)(const char*, int, ...)>("open64");
  va_list more;
  va_start(more, flags);
  const mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0;
  va_end(more);
  const Operation operation((flags & (O_CREAT | O_TRUNC)) && below(path));
  return real(path, flags, mode);
}
