#include "dist/links.h"

namespace lockstep::dist {

size_t PeerLink::send_opening(bool more) {
  size_t moved = 0;
  if (out.header_done < sizeof(Header))
    moved = send_some(&out.header, sizeof(Header), out.header_done, more || out.header.in_place);
  if (out.header_done >= sizeof(Header) && out.header.in_place) {
    size_t done = out.header_done - sizeof(Header);
    moved += send_some(&out.placement, sizeof(Placement), done, more);
    out.header_done = sizeof(Header) + done;
  }
  return moved;
}

size_t PeerLink::receive_opening(const std::string& group) {
  size_t moved = 0;
  if (in.header_done < sizeof(Header)) {
    moved = receive_some(&theirs, sizeof(Header), in.header_done);
    if (in.header_done < sizeof(Header)) return moved;
    check_sealed(theirs, world_rank);
    check_same(in.header, theirs, group);
    in.has_trailer = theirs.payload_crc != 0;
  }
  if (theirs.in_place) {
    size_t done = in.header_done - sizeof(Header);
    moved += receive_some(&placement, sizeof(Placement), done);
    in.header_done = sizeof(Header) + done;
  }
  return moved;
}

size_t PeerLink::send_some(const void* from, size_t bytes, size_t& done, bool more) {
  if (done >= bytes) return 0;
  const size_t n = channel->send(static_cast<const std::byte*>(from) + done, bytes - done, more);
  done += n;
  return n;
}

size_t PeerLink::receive_some(void* to, size_t bytes, size_t& done) {
  if (done >= bytes) return 0;
  const size_t n = channel->receive(static_cast<std::byte*>(to) + done, bytes - done);
  done += n;
  return n;
}

}  // namespace lockstep::dist
