// fingerprint.cpp: makes, compares and prints the headers of messages, and computes checksums. See fingerprint.h.
#include "dist/fingerprint.h"

#if defined(__SSE4_2__)
#include <nmmintrin.h>
#endif

#include <algorithm>
#include <array>
#include <cstring>

#include "dist/schedule.h"

namespace lockstep::dist {
namespace {

constexpr bool is_send_or_receive(Collective kind) { return kind == Collective::send || kind == Collective::receive; }
bool same_kind(const Header& a, const Header& b) {
  const auto x = Collective(a.kind), y = Collective(b.kind);
  return is_send_or_receive(x) ? is_send_or_receive(y) && x != y : x == y;
}

// True if two ranks make the same call. `root` is not compared for send and receive: there it names the other rank.
bool same_call(const Header& a, const Header& b) {
  return a.job == b.job && a.sequence == b.sequence && same_kind(a, b) && a.count == b.count && a.dtype == b.dtype &&
         a.op == b.op && a.tag == b.tag && a.algorithm == b.algorithm && a.on_device == b.on_device &&
         (is_send_or_receive(Collective(a.kind)) || a.root == b.root);
}

// True if the algorithm is `automatic`, or one that `automatic` may choose. describe() does not print such names.
bool is_default(const Header& h) {
  return h.algorithm == hash_of(Algorithm::automatic) || h.algorithm == hash_of(Algorithm::direct) ||
         h.algorithm == hash_of(Algorithm::one_shot);
}

// The sender's build may have algorithms that this one lacks.
std::string_view name_of_algorithm(const Header& h) {
  if (h.algorithm == hash_of(Algorithm::automatic)) return name_of(Algorithm::automatic);
  for (const Algorithm a : all_algorithms())
    if (h.algorithm == hash_of(a)) return name_of(a);
  return "an unknown algorithm";
}

#if !defined(__SSE4_2__)
// Castagnoli's polynomial in reflected form; eight tables process eight bytes at a time.
constexpr auto crc_tables = [] {
  std::array<std::array<uint32_t, 256>, 8> tables{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ (value & 1 ? 0x82f63b78u : 0u);
    tables[0][i] = value;
  }
  for (size_t t = 1; t < 8; ++t)
    for (size_t i = 0; i < 256; ++i) tables[t][i] = (tables[t - 1][i] >> 8) ^ tables[0][tables[t - 1][i] & 255];
  return tables;
}();
#endif

}  // namespace

uint64_t hash_text(std::string_view text, uint64_t seed) {
  for (const char c : text) seed = (seed ^ uint8_t(c)) * 0x100000001b3;
  return seed;
}

uint32_t crc32c(const void* data, size_t bytes, uint32_t seed) {
  const auto* p = static_cast<const unsigned char*>(data);
  uint64_t crc = ~seed;
  for (; bytes >= 8; bytes -= 8, p += 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
#if defined(__SSE4_2__)
    crc = _mm_crc32_u64(crc, word);
  }
  for (; bytes > 0; --bytes) crc = _mm_crc32_u8(uint32_t(crc), *p++);
#else
    word ^= crc;
    crc = 0;
    for (size_t t = 0; t < 8; ++t) crc ^= crc_tables[7 - t][word >> (8 * t) & 255];
  }
  for (; bytes > 0; --bytes) crc = (crc >> 8) ^ crc_tables[0][(crc ^ *p++) & 255];
#endif
  return ~uint32_t(crc);
}

uint32_t hash_of(Algorithm algorithm) { return uint32_t(hash_text(name_of(algorithm))); }

Header header_of(const Call& call, uint64_t job, uint64_t sequence, int rank) {
  Header header;
  header.kind = uint8_t(call.collective);
  header.dtype = uint8_t(call.dtype);
  header.job = job;
  header.sequence = sequence;
  header.count = call.count;
  header.tag = hash_text(call.tag);
  header.rank = uint32_t(rank);
  header.op = is_reduction(call.collective) ? uint8_t(call.op) : 0;
  header.algorithm = hash_of(call.algorithm);
  header.root = int16_t(call.world_root);
  header.on_device = call.work != nullptr;
  std::memcpy(header.tag_text, call.tag.data(), std::min(call.tag.size(), sizeof header.tag_text));
  return header;
}

void seal(Header& header) { header.crc = crc32c(&header, offsetof(Header, crc)); }

void check_sealed(const Header& header, int peer) {
  const auto refuse = [&](const std::string& what) {
    throw DistError(Fault::protocol, peer,
                    str("[collective] damaged header from rank ", peer, ": ", what,
                        "; expected the header of a collective of this job. ",
                        "The link, or its memory, corrupts data: test both"));
  };
  if (header.magic != Header::magic_value) refuse(str("magic number is ", header.magic, ", not ", Header::magic_value));
  if (header.crc != crc32c(&header, offsetof(Header, crc))) refuse("its checksum does not match");
  if (header.protocol != Header().protocol)
    throw DistError(Fault::protocol, peer,
                    str("[collective] rank ", peer, " sent a header of protocol version ", header.protocol,
                        ", this build speaks ", Header().protocol, "; run the same build on all ranks"));
}

std::string describe(const Header& header) {
  const auto kind = Collective(header.kind);
  if (header.kind > uint8_t(Collective::replay) || header.dtype > uint8_t(boolean) ||
      header.op > uint8_t(ReduceOp::max))
    return "something unknown";
  std::string text(name_of(kind));
  if (kind == Collective::replay) return describe_replay(header.count);
  if (kind != Collective::barrier) text += str(" ", lockstep::name_of(DType(header.dtype)));
  // In gather and scatter, only the root knows the total count.
  if (kind != Collective::barrier && kind != Collective::gather && kind != Collective::scatter)
    text += str(" x ", header.count);
  if (is_reduction(kind)) text += str(" ", name_of(ReduceOp(header.op)));
  const bool outward = kind == Collective::send || kind == Collective::reduce || kind == Collective::gather;
  if (has_root(kind) || is_send_or_receive(kind)) text += str(outward ? " to rank " : " from rank ", header.root);
  if (!is_default(header)) text += str(" by ", name_of_algorithm(header));
  if (header.tag_text[0]) {
    const size_t length = strnlen(header.tag_text, sizeof header.tag_text);
    text += ", tag " + std::string(header.tag_text, length) + (length == sizeof header.tag_text ? "..." : "");
  }
  return text;
}

void check_same(const Header& mine, const Header& theirs, const std::string& group) {
  if (same_call(mine, theirs) && mine.payload == theirs.payload) return;
  const Header& first = mine.rank < theirs.rank ? mine : theirs;
  const Header& second = mine.rank < theirs.rank ? theirs : mine;
  if (mine.job != theirs.job) {
    throw DistError(Fault::protocol, int(theirs.rank),
                    str("[", name_of(Collective(mine.kind)), "] rank ", theirs.rank,
                        " sent a header of a different job or group than ", group,
                        "; expected ranks that make the same groups in the same order"));
  }
  if (same_call(mine, theirs)) {
    throw DistError(
        Fault::mismatch, -1,
        str("[", name_of(Collective(mine.kind)), "] ranks disagree in group ", group, ", call ", mine.sequence, " (",
            describe(mine), "): rank ", mine.rank, " expects ", mine.payload, " bytes from rank ", theirs.rank,
            ", which sends ", theirs.payload, "; pass tensors of matching sizes"));
  }
  const bool unnamed =
      is_default(mine) && is_default(theirs) && mine.algorithm != theirs.algorithm && mine.count == theirs.count;
  // If both calls have the same sequence number, print it once; otherwise print the number of each rank.
  const auto side = [&](const Header& h) {
    const char* where = mine.on_device == theirs.on_device ? "" : h.on_device ? " on a device" : " on the CPU";
    return str("rank ", h.rank, " calls ", describe(h), where,
               unnamed ? str(" by ", name_of_algorithm(h)) : std::string(),
               mine.sequence == theirs.sequence ? std::string() : str(" as call ", h.sequence));
  };
  const std::string call = mine.sequence == theirs.sequence ? str(", call ", mine.sequence) : std::string();
  throw DistError(Fault::mismatch, -1,
                  str("[", name_of(Collective(mine.kind)), "] ranks disagree in group ", group, call, ": ", side(first),
                      "; ", side(second), "; all ranks must make the same calls in the same order"));
}

}  // namespace lockstep::dist
