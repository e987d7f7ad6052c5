#pragma once
// The shared memory of the running block: its arrays are separated by red zones, so writes outside an array are
// detected.
#include <cstddef>
#include <vector>

#include "tests/cudasim/block.h"

namespace simt {

/// Allocates the shared arrays of a block.
class SharedMemory {
 public:
  SharedMemory();
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;

  /// Starts a launch with this many bytes of dynamic shared memory.
  void begin_grid(size_t dynamic_bytes) { dynamic_bytes_ = dynamic_bytes; }
  /// Frees the arrays. False if the block wrote outside of them; with AddressSanitizer such a write stops the program
  /// instead.
  bool end_block();
  /// The array with this key, allocated when a thread first asks for it. A fault if there is not enough shared memory.
  void* array(const void* key, size_t bytes, size_t align, const char* name);
  /// The dynamic array. A fault if the launch requested none.
  void* dynamic_array();
  const unsigned char* arena() const { return arena_; }
  /// True if p is in the part in use.
  bool contains(const void* p) const { return p >= arena_ && p < arena_ + used_; }

 private:
  void* allocate(size_t bytes, size_t align, const char* name);

  struct Array {
    const void* key;
    void* data;
  };
  unsigned char* arena_;
  size_t used_ = 0, filled_ = 0, dynamic_bytes_ = 0, static_bytes_ = 0;
  void* dynamic_ = nullptr;
  std::vector<Array> arrays_;
  std::vector<size_t> gaps_;  // begin and end of each red zone, whose bits must stay set
};

}  // namespace simt
