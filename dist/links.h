#pragma once
// How far the streams between this rank and its peers have come, what opens them, and in which order blocks go through
// them (executor.h).
#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dist/fingerprint.h"
#include "dist/program.h"
#include "dist/shared_memory.h"
#include "dist/transport.h"

namespace lockstep::dist {

inline constexpr size_t block_bytes =
    64 << 10;  // ranks must agree on it: it orders the streams. A multiple of every element

/// Walks the transfers of one stream in the order of waves.
struct Cursor {
  std::span<const uint32_t> list;
  size_t low = 0, at = 0;  // list[low ..] may still have blocks; list[at] is next in this wave
  int64_t wave = 0;
  size_t block = 0;  // of list[at]

  /// Moves to the first block from (wave, at) on; false at the end. max_blocks: of the longest chunk.
  bool find(const std::vector<Program::Item>& items, const std::vector<size_t>& size, int64_t max_blocks) {
    for (;;) {
      while (low < list.size() && wave - items[list[low]].step >= max_blocks) ++low;
      if (low == list.size()) return false;
      at = std::max(at, low);
      wave = std::max<int64_t>(wave, items[list[low]].step);
      for (; at < list.size() && items[list[at]].step <= wave; ++at) {
        block = size_t(wave - items[list[at]].step);
        if (block * block_bytes < size[list[at]]) return true;
      }
      ++wave;
      at = low;
    }
  }
};

/// Moves what fits of `bytes` of which `done` have gone; gives back how many.
size_t send_rest(Channel& channel, const void* from, size_t bytes, size_t& done, bool more = false);
size_t receive_rest(Channel& channel, void* to, size_t bytes, size_t& done);

/// For who finds that the peer has gone: what it left in the channel may be the header of another call than `mine`, and
/// then it is the cause, a DistError mismatch. awaited: a header is what comes next.
void check_what_is_left(Channel& channel, const Header& mine, const std::string& group, bool awaited);

/// One direction between this rank and a peer.
struct Stream {
  Cursor cursor;
  Header header;
  Placement placement;  // follows the header when that says so
  uint32_t crc = 0;
  size_t header_done = 0, trailer_done = 0;
  bool has_trailer = false, has_block = false, finished = true;
};

struct PeerLink {
  Channel* channel = nullptr;
  int rank = -1, world_rank = -1;
  Stream out, in;       // in.header: what is expected
  Header theirs;        // as it arrives
  Placement placement;  // the same
  uint32_t their_crc = 0;

  // A stream opens with the header and, if that says so, a placement. All give back the bytes moved.
  bool is_sent_open() const { return out.header_done >= opening_bytes(out.header); }
  bool is_received_open() const { return in.header_done >= opening_bytes(theirs); }
  size_t send_opening(bool more);
  /// Error when the header is damaged or is of another call than in.header; `group`: its name, for messages.
  size_t receive_opening(const std::string& group);

 private:
  static size_t opening_bytes(const Header& header) {
    return sizeof(Header) + (header.in_place ? sizeof(Placement) : 0);
  }
};

}  // namespace lockstep::dist
