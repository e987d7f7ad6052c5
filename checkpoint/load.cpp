// Loads a checkpoint: rank 0 finds it and broadcasts the manifest; every rank reports what does not fit; each file that
// any rank needs is verified once; tensors are filled only if all ranks agree.
#include <algorithm>
#include <filesystem>
#include <set>

#include "checkpoint/checkpoint.h"
#include "checkpoint/exchange.h"
#include "checkpoint/folder.h"
#include "checkpoint/layout.h"
#include "checkpoint/manifest.h"
#include "checkpoint/tensor_file.h"

namespace lockstep::checkpoints {
namespace {

using Lines = std::vector<std::string>;

/// Formats lines as "  line\n  line". Equal lines of several ranks are listed once, for the first rank.
std::string listing(const std::vector<std::pair<int, std::string>>& lines, bool with_rank) {
  constexpr size_t limit = 30;
  std::set<std::string> distinct;
  std::string text;
  for (const auto& [rank, line] : lines) {
    if (!distinct.insert(line).second) continue;
    if (distinct.size() <= limit) text += (with_rank ? str("\n  rank ", rank, ": ") : "\n  ") + line;
  }
  return distinct.size() <= limit ? text : str(text, "\n  and ", distinct.size() - limit, " more");
}

class Loading {
 public:
  Loading(const std::string& dir, const std::vector<Piece>& wanted, dist::ProcessGroup* group,
          const LoadOptions& options)
      : dir_(dir), wanted_(wanted), ranks_{group, options.warn}, options_(options) {}

  std::optional<Loaded> run() {
    ranks_.meet("checkpoint load", options_.timeout);
    for (Lines damaged;;) {
      const std::optional<Info> source = choose(damaged);
      if (!source) return std::nullopt;
      Loaded loaded = check_wanted(*source);
      const std::string damage = verify(*source);
      if (damage.empty()) {
        fill(*source);
        return loaded;
      }
      const bool standalone = std::filesystem::exists(dir_ + "/" + manifest_name);
      LOCKSTEP_CHECK(options_.fall_back && options_.tag.empty() && !standalone, "[checkpoint] ", source->path,
                     " is damaged, nothing was loaded:", damage,
                     options_.tag.empty() && !standalone ? "\nset fall_back to load the previous checkpoint"
                                                         : "\ncopy the checkpoint again, or load another one");
      if (ranks_.leads()) ranks_.warn(str(source->path, " is damaged:", damage));
      damaged.push_back(std::filesystem::path(source->path).filename().string());
    }
  }

  std::optional<Info> inspect() {
    ranks_.meet("checkpoint inspect", options_.timeout);
    return choose({});
  }

 private:
  /// Rank 0 chooses a checkpoint, and all ranks get its manifest.
  std::optional<Info> choose(Lines damaged) {
    std::string message;
    if (ranks_.leads()) {
      const std::string error = error_of([&] {
        for (;;) {
          std::string warning;
          const std::string folder = find_checkpoint(dir_, options_.tag, warning, damaged);
          if (!warning.empty()) ranks_.warn(warning);
          if (folder.empty()) return;
          try {
            const std::string text = read_manifest_text(folder);
            parse_manifest(text, folder + "/" + manifest_name);
            message = "=" + folder + '\0' + text;  // a path contains no zero byte
            return;
          } catch (const Error& error) {
            const bool standalone = folder == dir_;
            if (!options_.fall_back || !options_.tag.empty() || standalone) throw;
            ranks_.warn(error.what());
            damaged.push_back(std::filesystem::path(folder).filename().string());
          }
        }
      });
      if (!error.empty()) message = "!" + error;
    }
    message = ranks_.broadcast(message, "checkpoint load, manifest");
    LOCKSTEP_CHECK(!message.starts_with('!'), "[checkpoint] ", message.substr(1));
    if (message.empty()) return std::nullopt;
    const size_t end = message.find('\0');
    const std::string path = message.substr(1, end - 1);
    return Info{parse_manifest(std::string_view(message).substr(end + 1), path + "/" + manifest_name), path};
  }

  /// Returns the reason why the checkpoint cannot fill a wanted piece, or "".
  std::string mismatch(const Piece& piece, const Manifest& manifest) const {
    if (std::string error = check_piece(piece); !error.empty()) return error;
    const LogicalTensor* tensor = find_tensor(manifest, piece.name);
    if (!tensor) return "missing: " + piece.name;
    if (tensor->shape != piece.shape)
      return str("shape: ", piece.name, " is ", tensor->shape, " in the checkpoint, ", piece.shape, " here");
    if (tensor->dtype != piece.dtype && !options_.convert)
      return str("dtype: ", piece.name, " is ", tensor->dtype, " in the checkpoint, ", piece.dtype,
                 " here; set convert to convert it");
    return "";
  }

  /// Gathers the text lines of all ranks. Returns each line with the rank that it comes from.
  std::vector<std::pair<int, std::string>> gather(const Lines& mine, const std::string& what) const {
    std::vector<std::pair<int, std::string>> all;
    const std::vector<std::string> texts = ranks_.gather(pack(mine), what);
    for (size_t r = 0; r < texts.size(); ++r)
      for (const std::string& line : unpack(texts[r])) all.emplace_back(int(r), line);
    return all;
  }

  /// Compares the wanted pieces of all ranks with the manifest, and stores in files_ the files that any rank needs.
  Loaded check_wanted(const Info& source) {
    Lines problems;
    std::set<std::string> used;
    own_files_.clear();
    for (const Piece& piece : wanted_) {
      if (std::string problem = mismatch(piece, source); !problem.empty()) {
        problems.push_back(std::move(problem));
        continue;
      }
      const auto alias = source.aliases.find(piece.name);
      used.insert(alias == source.aliases.end() ? piece.name : alias->second);
      for (const StoredPiece& part : find_tensor(source, piece.name)->parts)
        if (part.begin < piece.end && part.end > piece.begin) own_files_.insert(part.file);
    }
    auto all = gather(problems, "checkpoint load, what does not fit");
    files_.clear();
    for (auto& [rank, file] : gather({own_files_.begin(), own_files_.end()}, "checkpoint load, files"))
      files_.insert(file);
    std::string bits;  // one bit per tensor is much shorter than the names
    for (const auto& [name, tensor] : source.tensors) bits += used.count(name) ? '1' : '0';
    for (const auto& [rank, theirs] : gather({bits}, "checkpoint load, wanted"))
      for (size_t i = 0; i < bits.size(); ++i) bits[i] = std::max(bits[i], theirs[i]);

    Loaded loaded{source, {}};
    size_t index = 0;
    for (const auto& [name, tensor] : source.tensors) {
      if (bits[index++] == '1') continue;
      loaded.unused.push_back(name);
      const bool skipped = std::any_of(options_.skip.begin(), options_.skip.end(),
                                       [&, &n = name](const std::string& start) { return n.starts_with(start); });
      if (options_.strict && !skipped) all.emplace_back(0, str("unexpected: ", name, " ", tensor.dtype, tensor.shape));
    }
    LOCKSTEP_CHECK(all.empty(), "[checkpoint] ", source.path,
                   " does not fit, nothing was loaded:", listing(all, ranks_.world() > 1),
                   "\nload it into the tensors that were saved, or another checkpoint");
    return loaded;
  }

  /// Verifies every file that any rank needs: one rank hashes it, and each rank that needs the file checks its header.
  std::string verify(const Info& source) {
    Lines damage;
    open_.clear();
    const auto note = [&](const std::function<void()>& check) {
      if (std::string error = error_of(check); !error.empty()) damage.push_back(std::move(error));
    };
    int file_index = 0;
    for (const std::string& file : files_)
      if (options_.verify == Verify::hashes && file_index++ % ranks_.world() == ranks_.rank())
        note([&] { verify_file(source.path, source, file); });
    for (const std::string& file : own_files_) note([&] { open_.emplace(file, open_part(source.path, source, file)); });
    return listing(gather(damage, "checkpoint load, verified"), ranks_.world() > 1);
  }

  void fill(const Info& source) {
    const std::string error = error_of([&] {
      for (const Piece& piece : wanted_) {
        for (const StoredPiece& part : find_tensor(source, piece.name)->parts) {
          const int64_t begin = std::max(part.begin, piece.begin), end = std::min(part.end, piece.end);
          if (begin >= end) continue;
          const Tensor from =
              open_.at(part.file).tensor(part.name).view({-1}).narrow(0, begin - part.begin, end - begin);
          const Tensor to = piece.tensor.view({-1}).narrow(0, begin - piece.begin, end - begin);
          to.copy_(from);
        }
      }
      data::check_mapped_files();
    });
    const auto all = gather(error.empty() ? Lines() : Lines{error}, "checkpoint load, done");
    LOCKSTEP_CHECK(
        all.empty(), "[checkpoint] ", source.path,
        " could not be read after it was verified; the tensors are partly overwritten; load it again, or another one:",
        listing(all, ranks_.world() > 1));
  }

  const std::string dir_;
  const std::vector<Piece> wanted_;
  const Ranks ranks_;
  const LoadOptions options_;
  std::set<std::string> files_, own_files_;        // needed by any rank; needed by this rank
  std::map<std::string, data::SafeTensors> open_;  // the files in own_files_
};

const data::Json& get(const Numbers& numbers, const std::string& name, bool (data::Json::*is)() const,
                      const char* kind) {
  const auto found = numbers.find(name);
  LOCKSTEP_CHECK(found != numbers.end(), "[checkpoint] expected a number \"", name,
                 "\", the checkpoint has none; save it too");
  LOCKSTEP_CHECK((found->second.*is)(), "[checkpoint] expected \"", name, "\" to be ", kind, ", got ",
                 text_of(found->second), "; read it as the type that was saved");
  return found->second;
}

}  // namespace

std::optional<Loaded> load(const std::string& dir, const std::vector<Piece>& wanted, dist::ProcessGroup* group,
                           const LoadOptions& options) {
  return Loading(dir, wanted, group, options).run();
}

std::optional<Info> inspect(const std::string& dir, dist::ProcessGroup* group, const LoadOptions& options) {
  return Loading(dir, {}, group, options).inspect();
}

int64_t integer(const Numbers& numbers, const std::string& name) {
  return get(numbers, name, &data::Json::is_int, "a whole number").as_int();
}
double number(const Numbers& numbers, const std::string& name) {
  return get(numbers, name, &data::Json::is_number, "a number").as_number();
}

}  // namespace lockstep::checkpoints
