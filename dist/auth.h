#pragma once
// Mutual authentication of two peers that share the job's token, without sending it: HMAC-SHA-256 over fresh random
// numbers from both sides. Used by the store and by data connections.
//
//   listener ──▶ caller     challenge         a fresh random number, so that a recorded proof cannot be replayed
//   caller ──▶ listener     number, proof     prove(token, "rank", challenge, number, context)
//   listener ──▶ caller     proof             prove(token, "store", challenge, number, context)
//
// `context` binds the proof to the purpose of the connection. An empty token is allowed on loopback only.
#include <array>
#include <cstdint>
#include <string_view>

namespace lockstep::dist {

/// A random number that is used once.
using Nonce = std::array<uint8_t, 32>;
/// An HMAC-SHA-256 tag.
using Proof = std::array<uint8_t, 32>;

/// A nonce from the system's random numbers. Error when libsodium cannot start.
Nonce random_nonce();
/// HMAC-SHA-256 with key `token` over role, challenge, number and context.
Proof prove(std::string_view token, std::string_view role, const Nonce& challenge, const Nonce& number,
            std::string_view context);
/// True if two proofs are equal. Takes constant time, so that the time does not tell how many bytes agree.
bool same_proof(const Proof& a, const Proof& b);

}  // namespace lockstep::dist
