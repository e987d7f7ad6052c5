#pragma once
// BLAKE2b with 256 bits, as `b2sum -l 256` computes it.
#include <memory>
#include <string>

#include "data/files.h"

namespace lockstep::checkpoints {

/// Computes a hash incrementally.
class Hash {
 public:
  Hash();
  ~Hash();
  void update(data::Bytes bytes);  ///< appends bytes
  /// Returns the hash as 64 hexadecimal digits. May be called once.
  std::string hex();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string hash_of(data::Bytes bytes);  ///< hash of all bytes
/// 16 random hexadecimal digits.
std::string random_id();

}  // namespace lockstep::checkpoints
