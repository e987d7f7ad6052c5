// What is kept where: options, homes of the optimizer's state, regions of files.
//
//   unit 0                              unit 1                       file of optimizer state, this rank's
//   shard  │ a a a b b b b b . │        shard │ c c c c c c . . │    │ exp_avg of unit 0 │ exp_avg_sq of unit 0 │ master ... │ exp_avg of unit 1 │ ...
//
// A region holds one value for each element of the unit's shard, padding included, so a tile is one run of bytes in each.
#include "zero/offload.h"

#include <algorithm>
#include <set>

#include "tensor/ops.h"
#include "zero/stage.h"

namespace lockstep::zero {
namespace {

void check_device(const char* key, Offload device, const std::string& path) {
  LOCKSTEP_CHECK(int(device) <= int(Offload::nvme), "[zero] expected ", key, ".device none, cpu or nvme, got ", int(device));
  LOCKSTEP_CHECK(device != Offload::nvme || !path.empty(), "[zero] ", key, ".device nvme needs ", key, ".nvme_path, a folder on a local disk");
}

}  // namespace

std::string_view name_of(Offload device) {
  constexpr std::string_view names[] = {"none", "cpu", "nvme"};
  return names[int(device)];
}

void check(const OffloadOptimizer& o, int stage) {
  check_device("offload_optimizer", o.device, o.nvme_path);
  LOCKSTEP_CHECK(o.buffer_count >= 1, "[zero] expected offload_optimizer.buffer_count >= 1, got ", o.buffer_count);
  LOCKSTEP_CHECK(o.ratio >= 0 && o.ratio <= 1, "[zero] expected offload_optimizer.ratio from 0 to 1, got ", o.ratio);
  LOCKSTEP_CHECK(o.ratio == 1 || stage == 3, "[zero] offload_optimizer.ratio ", o.ratio, " needs stage 3, got stage ", stage, "; leave it at 1");
}

void check(const OffloadParam& o, int stage) {
  check_device("offload_param", o.device, o.nvme_path);
  LOCKSTEP_CHECK(o.device == Offload::none || stage == 3, "[zero] offload_param needs stage 3, for below every rank keeps all parameters; got stage ", stage);
  LOCKSTEP_CHECK(o.buffer_count >= 1 && o.buffer_size >= 1 && o.max_in_cpu >= 0, "[zero] expected offload_param.buffer_count >= 1, buffer_size >= 1 and max_in_cpu >= 0, got ",
                 o.buffer_count, ", ", o.buffer_size, " and ", o.max_in_cpu);
}

void check(const AioOptions& o) {
  LOCKSTEP_CHECK(o.block_size >= file_block && o.block_size % file_block == 0 && o.block_size <= 1 << 30, "[aio] expected block_size to be a multiple of ", file_block,
                 " up to 1 GiB, got ", o.block_size);
  LOCKSTEP_CHECK(o.queue_depth >= 1 && o.queue_depth <= 1024, "[aio] expected queue_depth from 1 to 1024, got ", o.queue_depth);
  LOCKSTEP_CHECK(o.thread_count >= 1 && o.thread_count <= 64, "[aio] expected thread_count from 1 to 64, got ", o.thread_count);
}

/// After plan(), before place().
void Stage::plan_offload() {
  const OffloadOptimizer& o = options.offload_optimizer;
  const OffloadParam& p = options.offload_param;
  find_homes();
  int64_t states = 0, shards = 0, largest = 0, in_memory = 0, longest = 0;
  for (Unit& unit : units) {
    states = plan_regions(unit, states);
    if (p.device != Offload::nvme || unit.persistent) continue;
    in_memory += unit.layout.shard;  // the same at all ranks, for it decides how they gather
    unit.swapped = in_memory > p.max_in_cpu;
    if (!unit.swapped) continue;
    LOCKSTEP_CHECK(unit.layout.shard <= p.buffer_size, "[zero] offload_param.buffer_size ", p.buffer_size, " is too small for ", unit.tag, ": expected at least ", unit.layout.shard);
    unit.shard_at = shards;
    const int64_t bytes = shard(unit).size() * size_of(unit.dtype);
    shards += round_to_block(bytes);
    longest = std::max(longest, unit.layout.shard * size_of(unit.dtype));
  }
  for (const Unit& unit : units) largest = std::max(largest, tile_bytes(unit));
  if (o.device != Offload::nvme && p.device != Offload::nvme) return;
  on_files([&] {
    const std::string whose = str(" of rank ", group.world_rank(rank()));
    if (states > 0) swap_.states.emplace(o.nvme_path, "the optimizer state" + whose, states, !o.fast_init);
    if (shards > 0) swap_.shards.emplace(p.nvme_path, "the parameter shards" + whose, shards, false);  // all of it is written next
    swap_.queue.emplace(options.aio);
    if (largest > 0) swap_.tiles.emplace(*swap_.queue, TileRing::Options{.count = o.buffer_count, .bytes = largest, .pin = o.pin_memory, .read_ahead = o.pipeline_read, .write_behind = o.pipeline_write});
    if (longest > 0) swap_.reader.emplace(*swap_.queue, p.buffer_count, longest, p.pin_memory);
  });
}

/// Which pieces are offloaded: the first, up to the ratio. A piece on the boundary is cut in two where a block of its norm begins.
void Stage::find_homes() {
  const OffloadOptimizer& o = options.offload_optimizer;
  if (o.device == Offload::none) return;
  int64_t all = 0;
  for (const Unit& unit : units) for (const Piece& piece : unit.pieces) all += piece.range.size();
  auto wanted = int64_t(o.ratio * double(all) + 0.5);
  for (Unit& unit : units) {
    std::vector<Piece> pieces;
    for (Piece& piece : unit.pieces) {
      const int64_t n = piece.range.size();
      int64_t first = std::min(n, wanted);
      if (first < n) {
        first = (first + norm_block / 2) / norm_block * norm_block;
        if (first > n || !parameters[piece.parameter].optimizer->is_elementwise()) first = 2 * wanted >= n ? n : 0;
      }
      wanted = std::max(int64_t(0), wanted - first);
      const dist::Range range = piece.range;
      if (first > 0) pieces.push_back({.parameter = piece.parameter, .range = {range.begin, range.begin + first}, .at = piece.at, .home = o.device});
      if (first < n) pieces.push_back({.parameter = piece.parameter, .range = {range.begin + first, range.end}, .at = piece.at + first});
    }
    unit.pieces = std::move(pieces);
  }
}

/// Places the unit's regions behind `end`, and gives back where they end.
int64_t Stage::plan_regions(Unit& unit, int64_t end) {
  std::set<std::string> keys;
  for (Piece& piece : unit.pieces) {
    if (piece.home != Offload::nvme) continue;
    piece.keys = keys_of(parameters[piece.parameter]);
    keys.insert(piece.keys.begin(), piece.keys.end());
  }
  for (const std::string& key : keys) {
    unit.regions[key] = end;
    end += round_to_block(unit.layout.shard * (unit.dtype == f64 ? 8 : 4));
  }
  return end;
}

Tensor Stage::shard_of(const Unit& unit) {
  const int64_t n = shard(unit).size();
  if (!unit.swapped) return unit.shard;
  return n > 0 ? swap_.shards->map(unit.shard_at, n, unit.dtype) : empty({0}, {.dtype = unit.dtype, .device = cpu});
}

/// To be gathered. Of one in a file: read by now, or read at last.
Tensor Stage::shard_in_memory(size_t u) {
  Unit& unit = units[u];
  if (!unit.swapped) return unit.shard;
  ShardReader& reader = *swap_.reader;
  if (!reader.has(u)) {
    if (reader.is_full()) {  // its oldest is gathered by now, or was read in vain
      const size_t oldest = reader.oldest();
      units[oldest].fetch.wait();
      on_files([&] { reader.give_back(oldest); });
    }
    read_shard(u);
  }
  Tensor bytes;
  on_files([&] { bytes = reader.wait(u); });
  return Tensor(bytes.storage(), 0, {shard(unit).size()}, {1}, unit.dtype);
}

/// Starts to. A buffer must be free.
void Stage::read_shard(size_t u) {
  const Unit& unit = units[u];
  swap_.reader->take(u, swap_.shards ? &*swap_.shards : nullptr, unit.shard_at, shard(unit).size() * size_of(unit.dtype));
}

std::map<std::string, Tensor> Stage::kept(Unit& unit, Piece& piece) {
  std::map<std::string, Tensor> all;
  if (!piece.started) return all;
  if (piece.home != Offload::nvme) return piece.state;
  const DType dtype = unit.dtype == f64 ? f64 : f32;
  for (const std::string& key : piece.keys) all[key] = swap_.states->map(unit.regions.at(key) + piece.at * size_of(dtype), piece.range.size(), dtype);
  return all;
}

std::map<std::string, Tensor> Stage::make_kept(Unit& unit, Piece& piece) {
  const bool made = !std::exchange(piece.started, true);
  if (piece.home != Offload::nvme) {
    const MemoryScope scope(piece.home == Offload::none ? Memory::optimizer : Memory::offload);
    for (const std::string& key : keys_of(parameters[piece.parameter])) {
      Tensor& tensor = piece.state[key];
      if (!tensor.defined()) tensor = zeros({piece.range.size()}, {.dtype = unit.dtype == f64 ? f64 : f32, .device = home_of(piece)});
    }
  }
  const auto all = kept(unit, piece);
  if (made) for (const auto& [key, tensor] : all) tensor.zero_();
  return all;
}

}  // namespace lockstep::zero
