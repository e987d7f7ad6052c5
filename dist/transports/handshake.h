#pragma once
// The wire format of the handshake of data connections; auth.h explains what it proves.
//
//   hello    "LSKDATA1", challenge (32)                                listener ──▶ caller
//   answer   number (32), proof (32), length (2), purpose (length)     caller ──▶ listener
//   reply    proof (32)                                                listener ──▶ caller; then the stream begins
//
// Numbers in brackets are bytes. It listens by a Listener (tcp.h); the caller is the rank that connects to it.
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/classic_text.h"
#include "dist/auth.h"

namespace lockstep::dist::handshake {

/// The first bytes of a hello.
inline constexpr std::string_view magic = "LSKDATA1";
/// Sizes in bytes: of a hello; of the number, proof and length at the beginning of an answer; of the longest purpose.
inline constexpr size_t hello_bytes = 8 + sizeof(Nonce), fixed_bytes = sizeof(Nonce) + sizeof(Proof) + 2,
                        longest_purpose = 2048;
/// Result of wanted() for an invalid answer.
inline constexpr size_t too_long = size_t(-1);

/// The bytes of a nonce or a proof, as a string.
inline std::string text_of_bytes(const auto& array) {
  return std::string(reinterpret_cast<const char*>(array.data()), array.size());
}

/// The listener's first message.
inline std::string hello(const Nonce& challenge) { return std::string(magic) + text_of_bytes(challenge); }
/// The listener's last message.
inline std::string reply(const Proof& proof) { return text_of_bytes(proof); }

/// The purpose of a connection. `what` names the group and the pair of ranks that the connection joins. Connections of
/// one pair (stripes) have the same `what`, and differ in `stripe`.
struct Purpose {
  std::string job, what;
  size_t stripe = 0, stripes = 0;
  std::string text() const {  ///< the purpose as four lines: job, what, stripe, stripes
    return job + '\n' + what + '\n' + std::to_string(stripe) + '\n' + std::to_string(stripes);
  }
};

/// The caller's message.
struct Answer {
  Nonce number{};
  Proof proof{};
  std::string purpose;
  std::string text() const {  ///< the answer as it is sent
    const size_t n = purpose.size();
    return text_of_bytes(number) + text_of_bytes(proof) + char(n & 255) + char(n >> 8) + purpose;
  }
};

/// Number of bytes that are still missing from an answer that begins with `heard`; too_long if its length is invalid.
inline size_t wanted(std::string_view heard) {
  if (heard.size() < fixed_bytes) return fixed_bytes - heard.size();
  const size_t length = uint8_t(heard[fixed_bytes - 2]) | size_t(uint8_t(heard[fixed_bytes - 1])) << 8;
  return length > longest_purpose ? too_long : fixed_bytes + length - heard.size();
}

/// Parses a complete answer.
inline Answer parse(std::string_view heard) {
  Answer answer;
  std::memcpy(answer.number.data(), heard.data(), sizeof(Nonce));
  std::memcpy(answer.proof.data(), heard.data() + sizeof(Nonce), sizeof(Proof));
  answer.purpose = heard.substr(fixed_bytes);
  return answer;
}

/// Parses Purpose::text(). `stripes` is 0 when the text is invalid.
inline Purpose parse_purpose(std::string_view text) {
  Purpose purpose;
  std::vector<std::string_view> lines;
  for (size_t begin = 0;;) {
    const size_t end = text.find('\n', begin);
    lines.push_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) break;
    begin = end + 1;
  }
  const auto number = [](std::string_view digits) {
    const size_t value = read_number<size_t>(digits).value_or(0);
    return value <= 64 ? value : 0;
  };
  if (lines.size() != 4) return purpose;
  purpose.job = lines[0];
  purpose.what = lines[1];
  purpose.stripe = number(lines[2]);
  purpose.stripes = number(lines[3]);
  return purpose;
}

}  // namespace lockstep::dist::handshake
