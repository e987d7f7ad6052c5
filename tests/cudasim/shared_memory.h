#pragma once
// The shared memory of the block that runs: its arrays lie apart from each other, and what a kernel writes between them
// is noticed.
#include <cstddef>
#include <vector>

#include "tests/cudasim/block.h"

namespace simt {

class SharedMemory {
 public:
  SharedMemory();
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;

  /// The launch of the blocks that come asked for so many bytes of the dynamic array.
  void begin_grid(size_t dynamic_bytes) { dynamic_bytes_ = dynamic_bytes; }
  /// Forgets the arrays. False where the block wrote outside them; AddressSanitizer stops it at that write instead.
  bool end_block();
  /// The array with this key, made when a thread first asks. A fault when it is more than there is.
  void* array(const void* key, size_t bytes, size_t align, const char* name);
  /// The dynamic array. A fault when the launch asked for none.
  void* dynamic_array();
  const unsigned char* arena() const { return arena_; }
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
  std::vector<size_t> gaps_;  // where those before an array begin and end; all bits set, which a kernel must leave
};

}  // namespace simt
