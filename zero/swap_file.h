#pragma once
// A file for state that does not fit into memory. It is nameless (O_TMPFILE, or unlinked at once), so its space is
// freed when the process ends, however it ends. Opened with O_DIRECT where the file system supports it: the page cache
// would only hold a second copy of bytes that are read once per step.
#include <cstdint>
#include <string>

#include "dist/net.h"
#include "tensor/tensor.h"

namespace lockstep::zero {

inline constexpr int64_t file_block = 4096;  ///< offsets, sizes and addresses of requests are multiples of it
/// The next multiple of file_block.
inline int64_t round_to_block(int64_t bytes) { return (bytes + file_block - 1) / file_block * file_block; }

/// A file of fixed size.
class SwapFile {
 public:
  /// Creates the file and reserves its space. Error if the disk has too little space; it names the bytes needed and
  /// free. what: what the file contains, for error messages. write: also fill the file with zeros, so that a failing
  /// disk is found at once.
  SwapFile(const std::string& folder, std::string what, int64_t bytes, bool write);

  int descriptor() const { return file_.get(); }     ///< descriptor of the open file
  bool is_direct() const { return direct_; }         ///< true if the file was opened with O_DIRECT
  int64_t bytes() const { return bytes_; }           ///< size, a multiple of file_block
  const std::string& what() const { return what_; }  ///< "the optimizer state of rank 1 in /nvme"
  /// A part of the file as a tensor, mapped into memory, for occasional access. The kernel writes changed pages back
  /// before it reads past its cache, so a FileQueue sees them. Error if the file was truncated.
  Tensor map(int64_t offset, int64_t numel, DType dtype) const;

 private:
  dist::Fd file_;
  bool direct_ = true;
  int64_t bytes_;
  std::string what_;
};

/// Uninitialised, aligned memory for reading and writing files (Memory::offload). pin: lock it in memory, if the system
/// allows it. Error if there is no memory.
Tensor aligned_bytes(int64_t bytes, bool pin);

}  // namespace lockstep::zero
