#pragma once
// Streams: records of many files (lines, or windows of tokens) in an order that needs no index, for data that are too
// large to count first.
//
// Shards are dealt to `lanes`. A lane reads its shards one after the other, round after round without end (with
// shuffle_shards, in another order each round). Each `block` of a lane's consecutive records is given out in random
// order, like a shuffle buffer. Record i of the stream comes from lane (i / run) % lanes:
//
//   lanes 2, run 2     record  0  1 | 2  3 | 4  5 | 6  7 ...
//                      lane    A  A   B  B   A  A   B  B
//
// So record number i depends only on (files, options), not on ranks, workers or restarts: any rank can read any record,
// and the state is one number, as in LoaderState. To reach a record far ahead, the reader counts the newlines in
// between, at the speed of reading the files. places() saves the positions found so far.
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
#include "tensor/random.h"

namespace lockstep::data {

/// Options of a RecordStream.
struct StreamOptions {
  int64_t block = 1;            ///< records that are read ahead and shuffled together; 1: no shuffle
  bool shuffle_shards = false;  ///< true: draw a new order of the shards each round
  /// Number of shards read at the same time. With one lane for each micro-batch of a step, ranks read the fewest files.
  int64_t lanes = 1;
  int64_t run = 1;  ///< consecutive records from one lane: the size of a micro-batch
  uint64_t seed = 0;
};

/// A piece of a shard, and its position. `bytes` is valid while the record lives.
struct Record {
  std::string_view bytes;
  std::string shard;   ///< path of the shard
  int64_t offset = 0;  ///< offset of the record's first byte in the shard
  int64_t index = 0;   ///< index of the record in the stream
  std::shared_ptr<MappedFile> file;
};

/// Tells how a shard (a file) divides into records.
struct RecordRule {
  int64_t bytes = 0;           ///< size of a record, if all are equal; 0: records are lines
  int64_t start = 0, end = 0;  ///< for equal records: bytes of a shard before the first record, and behind the last
  int64_t stride = 0;          ///< for equal records: bytes from the start of one record to the start of the next
};

/// Reads the stream's records as bytes: get(i) returns record i. Thread-safe.
class RecordStream {
 public:
  /// Error if there is no shard, or a shard is not a file. Shards must not change.
  RecordStream(std::vector<std::string> shards, RecordRule rule, StreamOptions options);
  ~RecordStream();
  /// Record number `index`.
  Record get(int64_t index) const;
  const StreamOptions& options() const { return options_; }  ///< the constructor's options
  /// Returns the last known positions in the files at or before record `index`, where `index` is the number of records
  /// that all ranks have taken. A resumed run that loads them starts to search there, not at the first record.
  Json places(int64_t index) const;
  /// Loads the result of places(). Error if the places belong to other shards or options (`run` may differ).
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

/// A stream as an endless dataset. Read it with a DataLoader and stream_sampler(), or with micro_batch(), as in
/// Trainer::batches.
template <class S = Example> class StreamingDataset : public Dataset<S> {
 public:
  /// Makes a sample from a record. May draw random numbers; in a DataLoader they depend on (seed, epoch, record).
  using Parse = std::function<S(const Record& record)>;
  /// `parse` must be thread-safe.
  StreamingDataset(std::shared_ptr<RecordStream> records, Parse parse)
      : records_(std::move(records)), parse_(std::move(parse)) {}
  int64_t size() const override { return endless_samples; }
  S get(int64_t index) const override { return parse_(records_->get(index)); }
  RecordStream& records() const { return *records_; }  ///< the records from which samples are made
  /// Records number * run to (number + 1) * run - 1, as one batch. Random numbers of parse depend on (seed, record).
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

/// A stream of the lines of text files. Blank lines are left out.
template <class S>
StreamingDataset<S> stream_lines(std::vector<std::string> shards, StreamOptions options,
                                 typename StreamingDataset<S>::Parse parse) {
  return {std::make_shared<RecordStream>(std::move(shards), RecordRule{}, options), std::move(parse)};
}
/// A stream of the values of JSON Lines files. Calls parse(value, where); an Error that parse throws should begin with
/// `where`, which names file and byte.
template <class S>
StreamingDataset<S> stream_json_lines(std::vector<std::string> shards, StreamOptions options,
                                      std::function<S(const Json& value, const std::string& where)> parse) {
  return stream_lines<S>(std::move(shards), options, [parse = std::move(parse)](const Record& record) {
    const std::string where = str(record.shard, ", byte ", record.offset);
    return parse(parse_json(record.bytes, where, python_json), where);
  });
}
/// A stream of consecutive windows of .tokens files. A sample is a window of `context` tokens, with the window moved on
/// by one token as the target. Tokens at the end of a shard that fill no window are not used. Error unless all shards
/// are of this tokenizer. identity: from tokenizer_identity().
StreamingDataset<Example> stream_tokens(std::vector<std::string> shards, int64_t context, const Tokenizer& tokenizer,
                                        const std::string& identity, StreamOptions options = {});

}  // namespace lockstep::data
