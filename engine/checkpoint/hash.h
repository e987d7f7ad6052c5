#pragma once
// BLAKE2b with 256 bits, as `b2sum -l 256` computes it.
#include <sodium.h>

#include <string>

#include "data/files.h"

namespace lockstep::checkpoints {

class Hash {
 public:
  Hash();
  void update(data::Bytes bytes);
  /// 64 hexadecimal digits. Once.
  std::string hex();

 private:
  crypto_generichash_state state_;
};

std::string hash_of(data::Bytes bytes);
/// Random hexadecimal digits.
std::string random_id();

}  // namespace lockstep::checkpoints
