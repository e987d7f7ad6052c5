#pragma once
// BLAKE2b with 256 bits, as `b2sum -l 256` computes it.
#include <cstdint>
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
  alignas(64) unsigned char state_[384];
};

std::string hash_of(data::Bytes bytes);
/// Random hexadecimal digits.
std::string random_id();

}  // namespace lockstep::checkpoints
