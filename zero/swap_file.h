#pragma once
// A file that holds what memory does not. It has no name from the start (O_TMPFILE, or unlinked at once), so its bytes
// are given back when the process ends, however it ends. O_DIRECT where the file system knows it: the page cache would
// only keep twice what is read once a step.
#include <cstdint>
#include <string>

#include "dist/net.h"
#include "tensor/tensor.h"

namespace lockstep::zero {

inline constexpr int64_t file_block = 4096;  ///< offsets, sizes and addresses of requests are multiples of it
inline int64_t round_to_block(int64_t bytes) { return (bytes + file_block - 1) / file_block * file_block; }

class SwapFile {
 public:
  /// Reserves the room; Error with what is needed and what is free. `what` it holds, for messages. write: also writes
  /// zeros everywhere, so that a disk that cannot is found at once.
  SwapFile(const std::string& folder, std::string what, int64_t bytes, bool write);

  int descriptor() const { return file_.get(); }
  bool is_direct() const { return direct_; }
  int64_t bytes() const { return bytes_; }
  const std::string& what() const { return what_; }  ///< "the optimizer state of rank 1 in /nvme"
  /// A part of the file as a tensor, whose pages come and go as they are used: for what happens seldom. The kernel
  /// writes changed pages before it reads the file past its cache, so a FileQueue sees them. Error when the file is
  /// shorter than it was made.
  Tensor map(int64_t offset, int64_t numel, DType dtype) const;

 private:
  dist::Fd file_;
  bool direct_ = true;
  int64_t bytes_;
  std::string what_;
};

/// Uninitialised bytes that a file can be read into, Memory::offload. pin: locked in memory, when the system allows it.
Tensor aligned_bytes(int64_t bytes, bool pin);

}  // namespace lockstep::zero
