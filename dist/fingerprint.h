#pragma once
// What every message of a collective says about the call it belongs to. Ranks that disagree find out at the first
// message instead of computing garbage (torch 2.15 with gloo returns wrong sums silently).
#include <cstdint>
#include <string>

#include "dist/process_group.h"

namespace lockstep::dist {

/// Opens every stream of bytes that one collective sends to one peer. 128 bytes, little-endian, crc32c over the rest.
/// Ranks (`rank`, `root`) are ranks of the world, so that messages name the same rank whatever the group.
struct Header {
  static constexpr uint32_t magic_value = 0x4b534c31;  // "1LSK"
  uint32_t magic = magic_value;
  uint16_t protocol = 1;
  uint8_t kind = 0;  ///< Collective; a send meets a receive
  uint8_t dtype = 0;
  uint64_t job = 0;       ///< hash of job and group name
  uint64_t sequence = 0;  ///< number of the call in its group; send and receive: of the message in its direction
  int64_t count = 0;      ///< elements of the whole; 0 for gather and scatter, where only the root knows
  uint64_t tag = 0;       ///< hash of the tag
  uint64_t payload = 0;   ///< bytes that follow in this stream
  uint32_t rank = 0;      ///< sender
  uint8_t op = 0;         ///< ReduceOp
  uint8_t algorithm = 0;
  int16_t root = 0;          ///< or the other side of a send or receive
  uint16_t payload_crc = 0;  ///< 1: a crc32c follows the payload (LOCKSTEP_COMM_CHECKSUM=1); of messages: half of it
  uint8_t on_device = 0;     ///< 1: the tensor is on a device, and may be moved from there
  uint8_t in_place =
      0;  ///< 1: a Placement follows, and the payload only if some other rank's tensor is not in shared memory
  char tag_text[64] = {};  ///< the tag, cut to fit, so that the other side can name it
  uint32_t crc = 0;
};
static_assert(sizeof(Header) == 128);

/// The header of a call, without payload and crc. `rank`: of the world.
Header header_of(const Call& call, uint64_t job, uint64_t sequence, int rank);
void seal(Header& header);
/// DistError protocol: magic, version, or crc. `peer`: the world rank it came from.
void check_sealed(const Header& header, int peer);
/// DistError mismatch naming both sides when the headers are of different calls, or say different lengths.
void check_same(const Header& mine, const Header& theirs, const std::string& group);
/// Of a send or a receive.
inline bool is_message(const Header& header) {
  return header.kind == uint8_t(Collective::send) || header.kind == uint8_t(Collective::receive);
}
/// "all_reduce f32 x 8 sum, tag w1", "broadcast f32 x 8 from rank 2".
std::string describe(const Header& header);

/// FNV-1a, the same on every machine; `seed` chains.
uint64_t hash_text(std::string_view text, uint64_t seed = 0xcbf29ce484222325);
uint32_t crc32c(const void* data, size_t bytes, uint32_t seed = 0);

}  // namespace lockstep::dist
