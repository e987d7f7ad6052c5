#pragma once
// Checkpoints: saved completely or not at all, and loaded by any number of ranks. They store each tensor as one logical
// tensor, no matter how the ranks divided it. See docs/checkpoints.md.
//
//   checkpoints::Saver saver("runs/1", group, {.async = true, .keep = 3});
//   saver.save("step-100", {.pieces = {checkpoints::full("model.w", w)}, .numbers = {{"step", int64_t(100)}}});
//   auto loaded = checkpoints::load("runs/1", {checkpoints::full("model.w", w)}, group);
//
// Each rank passes the pieces that it holds: ranges of elements of named tensors. The manifest records which file
// contains which range; a rank that loads may ask for any other ranges.
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/json.h"
#include "dist/process_group.h"
#include "tensor/tensor.h"

namespace lockstep::data {
class FileCalls;
}

namespace lockstep::checkpoints {

/// Elements [begin, end) of a tensor in row-major order. `tensor` holds exactly these elements, contiguous and in any
/// shape; save() reads it, and load() fills it.
struct Piece {
  std::string name;  ///< "model.h.0.attn.weight", "optimizer.exp_avg.h.0.attn.weight"; must not contain '['
  Shape shape;       ///< shape of the whole tensor
  DType dtype = f32;
  int64_t begin = 0;
  int64_t end = 0;
  Tensor tensor;
};
/// A whole tensor as one piece.
Piece full(const std::string& name, const Tensor& tensor);
/// Makes `part` a piece of the tensor `name` of shape `shape`, from element `begin` on. If a rank's memory ends in
/// padding, pass `part` without the padding.
Piece part_of(const std::string& name, const Shape& shape, int64_t begin, const Tensor& part);

/// Counters, learning rates, loss scale, random state: integers, floating numbers and texts, stored exactly.
using Numbers = std::map<std::string, data::Json>;

/// The contribution of one rank to a checkpoint. A range that several ranks hold is written once.
struct Contents {
  std::vector<Piece> pieces;
  std::map<std::string, std::string> aliases;  ///< tied tensors: name -> name of the saved tensor
  Numbers numbers;                             ///< merged over ranks; ranks that give the same number must agree on it
  data::Json client_state;                     ///< any JSON, also NaN and infinity; rank 0's is stored
  std::string plan;  ///< arrangement of the ranks ("zero3:4x1"), for people; rank 0's is stored
};

/// The reaction of save() to ranks that pass different tags.
enum class TagValidation { fail, warn, ignore };

/// Options of a Saver.
struct SaveOptions {
  bool async = false;  ///< true: save() returns after the tensors are copied, and a thread writes them
  int keep = 0;        ///< number of newest checkpoints to keep; 0: all
  bool latest = true;  ///< true: load() loads this checkpoint by default
  /// The reaction to ranks that pass different tags to save(). With `warn` and `ignore`, rank 0's tag is used.
  TagValidation tag_validation = TagValidation::fail;
  bool take_over = false;             ///< true: ignore the lock that a job on another host has left
  dist::Seconds timeout{30};          ///< time for all ranks to call save(); then an error names the missing ranks
  dist::Seconds write_timeout{3600};  ///< time for all ranks to finish writing
  data::FileCalls* calls = nullptr;   ///< file operations; nullptr: those of the system
  std::function<void(const std::string&)> warn = {};  ///< called from any thread; default: a line on stderr
};

/// Saves checkpoints into one folder, which is locked against other jobs (DIR/lock). All ranks of `group` construct a
/// Saver and call save() together. Without a group, a single process saves.
class Saver {
 public:
  /// Opens no file yet; see save().
  explicit Saver(const std::string& dir, dist::ProcessGroup* group = nullptr, SaveOptions options = {});
  /// Waits for pending writes; an error that was not reported yet goes to SaveOptions::warn.
  ~Saver();
  Saver(const Saver&) = delete;

  /// Writes and commits DIR/TAG. Afterwards the checkpoint is complete even after a power cut, and `latest` names it
  /// (unless SaveOptions::latest is false). An Error, which all ranks raise, leaves earlier checkpoints intact, and
  /// training may continue; a DistError ends the job as usual. With `async`, save() raises only immediate errors;
  /// wait() or the next save() raises later ones.
  void save(const std::string& tag, const Contents& contents);
  /// Waits for pending writes; raises their error.
  void wait();
  /// Folder of the newest checkpoint that this Saver has committed; empty before the first.
  std::string committed() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The checks before loading: of every byte, by hashes, or only of sizes and headers.
enum class Verify { hashes, sizes };

/// Options of load() and inspect().
struct LoadOptions {
  std::string tag = {};  ///< tag to load; empty: the checkpoint that `latest` names
  /// The check of each file that is read. With Verify::hashes, one rank hashes the file for all ranks.
  Verify verify = Verify::hashes;
  /// True: if the newest checkpoint is damaged, use the previous one, with a warning.
  bool fall_back = false;
  bool convert = false;                ///< true: convert dtypes; false: a different dtype is an Error
  bool strict = true;                  ///< true: Error if the checkpoint has tensors that no rank asks for
  std::vector<std::string> skip = {};  ///< prefixes of names ("optimizer.") that are exempt from `strict`
  dist::Seconds timeout{30};           ///< time for all ranks to call load()
  std::function<void(const std::string&)> warn = {};  ///< called with warnings; default: a line on stderr
};

/// The file that contains elements [begin, end) of a logical tensor.
struct StoredPiece {
  std::string file;
  std::string name;  ///< name of the part in that file
  int64_t begin = 0;
  int64_t end = 0;
  uint32_t crc = 0;  ///< crc32c of the part's bytes; finds the damaged tensor when the file's hash differs
};
/// A tensor as it is stored in a checkpoint, possibly split over files.
struct LogicalTensor {
  DType dtype = f32;
  Shape shape;
  std::vector<StoredPiece> parts;                    ///< in order, from 0 to the last element without gaps or overlaps
  int64_t numel() const { return numel_of(shape); }  ///< number of elements
};
/// Size and hash of a file.
struct FileSum {
  int64_t bytes = 0;
  std::string hash;  ///< BLAKE2b, 64 hexadecimal digits
};
/// The table of contents of a checkpoint.
struct Manifest {
  static constexpr int64_t version = 1;
  std::string id;  ///< random; also in the metadata of each file
  std::string tag;
  int64_t sequence = 0;  ///< 1, 2, ... in the order in which checkpoints were saved into the folder
  int world = 1;         ///< number of ranks that saved it
  std::string plan;
  std::map<std::string, FileSum> files;
  std::map<std::string, LogicalTensor> tensors;
  std::map<std::string, std::string> aliases;
  Numbers numbers;
  data::Json client_state;
};
/// A manifest with its location.
struct Info : Manifest {
  std::string path;  ///< folder of the checkpoint
};
/// The result of load().
struct Loaded : Info {
  std::vector<std::string> unused;  ///< names of tensors that no rank asked for
};

/// Fills the pieces `wanted`, which may be any ranges of elements. `dir` is a checkpoint or a folder of checkpoints;
/// returns nullopt, with a warning, if it holds none. An Error, which all ranks raise before anything is loaded, lists
/// all missing, unexpected and differently shaped tensors, or the damaged files. If `latest` is missing or dangling,
/// the newest complete checkpoint is used, with a warning. Collective over `group`.
std::optional<Loaded> load(const std::string& dir, const std::vector<Piece>& wanted,
                           dist::ProcessGroup* group = nullptr, const LoadOptions& options = {});

/// Finds the checkpoint that load() would use with these options, and returns its manifest. A caller can then allocate
/// the tensors to fill (an optimizer's state, for example), and call load(info->path, ...). Collective.
std::optional<Info> inspect(const std::string& dir, dist::ProcessGroup* group = nullptr,
                            const LoadOptions& options = {});

/// Returns the integer `name` of a checkpoint's numbers (Manifest::numbers). Error if it is missing or no integer.
int64_t integer(const Numbers& numbers, const std::string& name);
double number(const Numbers& numbers, const std::string& name);  ///< a number; may be an integer

}  // namespace lockstep::checkpoints
