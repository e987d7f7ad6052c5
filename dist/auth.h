#pragma once
// Proof that a peer knows the job's token, without sending it: HMAC-SHA-256 over fresh random numbers of both sides.
// Used by the store and by data connections.
//
//   listener -> caller:  challenge           a number that is used once, so that no old proof can be replayed
//   caller -> listener:  number, proof       prove(token, "rank", challenge, number, context)
//   listener -> caller:  proof               prove(token, "store", challenge, number, context): the listener knows it
//   too
//
// `context` binds the proof to what the connection is for. An empty token proves nothing; it is for loopback only.
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::dist {

using Nonce = std::array<uint8_t, 32>;
using Proof = std::array<uint8_t, 32>;

Nonce random_nonce();
/// A fresh secret: 32 random bytes as 64 hexadecimal digits.
std::string random_token();
Proof prove(std::string_view token, std::string_view role, const Nonce& challenge, const Nonce& number,
            std::string_view context);
/// Compares in constant time.
bool same_proof(const Proof& a, const Proof& b);

}  // namespace lockstep::dist
