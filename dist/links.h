#pragma once
// The state of the streams between this rank and its peers: their progress, their headers, and the order in which
// blocks pass through them (executor.h).
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

/// Size of a block: a multiple of every element size. It must be equal on all ranks: sender and receiver compute the
/// order of the blocks from it.
inline constexpr size_t block_bytes = 64 << 10;

/// Visits the blocks of a stream's transfers, wave by wave. Block number b of a transfer belongs to wave b + s, where s
/// is the step of the transfer (executor.h).
struct Cursor {
  std::span<const uint32_t> list;
  size_t low = 0, at = 0;  // list[low ..] may still have blocks; list[at] is next in this wave
  int64_t wave = 0;
  size_t block = 0;  // the current block of list[at]

  /// Finds the next block: searches the current wave from transfer list[at] on, then later waves. Returns false when no
  /// block is left. `max_blocks`: number of blocks of the longest chunk.
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

/// Sends as many of the remaining `bytes - done` bytes as the channel accepts. Returns the number of bytes sent, after
/// adding it to `done`.
size_t send_rest(Channel& channel, const void* from, size_t bytes, size_t& done, bool more = false);
/// Receives those of the remaining `bytes - done` bytes that have arrived. Returns their number, and adds it to `done`.
size_t receive_rest(Channel& channel, void* to, size_t bytes, size_t& done);

/// Called when the peer has gone: looks at the bytes left in the channel. Throws DistError mismatch if these bytes are
/// the header of a call that disagrees with `mine`. `awaited`: true if the peer's header is still missing.
void check_what_is_left(Channel& channel, const Header& mine, const std::string& group, bool awaited);

/// One direction of the traffic with a peer.
struct LinkStream {
  Cursor cursor;
  Header header;
  SegmentRange placement;  // follows the header if header.in_place is set
  uint32_t crc = 0;
  size_t header_done = 0, trailer_done = 0;
  bool has_trailer = false, has_block = false, finished = true;
};

/// The traffic with one peer, in both directions.
struct PeerLink {
  Channel* channel = nullptr;
  int rank = -1, world_rank = -1;
  LinkStream out, in;      // in.header: the expected header
  Header theirs;           // the peer's header, as far as it has arrived
  SegmentRange placement;  // the peer's placement
  uint32_t their_crc = 0;

  // The opening of a stream: its header, and after it the tensor's SegmentRange if header.in_place is set.
  /// True once this rank has sent its header and placement.
  bool is_sent_open() const { return out.header_done >= opening_bytes(out.header); }
  /// True once the header and the placement have arrived.
  bool is_received_open() const { return in.header_done >= opening_bytes(theirs); }
  /// Sends as much of the opening as the channel accepts; returns the bytes sent. `more`: true if payload follows.
  size_t send_opening(bool more);
  /// Receives what has arrived of the opening; returns the bytes received. DistError when the header is damaged or
  /// belongs to another call than in.header. `group`: the group's name, for messages.
  size_t receive_opening(const std::string& group);

 private:
  static size_t opening_bytes(const Header& header) {
    return sizeof(Header) + (header.in_place ? sizeof(SegmentRange) : 0);
  }
};

}  // namespace lockstep::dist
