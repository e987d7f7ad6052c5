#pragma once
// For tests of checkpoints: temporary folders, a small model in many pieces, and file calls that fail.
#include <doctest/doctest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "dist/shard.h"
#include "tensor/ops.h"
#include "tests/faulty_calls.h"
#include "tests/messages.h"
#include "tests/ranks.h"
#include "tests/temp_dir.h"

namespace lockstep::checkpoints {

#if defined(__SANITIZE_THREAD__)
/// True under ThreadSanitizer, which is slow.
inline constexpr bool thread_sanitized = true;
#else
inline constexpr bool thread_sanitized = false;
#endif

namespace fs = std::filesystem;
using testing::TempDir;

/// The model's tensors: odd sizes, every dtype, an empty one, a single element, and a name that is not ASCII.
struct Entry {
  const char* name;
  Shape shape;
  DType dtype;
};
/// The tensors of the model.
inline const std::vector<Entry>& small_model() {
  static const std::vector<Entry> entries = {{"model.h.0.attn.weight", {13, 7}, f32},
                                             {"model.h.0.attn.bias", {13}, bf16},
                                             {"model.empty", {0, 3}, f32},
                                             {"model.scale", {}, f64},
                                             {"model.mask", {5, 1}, boolean},
                                             {"optimizer.exp_avg.h.0.attn.weight", {13, 7}, f16},
                                             {"model.größe", {1}, i32},
                                             {"data.order", {3, 3}, i64},
                                             {"model.table", {17}, u8},
                                             {"model.codes", {2, 3, 1}, i8}};
  return entries;
}

/// A byte of element `i` of a tensor in version `v` of the model; 0 or 1 for bool.
inline std::byte byte_at(const Entry& e, int64_t i, int v) {
  uint64_t x = uint64_t(i) * 0x9e3779b97f4a7c15u + uint64_t(v) * 0xbf58476d1ce4e5b9u + std::hash<std::string>()(e.name);
  x ^= x >> 29;
  return std::byte(e.dtype == boolean ? x & 1 : x & 255);
}
/// A tensor on the CPU whose values are not initialized.
inline Tensor bytes_tensor(int64_t elements, DType dtype) {
  return Tensor(Storage::allocate(elements * size_of(dtype), cpu), 0, {elements}, {1}, dtype);
}
/// Elements [begin, end) of version `v`; uninitialized if v < 0.
inline Piece make_piece(const Entry& e, int64_t begin, int64_t end, int v) {
  Piece p{e.name, e.shape, e.dtype, begin, end, bytes_tensor(end - begin, e.dtype)};
  auto* bytes = begin == end ? nullptr : static_cast<std::byte*>(p.tensor.raw_data());
  for (int64_t i = 0; i < (end - begin) * size_of(e.dtype); ++i)
    bytes[i] = v < 0 ? std::byte(0) : byte_at(e, begin * size_of(e.dtype) + i, v);
  return p;
}

/// Saves one checkpoint and returns when it is complete.
inline void save(const std::string& dir, const std::string& tag, const Contents& contents,
                 dist::ProcessGroup* group = nullptr, const SaveOptions& options = {}) {
  Saver saver(dir, group, options);
  saver.save(tag, contents);
  saver.wait();
}

/// How the model is distributed over ranks: replicated; one flat list cut into shards (ZeRO); whole tensors assigned in
/// turn (a pipeline); or mixed: parameters replicated, the rest in shards that two ranks each hold.
enum class Cut { replicated, flat, dealt, mixed };
/// All of them.
inline constexpr Cut all_cuts[] = {Cut::replicated, Cut::flat, Cut::dealt, Cut::mixed};

/// The pieces of version `v` that rank `rank` of `world` holds; v < 0: uninitialized, to be loaded.
inline std::vector<Piece> pieces_of(Cut cut, int world, int rank, int v) {
  std::vector<Piece> pieces;
  int64_t total = 0, at = 0;
  for (const Entry& e : small_model()) total += numel_of(e.shape);
  const dist::Range mine = dist::shard_range(total, world, rank);
  int index = 0;
  for (const Entry& e : small_model()) {
    const int64_t n = numel_of(e.shape);
    const int owner = index++ % world;
    if (cut == Cut::replicated || (cut == Cut::mixed && std::string(e.name).starts_with("model."))) {
      pieces.push_back(make_piece(e, 0, n, v));
    } else if (cut == Cut::dealt) {
      if (owner == rank) pieces.push_back(make_piece(e, 0, n, v));
    } else if (cut == Cut::mixed) {  // ranks 0 and 1 hold the first shard, 2 and 3 the second, ...
      const dist::Range half = dist::shard_range(n, (world + 1) / 2, rank / 2);
      pieces.push_back(make_piece(e, half.begin, half.end, v));
    } else {
      const int64_t begin = std::clamp<int64_t>(mine.begin - at, 0, n), end = std::clamp<int64_t>(mine.end - at, 0, n);
      if (begin < end || n == 0) pieces.push_back(make_piece(e, begin, end, v));
    }
    at += n;
  }
  return pieces;
}

/// True if the pieces have the bytes of version `v`.
inline bool is_version(const std::vector<Piece>& pieces, int v) {
  for (const Piece& p : pieces) {
    const auto e = std::find_if(small_model().begin(), small_model().end(),
                                [&](const Entry& entry) { return entry.name == p.name; });
    if (!equal(p.tensor.view({p.end - p.begin}), make_piece(*e, p.begin, p.end, v).tensor)) return false;
  }
  return true;
}

/// The contents that rank `rank` of `world` saves: its pieces of version `v`, and the number "step", which is v.
inline Contents contents_of(Cut cut, int world, int rank, int v) {
  Contents c{.pieces = pieces_of(cut, world, rank, v), .numbers = {{"step", int64_t(v)}}, .plan = "test"};
  c.aliases["model.head"] = "model.h.0.attn.weight";
  return c;
}

/// Version `v` of the whole model, for one process.
inline Contents of_one_rank(int v) { return contents_of(Cut::replicated, 1, 0, v); }

/// Loads in this process alone. Returns the version on which numbers and tensors agree; -1 if they disagree, -2 if
/// there is no checkpoint.
inline int load_version(const std::string& dir, LoadOptions options = {}) {
  if (!options.warn) options.warn = [](const std::string&) {};
  const std::vector<Piece> wanted = pieces_of(Cut::replicated, 1, 0, -1);
  const auto loaded = load(dir, wanted, nullptr, options);
  if (!loaded) return -2;
  const int v = int(integer(loaded->numbers, "step"));
  return is_version(wanted, v) ? v : -1;
}

using data::FileCalls;
using testing::FaultyCalls;

/// A log that ignores everything.
inline constexpr auto quiet = [](const std::string&) {};

/// File calls without faults.
inline FaultyCalls healthy;

/// Options that keep one checkpoint and use `calls`.
inline SaveOptions options_with(FileCalls* calls, bool async = false) {
  return {.async = async, .keep = 1, .calls = calls, .warn = quiet};
}

/// A new temporary folder that holds version 1.
struct Run {
  Run() { save(path(), "one", of_one_rank(1), nullptr, options_with(&healthy)); }
  /// The run's folder.
  std::string path() const { return dir / "run"; }
  TempDir dir;
};

/// Checks that each error, one per rank, contains all parts.
inline void check_each(const std::vector<std::string>& errors, const std::vector<std::string>& parts) {
  for (const std::string& error : errors)
    for (const std::string& part : parts)
      CHECK_MESSAGE(contains(error, part), "expected \"", part, "\", got \"", error, "\"");
}

/// Collects warnings from any thread.
struct Warnings {
  std::mutex mutex;
  std::string text;
  /// The function that collects; give it to a Saver or to load().
  std::function<void(const std::string&)> sink() {
    return [this](const std::string& what) {
      const std::lock_guard lock(mutex);
      text += what + "\n";
    };
  }
  /// Returns the collected warnings, one per line, and clears them.
  std::string take() {
    const std::lock_guard lock(mutex);
    return std::exchange(text, "");
  }
};

}  // namespace lockstep::checkpoints
