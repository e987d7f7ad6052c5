#pragma once
// Streams: records of many files (lines, or windows of tokens) in an order of their own, without an index of them, for
// data that are too large to count first.
//
// Shards are dealt to `lanes`; a lane reads its shards one after the other, round after round without an end, each
// round in another order. `block` records that follow each other are given in a random order ("shuffle buffer"). Record
// i of the stream comes from lane (i / run) % lanes:
//
//   lanes 2, run 2     record  0  1 | 2  3 | 4  5 | 6  7 ...
//                      lane    A  A   B  B   A  A   B  B
//
// So which record is number i follows from (files, options) alone, not from ranks, workers or restarts: any rank makes
// any record, and a state is a number, as LoaderState has it. To reach a record that is far ahead the line ends of the
// files between are looked for, which is as fast as the files can be read; places() keeps what was found.
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/dataset.h"
#include "data/files.h"
#include "data/json.h"
#include "data/sampler.h"
#include "data/tokenizer.h"
#include "tensor/random_scope.h"

namespace lockstep::data {

struct StreamOptions {
  int64_t block = 1;  ///< records that are read before one is given, in a random order
  bool shuffle_shards = false;
  int64_t lanes = 1;  ///< at most the number of shards. Ranks read least when it is the micro-batches of a step
  int64_t run = 1;    ///< records of a lane that come together: those of a micro-batch
  uint64_t seed = 0;
};

/// How an epoch of a stream, a fixed number of its records, is dealt to ranks.
struct StreamSampling {
  int64_t samples = 0;      ///< of an epoch, over all ranks; a multiple of a step
  int64_t micro_batch = 1;  ///< as MicroBatchOptions has them
  int64_t micro_batches = 1;
  int64_t world = 1, rank = 0;
  bool interleaved = false;
};
/// Epoch e is records e * samples and on. For a DataLoader, whose state then resumes the stream.
Sampler stream_sampler(const StreamSampling& options);

/// A piece of a shard, and where it stands: valid while it lives.
struct Record {
  std::string_view bytes;
  std::string shard;
  int64_t offset = 0;  ///< of its first byte
  int64_t index = 0;   ///< in the stream
  std::shared_ptr<MappedFile> file;
};

/// How a shard is cut into records.
struct RecordRule {
  int64_t bytes = 0;           ///< of each of equal records; 0: they are lines
  int64_t start = 0, end = 0;  ///< of these: bytes of a shard before the first, and behind the last
  int64_t stride = 0;          ///< from the start of one to that of the next
};

/// The records, not yet read as anything. Any number of threads may ask.
class RecordStream {
 public:
  /// Error when there is no shard, or one does not fit the rule. Shards must stay as they are.
  RecordStream(std::vector<std::string> shards, RecordRule rule, StreamOptions options);
  ~RecordStream();
  Record get(int64_t index) const;
  const StreamOptions& options() const { return options_; }
  /// For each lane, the last known place before record `index` (how many were given out, over all ranks): with it a
  /// resumed run starts there, instead of looking for it.
  Json places(int64_t index) const;
  /// Error when they are of other shards or options. Places that are not there are looked for.
  void load_places(const Json& places);

 private:
  struct Lane;
  struct Block;
  struct Place;
  Json identity() const;
  std::shared_ptr<MappedFile> open(int64_t shard) const;
  std::vector<int64_t> shards_of(int64_t lane, int64_t round) const;
  Block read_block(int64_t lane, const Place& place) const;
  std::vector<std::string> shards_;
  std::vector<int64_t> sizes_;
  RecordRule rule_;
  StreamOptions options_;
  std::vector<std::unique_ptr<Lane>> lanes_;
};

/// A stream as a dataset without an end: DataLoaders need stream_sampler(), and Trainer::batches takes micro_batch().
template <class S = Example> class StreamingDataset : public Dataset<S> {
 public:
  /// parse: a record to a sample. May draw: under a DataLoader that depends on (seed, epoch, record) alone.
  using Parse = std::function<S(const Record& record)>;
  StreamingDataset(std::shared_ptr<RecordStream> records, Parse parse)
      : records_(std::move(records)), parse_(std::move(parse)) {}
  int64_t size() const override { return endless_samples; }
  S get(int64_t index) const override { return parse_(records_->get(index)); }
  RecordStream& records() const { return *records_; }
  /// Records number * run to (number + 1) * run, as one batch. What parse draws depends on (seed, record).
  S micro_batch(int64_t number) const requires requires(std::vector<S> samples) { S(collate(samples)); }
  {
    std::vector<S> samples;
    const StreamOptions& options = records_->options();
    for (int64_t i = number * options.run; i < (number + 1) * options.run; ++i) {
      const RandomScope scope({.seed = options.seed ^ 0x64617461u, .micro_batch = uint64_t(i)});
      samples.push_back(get(i));
    }
    S batch = collate(samples);
    check_mapped_files();
    return batch;
  }

 private:
  std::shared_ptr<RecordStream> records_;
  Parse parse_;
};

/// Lines of text files; blank ones are left out.
template <class S>
StreamingDataset<S> stream_lines(std::vector<std::string> shards, StreamOptions options,
                                 typename StreamingDataset<S>::Parse parse) {
  return {std::make_shared<RecordStream>(std::move(shards), RecordRule{}, options), std::move(parse)};
}
/// Values of JSON Lines files. parse gets the value, and what opens Errors about it.
template <class S>
StreamingDataset<S> stream_json_lines(std::vector<std::string> shards, StreamOptions options,
                                      std::function<S(const Json& value, const std::string& where)> parse) {
  return stream_lines<S>(std::move(shards), options, [parse = std::move(parse)](const Record& record) {
    const std::string where = str(record.shard, ", byte ", record.offset);
    return parse(parse_json(record.bytes, where, python_json), where);
  });
}
/// Windows of .tokens files, one behind another: `context` tokens, and the same moved on by one. What is left at the
/// end of a shard is not used. Error unless all are of this tokenizer (data::tokenizer_identity()).
StreamingDataset<Example> stream_tokens(std::vector<std::string> shards, int64_t context, const Tokenizer& tokenizer,
                                        const std::string& identity, StreamOptions options = {});

}  // namespace lockstep::data
