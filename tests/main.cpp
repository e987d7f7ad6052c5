// The main() of every test suite. Afterwards it checks that the tests left no process, descriptor, shared memory or
// temporary file behind.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <locale>
#include <map>
#include <string>
#include <thread>

#include "tests/devices.h"
#include "tests/temp_dir.h"

namespace {

namespace fs = std::filesystem;

/// Open descriptors by number, with their targets.
std::map<std::string, std::string> descriptors() {
  std::map<std::string, std::string> open;
  std::error_code gone;  // the descriptor of the folder itself is closed by then
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    const fs::path what = fs::read_symlink(entry.path(), gone);
    if (!gone && what != "/proc/" + std::to_string(getpid()) + "/fd") open[entry.path().filename()] = what;
  }
  return open;
}

/// True for files that the CUDA driver keeps open until the process ends: its devices and, beside them, sockets, pipes
/// and eventfds.
bool is_drivers(const std::map<std::string, std::string>& open, const std::string& what) {
  const auto is_device = [](const std::string& x) { return x.find("/dev/nvidia") != x.npos; };
  const bool may_be = what.starts_with("socket:") || what.starts_with("pipe:") || what == "anon_inode:[eventfd]";
  return is_device(what) ||
         (may_be && std::any_of(open.begin(), open.end(), [&](const auto& other) { return is_device(other.second); }));
}

std::string left_behind(const std::map<std::string, std::string>& before, const fs::path& folder) {
  std::string left;
  if (const pid_t child = waitpid(-1, nullptr, WNOHANG); child >= 0)
    left +=
        child ? "a process that was not waited for, " + std::to_string(child) + "\n" : "a process that still runs\n";
  const auto open = descriptors();
  for (const auto& [number, what] : open)
    if (!before.count(number) && !is_drivers(open, what)) left += "descriptor " + number + ", " + what + "\n";
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (line.find("/memfd:lockstep") != line.npos) left += "shared memory " + line + "\n";
  for (const auto& entry : fs::directory_iterator(folder)) left += "file " + entry.path().string() + "\n";
  return left;
}

}  // namespace

int main(int argc, char** argv) {
  if (const char* name = std::getenv("LOCKSTEP_TEST_LOCALE")) std::locale::global(std::locale(name));
  std::setlocale(LC_MESSAGES, "C");  // numbers follow the locale under test, strerror() stays English
  if (!use_test_device()) return 2;
  doctest::Context context(argc, argv);
  // a rank that another test started; that test cleans up
  if (std::getenv("LOCKSTEP_TEST_CHILD")) return context.run();
  const testing::TempDir folder;
  setenv("TMPDIR", folder.str().c_str(), 1);
  const auto before = descriptors();
  int code = context.run();
  std::string left;
  for (int i = 0; i < 100 && !(left = left_behind(before, folder.path)).empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  if (!left.empty()) {
    std::printf("FAIL the tests have left behind:\n%s", left.c_str());
    code = 1;
  }
  return code;
}
