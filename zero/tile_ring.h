#pragma once
// A walk over tiles that lie in files, each read, changed by the caller and written back:
//
//   tile          0          1          2          3               buffer_count = 3 tiles in memory
//   read        ▓▓▓▓       ▓▓▓▓       ▓▓▓▓       ▓▓▓▓
//   compute          ████       ████       ████       ████
//   write                 ░░░░       ░░░░       ░░░░       ░░░░
//
// The reads of the tiles behind this one, and the writes of those before it, go on while the caller computes.
#include <cstdint>
#include <vector>

#include "zero/file_queue.h"

namespace lockstep::zero {

/// One run of bytes of a tile: where it lies in a file, and in the tile's buffer.
struct Extent {
  const SwapFile* file = nullptr;
  int64_t offset = 0, at = 0, bytes = 0;
  bool reads = true;  ///< false: what the file holds is not wanted
};

class TileRing {
 public:
  struct Options {
    int count = 4;      ///< buffers
    int64_t bytes = 0;  ///< of a buffer: of the largest tile
    bool pin = true, read_ahead = true, write_behind = true;
  };
  TileRing(FileQueue& queue, const Options& options);

  /// Starts a walk, with the first reads.
  void begin(std::vector<std::vector<Extent>> tiles);
  /// The next tile's bytes, until store().
  const Tensor& load();
  void store();
  /// After the last store(): all is written. Errors of reads and writes come out of any of these.
  void end();

 private:
  FileBuffer& buffer(size_t tile) { return buffers_[tile % buffers_.size()]; }
  void read_until(size_t tile);

  FileQueue& queue_;
  const Options options_;
  std::vector<FileBuffer> buffers_;
  std::vector<std::vector<Extent>> tiles_;
  size_t next_ = 0, read_ = 0;  // the tile that load() gives, and the first that nobody has started to read
};

}  // namespace lockstep::zero
