#pragma once
// Checkpoints: whole or not there, of logical tensors, loaded by any number of ranks. See docs/checkpoints.md.
//
//   checkpoints::Saver saver("runs/1", group, {.async = true, .keep = 3});
//   saver.save("step-100", {.pieces = {checkpoints::whole("model.w", w)}, .numbers = {{"step", int64_t(100)}}});
//   auto loaded = checkpoints::load("runs/1", {checkpoints::whole("model.w", w)}, group);
//
// A rank hands in the pieces that it has, ranges of elements of tensors that have a name and a shape of their own.
// Which rank had what is written down, and forgotten by whoever loads: it asks for any other ranges.
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/json.h"
#include "dist/process_group.h"
#include "tensor/tensor.h"

namespace lockstep::data {
class FileCalls;
}

namespace lockstep::checkpoints {

/// Elements [begin, end) of a tensor, row-major. `tensor` holds just these, contiguous, in any shape: to be saved, or
/// to be filled.
struct Piece {
  std::string name;  ///< "model.h.0.attn.weight", "optimizer.exp_avg.h.0.attn.weight"; without '['
  Shape shape;       ///< of the whole
  DType dtype = f32;
  int64_t begin = 0;
  int64_t end = 0;
  Tensor tensor;
};
/// All of a tensor.
Piece whole(const std::string& name, const Tensor& tensor);
/// `part` holds the elements from `begin` on of a tensor of that shape. Padding is left out by giving a shorter `part`.
Piece part_of(const std::string& name, const Shape& shape, int64_t begin, const Tensor& part);

/// Counters, learning rates, scaler, random state: whole numbers, others and texts, kept to the bit.
using Numbers = std::map<std::string, data::Json>;

/// What one rank gives to a checkpoint. A piece that several ranks have (the same range) is written once.
struct Contents {
  std::vector<Piece> pieces;
  std::map<std::string, std::string> aliases;  ///< tied tensors: name -> name of the tensor that is saved
  Numbers numbers;                             ///< joined over ranks; one that two ranks give must be equal
  data::Json client_state;                     ///< anything, also NaN and infinity; rank 0's is kept
  std::string plan;  ///< how the ranks are arranged ("zero3:4x1"): for people; rank 0's is kept
};

enum class TagValidation { fail, warn, ignore };

struct SaveOptions {
  bool async = false;  ///< save() returns when the tensors are copied; a thread writes them
  int keep = 0;        ///< checkpoints that stay, counted from the newest; 0: all
  bool latest = true;  ///< make it the one that load() takes by default
  TagValidation tag_validation =
      TagValidation::fail;            ///< what is done when ranks give different tags; else rank 0's counts
  bool take_over = false;             ///< go on although a job on another host has left its lock
  dist::Seconds timeout{30};          ///< for all ranks to come: then those that did not are named
  dist::Seconds write_timeout{3600};  ///< for all ranks to have written
  data::FileCalls* calls = nullptr;   ///< nullptr: the system's
  std::function<void(const std::string&)> warn = {};  ///< from any thread; empty: a line on stderr
};

/// Saves checkpoints into one folder, which no other job may save into meanwhile (DIR/lock). All ranks of `group` make
/// one, and call save() together. nullptr: this process alone.
class Saver {
 public:
  explicit Saver(const std::string& dir, dist::ProcessGroup* group = nullptr, SaveOptions options = {});
  /// Waits; an error that nobody has seen yet goes to `warn`.
  ~Saver();
  Saver(const Saver&) = delete;

  /// Commits DIR/TAG: afterwards it is there whole, also after a power cut, and `latest` names it. An Error, raised by
  /// all ranks, leaves the checkpoints that were there as they were, and the ranks may go on; a DistError ends the job
  /// as always. With `async` only what can be said at once is raised here; the rest by wait(), or the next save()
  /// before it does anything.
  void save(const std::string& tag, const Contents& contents);
  /// Returns when nothing is being written any more.
  void wait();
  /// Folder of the newest checkpoint that this has committed; empty before.
  std::string committed() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

enum class Verify { hashes, sizes };

struct LoadOptions {
  std::string tag = {};  ///< empty: the one that `latest` names
  Verify verify =
      Verify::hashes;      ///< of files that are read: all bytes (each file by one rank), or only sizes and headers
  bool fall_back = false;  ///< when the newest is damaged take the one before, and say so
  bool convert = false;    ///< other dtypes are converted; else they are Errors
  bool strict = true;      ///< tensors that no rank asks for are an Error
  std::vector<std::string> skip = {};  ///< beginnings of names ("optimizer.") that nobody needs to ask for
  dist::Seconds timeout{30};
  std::function<void(const std::string&)> warn = {};
};

/// Elements [begin, end) of a logical tensor, and where they are.
struct Part {
  std::string file;
  std::string name;  ///< in that file
  int64_t begin = 0;
  int64_t end = 0;
  uint32_t crc = 0;  ///< crc32c of its bytes: says which tensor is damaged when the file's hash differs
};
struct LogicalTensor {
  DType dtype = f32;
  Shape shape;
  std::vector<Part> parts;  ///< in order; without gaps or overlaps from 0 to the last element
  int64_t numel() const { return numel_of(shape); }
};
struct FileSum {
  int64_t bytes = 0;
  std::string hash;  ///< BLAKE2b, 64 digits
};
/// What is in a checkpoint.
struct Manifest {
  static constexpr int64_t version = 1;
  std::string id;  ///< random; also in the metadata of its files
  std::string tag;
  int64_t sequence = 0;  ///< 1, 2, ... in the order of saving into one folder
  int world = 1;         ///< ranks that saved it
  std::string plan;
  std::map<std::string, FileSum> files;
  std::map<std::string, LogicalTensor> tensors;
  std::map<std::string, std::string> aliases;
  Numbers numbers;
  data::Json client_state;
};
struct Info : Manifest {
  std::string path;  ///< its folder
};
struct Loaded : Info {
  std::vector<std::string> unused;  ///< tensors that no rank asked for
};

/// Fills the tensors of `wanted`, any ranges. All ranks of `group` call it. DIR holds checkpoints, or is one. Nothing
/// when DIR holds none, with a warning. An Error, raised by all ranks, lists all that is missing, unexpected or of
/// another shape, or names the damaged files, and nothing was loaded. When `latest` is missing or names nothing, the
/// newest whole one is taken, with a warning.
std::optional<Loaded> load(const std::string& dir, const std::vector<Piece>& wanted,
                           dist::ProcessGroup* group = nullptr, const LoadOptions& options = {});

/// What load() would find with these options, without its tensors: for who must make tensors (an optimizer's state)
/// before they can be filled. load(info->path, ...) then loads this one.
std::optional<Info> inspect(const std::string& dir, dist::ProcessGroup* group = nullptr,
                            const LoadOptions& options = {});

// Numbers of a Loaded; Error names what is missing or of another kind.
int64_t integer(const Numbers& numbers, const std::string& name);
double number(const Numbers& numbers, const std::string& name);  ///< integers too

}  // namespace lockstep::checkpoints
