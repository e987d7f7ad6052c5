// auth.cpp: HMAC proofs and random numbers, by libsodium. See auth.h.
#include "dist/auth.h"

#include <sodium.h>

#include "base/check.h"
#include "dist/control.h"

namespace lockstep::dist {
namespace {

void require_sodium() {
  LOCKSTEP_CHECK(sodium_init() >= 0,
                 "[auth] expected libsodium to start, got an error: the system has no source of random numbers; "
                 "make /dev/urandom readable");
}

}  // namespace

Nonce random_nonce() {
  require_sodium();
  Nonce nonce;
  randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

std::string random_token() {
  const Nonce bytes = random_nonce();
  std::string text(2 * bytes.size() + 1, '\0');
  sodium_bin2hex(text.data(), text.size(), bytes.data(), bytes.size());
  text.pop_back();
  return text;
}

Proof prove(std::string_view token, std::string_view role, const Nonce& challenge, const Nonce& number,
            std::string_view context) {
  require_sodium();
  static_assert(sizeof(Proof) == crypto_auth_hmacsha256_BYTES);
  crypto_auth_hmacsha256_state state;
  const auto bytes = [](std::string_view text) { return reinterpret_cast<const unsigned char*>(text.data()); };
  // Hash the length of `role` first: without it, another role and challenge could give the same sequence of bytes.
  const uint8_t role_size = uint8_t(role.size());
  crypto_auth_hmacsha256_init(&state, bytes(token), token.size());
  crypto_auth_hmacsha256_update(&state, &role_size, 1);
  crypto_auth_hmacsha256_update(&state, bytes(role), role.size());
  crypto_auth_hmacsha256_update(&state, challenge.data(), challenge.size());
  crypto_auth_hmacsha256_update(&state, number.data(), number.size());
  crypto_auth_hmacsha256_update(&state, bytes(context), context.size());
  Proof proof;
  crypto_auth_hmacsha256_final(&state, proof.data());
  return proof;
}

bool same_proof(const Proof& a, const Proof& b) { return sodium_memcmp(a.data(), b.data(), a.size()) == 0; }

}  // namespace lockstep::dist
