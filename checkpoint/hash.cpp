// BLAKE2b hashes by libsodium. See hash.h.
#include "checkpoint/hash.h"

#include <sodium.h>

#include "base/check.h"

namespace lockstep::checkpoints {
namespace {

constexpr size_t bytes_of_hash = 32;

std::string hex_of(const unsigned char* bytes, size_t size) {
  std::string text(2 * size + 1, '\0');
  sodium_bin2hex(text.data(), text.size(), bytes, size);
  text.pop_back();
  return text;
}

void require_sodium() {
  LOCKSTEP_CHECK(sodium_init() >= 0,
                 "[checkpoint] expected libsodium to start, got an error: the system has no source of random numbers; "
                 "make /dev/urandom readable");
}

}  // namespace

struct Hash::State {
  crypto_generichash_state blake;
};

Hash::Hash() : state_(std::make_unique<State>()) {
  require_sodium();
  crypto_generichash_init(&state_->blake, nullptr, 0, bytes_of_hash);
}

Hash::~Hash() = default;

void Hash::update(data::Bytes bytes) {
  crypto_generichash_update(&state_->blake, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
}

std::string Hash::hex() {
  unsigned char result[bytes_of_hash];
  crypto_generichash_final(&state_->blake, result, sizeof result);
  return hex_of(result, sizeof result);
}

std::string hash_of(data::Bytes bytes) {
  Hash hash;
  hash.update(bytes);
  return hash.hex();
}

std::string random_id() {
  require_sodium();
  unsigned char bytes[8];
  randombytes_buf(bytes, sizeof bytes);
  return hex_of(bytes, sizeof bytes);
}

}  // namespace lockstep::checkpoints
