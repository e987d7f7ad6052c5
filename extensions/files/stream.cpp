// Reads records of many files as an endless, shuffled stream that resumes at any record. See stream.h for the terms.
#include "extensions/files/stream.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <filesystem>
#include <map>
#include <mutex>

#include "data/little_endian.h"
#include "data/text.h"
#include "tensor/ops.h"

namespace lockstep::data {

/// A position in a lane: a list of files (shards) that are read one after the other, round after round. first: number
/// of records before the position; shard: index in the lane's list in this round; offset: byte in that shard.
struct RecordStream::Place {
  int64_t first = 0, round = 0, shard = 0, offset = 0;
};

/// Records that a lane (files read one after the other) has read ahead, and the random order in which it returns them.
struct RecordStream::Block {
  struct Part {
    size_t file;
    int64_t offset, bytes;
  };
  Place place, next;
  std::vector<Part> parts;
  std::vector<std::pair<int64_t, std::shared_ptr<MappedFile>>> files;  // pairs of shard number and file
  std::vector<int64_t> order;
  bool has(int64_t at) const { return at >= place.first && at < next.first; }
};

struct RecordStream::Lane {
  static constexpr size_t max_kept = 3;  // blocks kept: a loader's workers read a few blocks apart
  std::mutex mutex;
  std::map<int64_t, Place> places{{0, Place{}}};
  std::deque<Block> kept;
};

namespace {

constexpr int64_t kUnshuffledBlock = 256;  // records to read at once if they are not shuffled
constexpr int kMaxEmptyRounds = 1000;

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r") == line.npos; }

}  // namespace

RecordStream::RecordStream(std::vector<std::string> shards, RecordRule rule, StreamOptions options)
    : shards_(std::move(shards)), rule_(rule), options_(options) {
  LOCKSTEP_CHECK(!shards_.empty(), "[stream] expected at least one shard, got none; give paths of files");
  LOCKSTEP_CHECK(options.block >= 1 && options.run >= 1, "[stream] expected block and run >= 1, got block ",
                 options.block, " and run ", options.run);
  LOCKSTEP_CHECK(options.lanes >= 1 && options.lanes <= int64_t(shards_.size()),
                 "[stream] expected lanes from 1 to the number of shards, ", shards_.size(), ", got ", options.lanes);
  LOCKSTEP_CHECK(rule.bytes >= 0 && (rule.bytes == 0 || rule.stride >= 1),
                 "[stream] expected RecordRule::bytes >= 0, and stride >= 1 if bytes > 0, got bytes ", rule.bytes,
                 " and stride ", rule.stride);
  for (const auto& shard : shards_) {
    LOCKSTEP_CHECK(std::filesystem::is_regular_file(shard), "[stream] expected shards that are files, got ", shard);
    sizes_.push_back(int64_t(std::filesystem::file_size(shard)));
  }
  for (int64_t lane = 0; lane < options.lanes; ++lane) lanes_.push_back(std::make_unique<Lane>());
}

RecordStream::~RecordStream() = default;

std::vector<int64_t> RecordStream::shards_of(int64_t lane, int64_t round) const {
  const int64_t n = int64_t(shards_.size());
  const auto order = options_.shuffle_shards ? permutation(n, options_.seed, round) : SequentialSampler(n)();
  std::vector<int64_t> own;
  for (int64_t i = lane; i < n; i += options_.lanes) own.push_back(order[size_t(i)]);
  return own;
}

std::shared_ptr<MappedFile> RecordStream::open(int64_t shard) const {
  auto file = MappedFile::open(shards_[size_t(shard)]);
  LOCKSTEP_CHECK(file->size() == sizes_[size_t(shard)], "[stream] ", shards_[size_t(shard)], ": expected ",
                 sizes_[size_t(shard)], " bytes as when it was opened, got ", file->size(),
                 ": shards must stay as they are while they are read; start again");
  return file;
}

/// Reads the next records of a lane (a list of files), from `place` on. Stops when all files are read once, or after
/// options.block records; if that is 1 (no shuffle), after kUnshuffledBlock records.
RecordStream::Block RecordStream::read_block(int64_t lane, const Place& place) const {
  Block block{.place = place, .next = place};
  Place& at = block.next;
  const size_t limit = size_t(options_.block > 1 ? options_.block : kUnshuffledBlock);
  auto own = shards_of(lane, at.round);
  for (int empty = 0; block.parts.size() < limit;) {
    if (at.shard == int64_t(own.size())) {
      at.shard = at.offset = 0;
      own = shards_of(lane, ++at.round);
      if (!block.parts.empty()) break;
      LOCKSTEP_CHECK(++empty <= kMaxEmptyRounds, "[stream] expected shards with records, found none in ",
                     shards_[size_t(own[0])], " and the others of lane ", lane, "; give files that are not empty");
      block.place = at;  // the files passed so far have no records
    }
    const int64_t shard = own[size_t(at.shard)];
    const auto file = open(shard);
    const size_t number = block.files.size();
    block.files.emplace_back(shard, file);
    const auto* bytes = reinterpret_cast<const char*>(file->data());
    int64_t last = file->size() - rule_.end;
    if (rule_.bytes > 0) {
      at.offset = std::max(at.offset, rule_.start);
      for (; block.parts.size() < limit && at.offset + rule_.bytes <= last; at.offset += rule_.stride)
        block.parts.push_back({number, at.offset, rule_.bytes});
      if (at.offset + rule_.bytes > last) at.offset = file->size();
    }
    while (rule_.bytes == 0 && block.parts.size() < limit && at.offset < last) {
      const void* found = std::memchr(bytes + at.offset, '\n', size_t(last - at.offset));
      const int64_t end = found ? static_cast<const char*>(found) - bytes : last;
      if (!is_blank({bytes + at.offset, size_t(end - at.offset)}))
        block.parts.push_back({number, at.offset, end - at.offset});
      at.offset = std::min(end + 1, last);
    }
    if (at.offset >= file->size()) ++at.shard, at.offset = 0;
  }
  const int64_t parts = int64_t(block.parts.size());
  at.first = place.first + parts;
  const uint64_t seed = key_of_call({.step = options_.seed ^ 0x73747265616dull, .micro_batch = uint64_t(lane)}).stream;
  block.order = options_.block > 1 ? permutation(parts, seed, place.first) : SequentialSampler(parts)();
  return block;
}

Record RecordStream::get(int64_t index) const {
  LOCKSTEP_CHECK(index >= 0, "[stream] expected an index >= 0, got ", index);
  const int64_t run = options_.run, number = index / run % options_.lanes;
  const int64_t at = index / (run * options_.lanes) * run + index % run;
  Lane& lane = *lanes_[size_t(number)];
  const std::lock_guard lock(lane.mutex);
  auto block = std::find_if(lane.kept.begin(), lane.kept.end(), [&](const Block& b) { return b.has(at); });
  if (block == lane.kept.end()) {
    Block found{.next = std::prev(lane.places.upper_bound(at))->second};
    do {
      found = read_block(number, found.next);
      lane.places.emplace(found.next.first, found.next);
    } while (!found.has(at));
    lane.kept.push_back(std::move(found));
    if (lane.kept.size() > Lane::max_kept) lane.kept.pop_front();
    block = std::prev(lane.kept.end());
  }
  const auto& part = block->parts[size_t(block->order[size_t(at - block->place.first)])];
  const auto& [shard, file] = block->files[part.file];
  const char* bytes = reinterpret_cast<const char*>(file->data()) + part.offset;
  return {{bytes, size_t(part.bytes)}, shards_[size_t(shard)], part.offset, index, file};
}

/// Describes the shards and options, so that load_places() can refuse positions saved with other shards or options.
Json RecordStream::identity() const {
  std::string all;
  for (size_t i = 0; i < shards_.size(); ++i)
    all += str(std::filesystem::path(shards_[i]).filename().string(), " ", sizes_[i], "\n");
  return Json::Object{{"seed", int64_t(options_.seed)},
                      {"block", options_.block},
                      {"shuffle_shards", options_.shuffle_shards},
                      {"lanes", options_.lanes},
                      {"record", rule_.bytes},
                      {"shards", int64_t(shards_.size())},
                      {"names_and_sizes", int64_t(crc32_z(0, reinterpret_cast<const Bytef*>(all.data()), all.size()))}};
}

Json RecordStream::places(int64_t index) const {
  LOCKSTEP_CHECK(index >= 0, "[stream] expected an index >= 0, got ", index);
  Json::Array all;
  for (const auto& lane : lanes_) {
    const std::lock_guard lock(lane->mutex);
    // When the stream is at record `index`, this lane has returned `before` records, or up to options_.run more.
    const int64_t before = index / (options_.run * options_.lanes) * options_.run;
    const Place& p = std::prev(lane->places.upper_bound(before))->second;
    all.push_back(Json::Array{p.first, p.round, p.shard, p.offset});
  }
  return Json::Object{{"of", identity()}, {"lanes", all}};
}

void RecordStream::load_places(const Json& places) {
  const std::string where = "[stream] places";
  const Json& of = places.at("of", where);
  LOCKSTEP_CHECK(of == identity(), where, ": expected the places of a stream with the same shards and options, ",
                 identity().dump(), ", got ", of.dump(), "; resume with the shards and options of that run");
  const auto& all = places.at("lanes", where).as_array(where);
  LOCKSTEP_CHECK(all.size() == lanes_.size(), where, ": expected ", lanes_.size(), " lanes, got ", all.size(),
                 "; load what places() returned");
  std::vector<Place> loaded;
  for (size_t i = 0; i < all.size(); ++i) {
    const auto& n = all[i].as_array(where);
    LOCKSTEP_CHECK(n.size() == 4, where, ": expected 4 numbers for lane ", i, ", got ", n.size(), "; use places()");
    const Place p{n[0].as_int(where), n[1].as_int(where), n[2].as_int(where), n[3].as_int(where)};
    const auto own = p.round >= 0 ? shards_of(int64_t(i), p.round) : std::vector<int64_t>();
    const bool fits = p.first >= 0 && p.round >= 0 && p.shard >= 0 && p.shard <= int64_t(own.size()) && p.offset >= 0 &&
                      p.offset <= (p.shard < int64_t(own.size()) ? sizes_[size_t(own[size_t(p.shard)])] : 0);
    LOCKSTEP_CHECK(fits, where, ": expected a place in the shards for lane ", i, ", got ", all[i].dump(),
                   "; load what places() returned");
    loaded.push_back(p);
  }
  for (size_t i = 0; i < loaded.size(); ++i) {
    const std::lock_guard lock(lanes_[i]->mutex);
    if (loaded[i].first > 0) lanes_[i]->places.insert_or_assign(loaded[i].first, loaded[i]);
  }
}

StreamingDataset<Example> stream_tokens(std::vector<std::string> shards, int64_t context, const Tokenizer& tokenizer,
                                        const std::string& identity, StreamOptions options) {
  LOCKSTEP_CHECK(context >= 1, "[stream_tokens] expected a context >= 1, got ", context);
  int64_t bytes = 0;
  for (const auto& shard : shards) bytes = read_tokens(shard, tokenizer, identity).bytes_of_one();
  const RecordRule rule{
      .bytes = (context + 1) * bytes, .start = tokens_header_bytes, .end = tokens_end_bytes, .stride = context * bytes};
  return {std::make_shared<RecordStream>(std::move(shards), rule, options), [bytes, context](const Record& record) {
            const Tensor all = empty({context + 1}, {.dtype = i64, .device = cpu});
            for (int64_t i = 0; i <= context; ++i)
              all.data<int64_t>()[i] = int64_t(little(as_bytes(record.bytes), size_t(i * bytes), int(bytes)));
            return Example{all.narrow(0, 0, context), all.narrow(0, 1, context)};
          }};
}

}  // namespace lockstep::data
