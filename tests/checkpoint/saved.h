#pragma once
// For tests that damage checkpoints: two that are saved, and their files.
#include "tests/checkpoint/util.h"

namespace lockstep::checkpoints {

/// Two checkpoints by 3 ranks each: "old" of version 1 and "new" of version 2.
struct Saved {
  Saved() {
    for (int v = 1; v <= 2; ++v)
      dist::spawn(3, [&](int rank) {
        save(dir.str(), v == 1 ? "old" : "new", contents_of(Cut::flat, 3, rank, v), &dist::world(), {.calls = &calls});
      });
  }
  std::string file(const std::string& name) const { return dir / ("new/" + name); }
  FaultyCalls calls;
  TempDir dir;
};

/// The files of the ranks.
inline const char* const rank_files[] = {"rank-00000.safetensors", "rank-00001.safetensors", "rank-00002.safetensors"};

/// The content of a file.
inline std::string content(const std::string& path) { return data::read_file(path, 1 << 24); }
/// Writes a file.
inline void put(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

}  // namespace lockstep::checkpoints
