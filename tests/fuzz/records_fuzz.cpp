// libFuzzer: a checkpoint's `latest` or a handshake of a data connection (chosen by the first byte) is read or rejected
// with an Error.
#include <cstdlib>

#include "checkpoint/folder.h"
#include "dist/transports/handshake.h"
#include "tests/fuzz/folder.h"
#include "tests/fuzz/limits.h"

using namespace lockstep;

namespace {

void read(char kind, std::string_view text) {
  static const fuzz::Folder checkpoints;
  switch (kind) {
    case 'L':
      checkpoints.write(text, {"latest", "lock"});
      checkpoints::read_latest(checkpoints.path());
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

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) { return fuzz::read_as(data, size, read); }
