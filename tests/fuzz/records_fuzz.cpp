// libFuzzer: a record that a job leaves (a flight record, an error file, a checkpoint's `latest`), a host list, a
// handshake of a data connection, or one between launchers on two hosts (chosen by the first byte) is read or rejected
// with an Error.
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>

#include "checkpoint/folder.h"
#include "dist/flight.h"
#include "dist/launcher/hostfile.h"
#include "dist/launcher/launch.h"
#include "dist/transports/handshake.h"
#include "tests/fuzz/folder.h"
#include "tests/fuzz/limits.h"

using namespace lockstep;

namespace {

void read(char kind, std::string_view text) {
  static const fuzz::Folder folder, checkpoints_;
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
    case 'G': {
      folder.write(text, {"greeting"});
      const int file = ::open((folder.path() + "/greeting").c_str(), O_RDONLY);
      ::dup2(file, STDIN_FILENO), ::close(file);
      dist::LaunchOptions options;
      dist::read_greeting(options, 5);
      break;
    }
    case 'L':
      checkpoints_.write(text, {"latest", "lock"});
      checkpoints::read_latest(checkpoints_.path());
      break;
    default: {
      namespace handshake = dist::handshake;
      std::string_view heard;  // a data listener, too, reads only as many bytes as the handshake wants
      for (size_t more; (more = handshake::wanted(heard)) > 0;) {
        if (more == handshake::too_long || more > text.size() - heard.size()) return;
        heard = text.substr(0, heard.size() + more);
      }
      const handshake::Answer answer = handshake::parse(heard);
      if (answer.text() != heard) std::abort();
      if (handshake::parse_purpose(answer.purpose).stripes > 64) std::abort();
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const fuzz::Limits limits(size);
  try {
    read(char(data[0]), {reinterpret_cast<const char*>(data) + 1, size - 1});
  } catch (const Error&) {}
  return 0;
}
