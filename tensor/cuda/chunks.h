#pragma once
// Lines cut into chunks, for kernels that would otherwise have too few lines to fill a device.
#include <algorithm>

#include "tensor/lines.h"

namespace lockstep::on_cuda {

/// The number of chunks of each line, and their length. Work item i is chunk i / lines of line i % lines.
struct Chunks {
  int64_t count = 1, length = 1;
};
/// Divides each line into chunks, at most one chunk per `least` elements. `sharers` threads work on each chunk.
inline Chunks cut(const Lines& lines, int64_t sharers, int64_t least) {
  constexpr int64_t wanted = 1 << 17;  // threads that fill a large device
  Chunks chunks;
  chunks.count = std::clamp<int64_t>(wanted / (lines.count() * sharers), 1,
                                     std::min<int64_t>(1024, (lines.n + least - 1) / least));
  chunks.length = (lines.n + chunks.count - 1) / chunks.count;
  chunks.count = (lines.n + chunks.length - 1) / chunks.length;
  return chunks;
}

}  // namespace lockstep::on_cuda
