// libFuzzer: any bytes from a socket are frames whose bodies are read completely, or rejected with a DistError
// (protocol). The first byte chooses the size of the pieces in which they arrive, which must make no difference.
#include <cstdlib>
#include <vector>

#include "dist/wire.h"
#include "tests/fuzz/limits.h"

using namespace lockstep::dist;

namespace {

struct Result {
  std::vector<Frame> frames;
  bool refused = false;
};

Result cut(const char* data, size_t size, size_t piece) {
  Result out;
  FrameReader reader(stranger_limit);
  try {
    for (size_t at = 0; at < size; at += piece) {
      reader.push(data + at, std::min(piece, size - at));
      while (auto frame = reader.next()) {
        if (frame->body.size() > stranger_limit) std::abort();
        out.frames.push_back(std::move(*frame));
      }
    }
    if (reader.pending() > stranger_limit + wire_header) std::abort();
  } catch (const DistError& error) {
    if (error.fault != Fault::protocol) std::abort();
    out.refused = true;
  }
  return out;
}

void read(const Frame& frame) {
  BodyReader in(frame.body);
  try {
    switch (frame.kind) {
      case FrameKind::failure: read_failure(in); break;
      case FrameKind::barrier: {
        in.text(key_limit), in.seconds();
        for (uint32_t i = in.count(4); i > 0; --i) in.u32();
        break;
      }
      case FrameKind::hello: in.u32(), in.bytes<32>(), in.bytes<32>(); break;
      default: {
        const Activity activity = read_activity(in);
        in.end();
        Writer again;  // writing the parsed fields must reproduce the bytes
        write_activity(again, activity);
        if (again.body.size() != frame.body.size()) std::abort();
      }
    }
    in.end();
  } catch (const DistError& error) {
    if (error.fault != Fault::protocol) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::Limits limits(size);
  if (size == 0) return 0;
  const char* bytes = reinterpret_cast<const char*>(data) + 1;
  const Result full = cut(bytes, size - 1, size), pieces = cut(bytes, size - 1, 1 + data[0] % 61);
  if (full.refused != pieces.refused || full.frames.size() != pieces.frames.size()) std::abort();
  for (size_t i = 0; i < full.frames.size(); ++i) {
    if (full.frames[i].body != pieces.frames[i].body || full.frames[i].kind != pieces.frames[i].kind) std::abort();
    read(full.frames[i]);
  }
  // The fields of a body without a frame, which the fuzzer would otherwise have to produce first.
  for (const FrameKind kind : {FrameKind::activity, FrameKind::failure, FrameKind::barrier, FrameKind::hello})
    read({kind, 0, std::string(bytes, size - 1)});
  return 0;
}
