#pragma once
// Streams tiles through memory: each tile is read from files, changed by the caller, and written back. Reads of later
// tiles and writes of earlier ones overlap with the caller's computation:
//
//   time      ──▶
//   read      tile 0   tile 1   tile 2   tile 3
//   compute            tile 0   tile 1   tile 2   tile 3
//   write                       tile 0   tile 1   tile 2   tile 3        3 buffers: three tiles in memory at a time
#include <cstdint>
#include <vector>

#include "zero/offload/file_queue.h"

namespace lockstep::zero {

/// A run of bytes of a tile: its offsets in a file and in the tile's buffer.
struct Extent {
  const SwapFile* file = nullptr;
  int64_t offset = 0, at = 0, bytes = 0;
  bool reads = true;  ///< true: read the bytes from the file; false: write them only
};

/// A ring of buffers for tiles.
class TileRing {
 public:
  /// `queue` must outlive the ring. bytes: size of each buffer, which is that of the largest tile.
  TileRing(FileQueue& queue, const OffloadOptimizer& options, int64_t bytes);

  /// Begins a pass over the tiles, and starts the first reads.
  void begin(std::vector<std::vector<Extent>> tiles);
  /// The bytes of the next tile, valid until store(). Error after the last tile.
  const Tensor& load();
  void store();  ///< starts to write the tile back
  /// Ends the pass: waits until everything is written. begin(), load(), store() and end() throw Errors of reads and
  /// writes.
  void end();

 private:
  FileBuffer& buffer(size_t tile) { return buffers_[tile % buffers_.size()]; }
  void read_until(size_t tile);

  FileQueue& queue_;
  const OffloadOptimizer options_;
  std::vector<FileBuffer> buffers_;
  std::vector<std::vector<Extent>> tiles_;
  size_t next_ = 0, read_ = 0;  // next_: the tile that load() returns; read_: the first tile whose read has not started
};

}  // namespace lockstep::zero
