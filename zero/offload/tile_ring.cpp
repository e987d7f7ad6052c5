// Reading ahead and writing behind. See tile_ring.h.
#include "zero/offload/tile_ring.h"

#include <algorithm>

#include "base/check.h"

namespace lockstep::zero {

TileRing::TileRing(FileQueue& queue, const OffloadOptimizer& o, int64_t bytes)
    : queue_(queue), options_(o), buffers_(size_t(o.buffer_count)) {
  for (FileBuffer& b : buffers_) b.bytes = aligned_bytes(bytes, o.pin_memory);
}

void TileRing::begin(std::vector<std::vector<Extent>> tiles) {
  tiles_ = std::move(tiles);
  next_ = read_ = 0;
  if (options_.pipeline_read) read_until(1);
}

/// Starts the reads of all tiles before `end`, after waiting for the writes from their buffers.
void TileRing::read_until(size_t end) {
  for (; read_ < std::min(end, tiles_.size()); ++read_) {
    FileBuffer& b = buffer(read_);
    b.wait();
    auto* const data = static_cast<std::byte*>(b.bytes.raw_data());
    for (const Extent& e : tiles_[read_])
      if (e.reads) b.transfers.push_back(queue_.read(*e.file, e.offset, data + e.at, e.bytes));
  }
}

const Tensor& TileRing::load() {
  LOCKSTEP_CHECK(next_ < tiles_.size(), "[offload] expected one of ", tiles_.size(),
                 " tiles, got one more; this is a bug in Lockstep, please report it");
  // One buffer holds this tile, and another may still be written to the file. The others are for the next tiles.
  const size_t ahead = options_.pipeline_read && buffers_.size() > 1 ? std::max<size_t>(1, buffers_.size() - 2) : 0;
  read_until(next_ + 1);
  buffer(next_).wait();
  read_until(next_ + 1 + ahead);
  return buffer(next_).bytes;
}

void TileRing::store() {
  FileBuffer& b = buffer(next_);
  const auto* const data = static_cast<const std::byte*>(b.bytes.raw_data());
  for (const Extent& e : tiles_[next_]) b.transfers.push_back(queue_.write(*e.file, e.offset, data + e.at, e.bytes));
  ++next_;
  if (!options_.pipeline_write) b.wait();
}

void TileRing::end() {
  for (FileBuffer& b : buffers_) b.wait();
}

}  // namespace lockstep::zero
