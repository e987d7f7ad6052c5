#pragma once
// A file for state that does not fit into memory. The file is unnamed (O_TMPFILE, or unlinked at once), so its space
// is freed when the process ends, even in a crash. It is opened with O_DIRECT where the file system supports that: the
// page cache would only hold a second copy of bytes that are read once per step.
#include <cstdint>
#include <string>

#include "dist/net.h"
#include "tensor/tensor.h"

namespace lockstep::zero {

inline constexpr int64_t file_block = 4096;  ///< offsets, sizes and addresses of requests are multiples of this
/// The next multiple of file_block.
inline int64_t round_to_block(int64_t bytes) { return (bytes + file_block - 1) / file_block * file_block; }

/// A file of fixed size.
class SwapFile {
 public:
  /// Creates the file and reserves its space. If the disk has too little, the Error says how many bytes are needed and
  /// how many are free. what: a name of the contents, for error messages. write_zeros: true also fills the file with
  /// zeros, so that a failing disk is found at once.
  SwapFile(const std::string& folder, std::string what, int64_t bytes, bool write_zeros);

  int descriptor() const { return file_.get(); }     ///< descriptor of the open file
  bool is_direct() const { return direct_; }         ///< true if the file was opened with O_DIRECT
  int64_t bytes() const { return bytes_; }           ///< size, a multiple of file_block
  const std::string& what() const { return what_; }  ///< "the optimizer state of rank 1 in /nvme"
  /// A part of the file as a tensor, mapped into memory, for occasional access. Before a direct read the kernel writes
  /// changed pages of the mapping back, so a FileQueue reads the changed bytes. Error if the file was truncated.
  Tensor map(int64_t offset, int64_t numel, DType dtype) const;

 private:
  dist::Fd file_;
  bool direct_ = true;
  int64_t bytes_;
  std::string what_;
};

/// Uninitialised, aligned memory for reading and writing files (Memory::offload). lock: lock it in memory (mlock), if
/// the system allows it. Error if there is no memory.
Tensor aligned_bytes(int64_t bytes, bool lock);

}  // namespace lockstep::zero
