#pragma once
// The header that every message of a collective carries: a fingerprint of the call. Ranks that disagree about a call
// detect it at the first message instead of computing garbage (torch 2.15 with gloo silently returns wrong sums).
#include <cstdint>
#include <span>
#include <string>

#include "dist/process_group.h"

namespace lockstep::dist {

/// The first 128 bytes of every stream that a collective sends to a peer: little-endian, with a crc32c of the header.
/// Ranks (`rank`, `root`) are world ranks, so that error messages name the same rank in every group.
struct Header {
  static constexpr uint32_t magic_value = 0x4b534c31;  // "1LSK"
  uint32_t magic = magic_value;
  uint16_t protocol = 2;
  uint8_t kind = 0;  ///< a Collective; the kinds of both sides are equal, or send and receive
  uint8_t dtype = 0;
  uint64_t job = 0;       ///< hash of the job's name and the group's id
  uint64_t sequence = 0;  ///< number of the call in its group; send and receive: of the message, per peer and direction
  int64_t count = 0;      ///< elements of the whole tensor; 0 for gather and scatter, where only the root knows it
  uint64_t tag = 0;       ///< hash of the tag
  uint64_t payload = 0;   ///< payload bytes that follow in this stream
  uint32_t rank = 0;      ///< world rank of the sender
  uint32_t algorithm = 0;  ///< hash_of() its name
  uint8_t op = 0;          ///< ReduceOp
  uint8_t on_device = 0;   ///< 1: the tensor is on a device, and NCCL may move it from there
  int16_t root = 0;        ///< world rank of the root, or of the other side of a send or receive
  /// 0 unless LOCKSTEP_COMM_CHECKSUM=1. In a collective, 1: the payload's crc32c follows the payload. In a send or
  /// receive: the low 16 bits of the payload's crc32c.
  uint16_t payload_crc = 0;
  uint8_t in_place = 0;    ///< 1: a SegmentRange follows, then the payload if a tensor is not in shared memory
  char tag_text[61] = {};  ///< the tag, truncated, so that the other side can print it
  uint32_t crc = 0;
};
static_assert(sizeof(Header) == 128);

/// One message to send or to receive.
struct Message {
  bool is_send = true;
  int peer = 0;  ///< rank in the group
  std::span<std::byte> data;
  Header header;  ///< the header to send, or the one expected from the peer
};

/// The low half of the hash of an algorithm's name. Unlike its number it is the same in every build.
uint32_t hash_of(Algorithm algorithm);
/// Returns the header of a call that world rank `rank` makes. The fields `payload` and `crc` are not set yet.
Header header_of(const Call& call, uint64_t job, uint64_t sequence, int rank);
/// Computes the header's crc. Call it after all other fields are set.
void seal(Header& header);
/// Throws DistError (protocol) if the header has a wrong magic number, version or crc. `peer`: the sender's world rank.
void check_sealed(const Header& header, int peer);
/// Throws DistError (mismatch), which describes both calls, if the headers belong to different calls or announce
/// different numbers of payload bytes. Throws DistError (protocol) if they belong to different groups.
void check_same(const Header& mine, const Header& theirs, const std::string& group);
/// True for the header of a send or a receive.
inline bool is_message(const Header& header) {
  return header.kind == uint8_t(Collective::send) || header.kind == uint8_t(Collective::receive);
}
/// Text of a header: "all_reduce f32 x 8 sum, tag w1", "broadcast f32 x 8 from rank 2".
std::string describe(const Header& header);

/// FNV-1a hash, the same on every machine. `seed`: the hash of preceding text.
uint64_t hash_text(std::string_view text, uint64_t seed = 0xcbf29ce484222325);
/// CRC-32C (Castagnoli). `seed`: the checksum of preceding data.
uint32_t crc32c(const void* data, size_t bytes, uint32_t seed = 0);

}  // namespace lockstep::dist
