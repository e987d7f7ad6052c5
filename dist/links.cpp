// Sends, receives and checks the beginning of a stream: the header, and a tensor's place in shared memory. See links.h.
#include "dist/links.h"

#include <cstddef>

namespace lockstep::dist {

void check_what_is_left(Channel& channel, const Header& mine, const std::string& group, bool awaited) {
  std::span<const std::byte> here;
  try {
    here = channel.arrived();
  } catch (const DistError&) {}  // NOLINT: the channel is empty and closed
  Header theirs, expected = mine;
  if (here.size() < sizeof theirs) return;
  std::memcpy(&theirs, here.data(), sizeof theirs);
  const bool is_header = theirs.magic == Header::magic_value && theirs.crc == crc32c(&theirs, offsetof(Header, crc));
  if (!is_header || theirs.job != mine.job) return;
  // If the peer's header for this call was already read, these bytes may be the header of the peer's next call, which
  // is no mismatch. Compare the header only if it has the number of this call.
  if (!awaited) {
    if (is_message(mine) || is_message(theirs) || theirs.sequence != mine.sequence) return;
    expected.payload = theirs.payload;
  }
  check_same(expected, theirs, group);
}

size_t PeerLink::send_opening(bool more) {
  size_t moved = 0;
  if (out.header_done < sizeof(Header))
    moved = send_rest(*channel, &out.header, sizeof(Header), out.header_done, more || out.header.in_place);
  if (out.header_done >= sizeof(Header) && out.header.in_place) {
    size_t done = out.header_done - sizeof(Header);
    moved += send_rest(*channel, &out.placement, sizeof(SegmentRange), done, more);
    out.header_done = sizeof(Header) + done;
  }
  return moved;
}

size_t PeerLink::receive_opening(const std::string& group) {
  size_t moved = 0;
  if (in.header_done < sizeof(Header)) {
    moved = receive_rest(*channel, &theirs, sizeof(Header), in.header_done);
    if (in.header_done < sizeof(Header)) return moved;
    check_sealed(theirs, world_rank);
    check_same(in.header, theirs, group);
    in.has_trailer = theirs.payload_crc != 0;
  }
  if (theirs.in_place) {
    size_t done = in.header_done - sizeof(Header);
    moved += receive_rest(*channel, &placement, sizeof(SegmentRange), done);
    in.header_done = sizeof(Header) + done;
  }
  return moved;
}

size_t send_rest(Channel& channel, const void* from, size_t bytes, size_t& done, bool more) {
  if (done >= bytes) return 0;
  const size_t n = channel.send(static_cast<const std::byte*>(from) + done, bytes - done, more);
  done += n;
  return n;
}

size_t receive_rest(Channel& channel, void* to, size_t bytes, size_t& done) {
  if (done >= bytes) return 0;
  const size_t n = channel.receive(static_cast<std::byte*>(to) + done, bytes - done);
  done += n;
  return n;
}

}  // namespace lockstep::dist
