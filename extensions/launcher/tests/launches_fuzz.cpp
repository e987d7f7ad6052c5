// libFuzzer: a record that a job leaves (a flight record or an error file), a list of hosts, or what a launcher sends
// to the one on another host (chosen by the first byte) is read or rejected with an Error.
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>

#include "base/check.h"
#include "extensions/launcher/hostfile.h"
#include "extensions/launcher/launch.h"
#include "extensions/launcher/launcher.h"
#include "tests/fuzz/folder.h"
#include "tests/fuzz/limits.h"

using namespace lockstep;

namespace {

void read(char kind, std::string_view text) {
  static const fuzz::Folder folder;
  switch (kind) {
    case 'F':
      folder.write(text, {"flight-0.json", "flight-1.json"});
      if (dist::explain_flight(folder.path()).empty()) std::abort();
      break;
    case 'E':
      folder.write(text, {"error.json"});
      dist::read_error_file(folder.path() + "/error.json");
      break;
    case 'H':
      if (dist::parse_hostfile(text, "hosts").empty()) std::abort();
      break;
    default: {
      folder.write(text, {"greeting"});
      const int file = ::open((folder.path() + "/greeting").c_str(), O_RDONLY);
      ::dup2(file, STDIN_FILENO), ::close(file);
      dist::LaunchOptions options;
      dist::read_greeting(options, 5);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) { return fuzz::read_as(data, size, read); }
