// A load: rank 0 finds the checkpoint and tells all its manifest; every rank says what it misses, all files that
// anybody needs are verified once, and only when all agree are tensors filled.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iostream>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/exchange.h"
#include "engine/checkpoint/folder.h"
#include "engine/checkpoint/layout.h"
#include "engine/checkpoint/manifest.h"
#include "engine/checkpoint/verify.h"

namespace lockstep::checkpoints {
namespace {

using Lines = std::vector<std::string>;

/// "  line\n  line": what several ranks say alike is said once, with the first rank that does.
std::string listing(const std::vector<std::pair<int, std::string>>& lines, bool with_rank) {
  constexpr size_t most = 30;
  std::vector<std::string> seen;
  std::string text;
  for (const auto& [rank, line] : lines) {
    if (std::find(seen.begin(), seen.end(), line) != seen.end()) continue;
    seen.push_back(line);
    if (seen.size() <= most) text += (with_rank ? str("\n  rank ", rank, ": ") : "\n  ") + line;
  }
  return seen.size() <= most ? text : str(text, "\n  and ", seen.size() - most, " more");
}

struct Source {
  std::string folder;
  Manifest manifest;
};

Info info_of(const Source& source) {
  const Manifest& m = source.manifest;
  Info info{source.folder, m.tag, m.world, m.plan, m.numbers, m.client_state, {}, m.aliases};
  for (const auto& [name, tensor] : m.tensors) info.tensors[name] = {tensor.dtype, tensor.shape};
  return info;
}

class Loading {
 public:
  Loading(const std::string& dir, const std::vector<Piece>& wanted, dist::ProcessGroup* group,
          const LoadOptions& options)
      : dir_(dir), wanted_(wanted), group_(group), options_(options) {}

  std::optional<Loaded> run() {
    meet(group_, "checkpoint load", options_.timeout);
    for (Lines damaged;;) {
      const std::optional<Source> source = choose(damaged);
      if (!source) return std::nullopt;
      Loaded loaded = check_wanted(*source);
      const std::string damage = verify(*source);
      if (damage.empty()) {
        fill(*source);
        return loaded;
      }
      const bool alone = std::filesystem::exists(dir_ + "/" + manifest_name);
      LOCKSTEP_CHECK(options_.fall_back && options_.tag.empty() && !alone, "[checkpoint] ", source->folder,
                     " is damaged, nothing was loaded:", damage,
                     options_.tag.empty() && !alone ? "\nfall_back takes the one before" : "");
      if (leads()) warn(str(source->folder, " is damaged:", damage));
      damaged.push_back(std::filesystem::path(source->folder).filename().string());
    }
  }

  std::optional<Info> inspect() {
    meet(group_, "checkpoint inspect", options_.timeout);
    const std::optional<Source> source = choose({});
    return source ? std::optional(info_of(*source)) : std::nullopt;
  }

 private:
  int rank() const { return group_ ? group_->rank() : 0; }
  int world() const { return group_ ? group_->size() : 1; }
  bool leads() const { return rank() == 0; }
  void warn(const std::string& what) const {
    if (options_.warn) options_.warn("[checkpoint] " + what);
    else std::cerr << "warning: [checkpoint] " << what << std::endl;
  }

  /// Rank 0 looks, all get the same.
  std::optional<Source> choose(Lines damaged) {
    std::string told;
    if (leads()) {
      const std::string error = error_of([&] {
        for (;;) {
          std::string warning;
          const std::string folder = find_checkpoint(dir_, options_.tag, warning, damaged);
          if (!warning.empty()) warn(warning);
          if (folder.empty()) return;
          try {
            const std::string text = read_manifest_text(folder);
            parse_manifest(text, folder + "/" + manifest_name);
            told = folder + "\n" + text;
            return;
          } catch (const Error& error) {
            const bool alone = folder == dir_;
            if (!options_.fall_back || !options_.tag.empty() || alone) throw;
            warn(error.what());
            damaged.push_back(std::filesystem::path(folder).filename().string());
          }
        }
      });
      if (!error.empty()) told = "!" + error;
    }
    told = broadcast_text(group_, told, "checkpoint load, manifest");
    LOCKSTEP_CHECK(!told.starts_with('!'), "[checkpoint] ", told.substr(1));
    if (told.empty()) return std::nullopt;
    const size_t line = told.find('\n');
    Source source{told.substr(0, line), {}};
    source.manifest = parse_manifest(std::string_view(told).substr(line + 1), source.folder + "/" + manifest_name);
    return source;
  }

  /// What is wrong with one wanted piece, or "".
  std::string mismatch(const Piece& piece, const Manifest& manifest) const {
    if (std::string error = check_piece(piece); !error.empty()) return error;
    const LogicalTensor* tensor = find_tensor(manifest, piece.name);
    if (!tensor) return "missing: " + piece.name;
    if (tensor->shape != piece.shape)
      return str("shape: ", piece.name, " is ", tensor->shape, " in the checkpoint, ", piece.shape, " here");
    if (tensor->dtype != piece.dtype && !options_.convert)
      return str("dtype: ", piece.name, " is ", tensor->dtype, " in the checkpoint, ", piece.dtype,
                 " here; convert is off");
    return "";
  }

  /// Compares what all ranks want with what there is; keeps the files that any rank needs in files_.
  Loaded check_wanted(const Source& source) {
    const Manifest& m = source.manifest;
    Lines problems, files, used;
    for (const Piece& piece : wanted_) {
      if (std::string problem = mismatch(piece, m); !problem.empty()) {
        problems.push_back(std::move(problem));
        continue;
      }
      const auto alias = m.aliases.find(piece.name);
      used.push_back(alias == m.aliases.end() ? piece.name : alias->second);
      for (const Part& part : find_tensor(m, piece.name)->parts)
        if (part.begin < piece.end && part.end > piece.begin) files.push_back(part.file);
    }
    for (Lines* list : {&files, &used}) {
      std::sort(list->begin(), list->end());
      list->erase(std::unique(list->begin(), list->end()), list->end());
    }
    own_files_ = files;
    // One bit a tensor: much shorter than names.
    std::string bits(m.tensors.size(), '0');
    size_t index = 0, at = 0;
    for (const auto& [name, tensor] : m.tensors) {
      if (at < used.size() && used[at] == name) bits[index] = '1', ++at;
      ++index;
    }
    std::vector<std::pair<int, std::string>> all;
    files_.clear();
    const std::vector<std::string> texts =
        gather_texts(group_, pack({pack(problems), pack(files), bits}), "checkpoint load, wanted");
    for (size_t r = 0; r < texts.size(); ++r) {
      const Lines theirs = unpack(texts[r]);
      for (const std::string& line : unpack(theirs[0])) all.emplace_back(int(r), line);
      for (const std::string& file : unpack(theirs[1])) files_.push_back(file);
      for (size_t i = 0; i < bits.size(); ++i)
        if (theirs[2][i] == '1') bits[i] = '1';
    }
    std::sort(files_.begin(), files_.end());
    files_.erase(std::unique(files_.begin(), files_.end()), files_.end());

    Loaded loaded{info_of(source), {}};
    index = 0;
    for (const auto& [name, tensor] : m.tensors) {
      if (bits[index++] == '1') continue;
      loaded.unused.push_back(name);
      bool skipped = false;
      for (const std::string& start : options_.skip) skipped = skipped || name.starts_with(start);
      if (options_.strict && !skipped)
        all.emplace_back(0, str("not asked for: ", name, " ", tensor.dtype, tensor.shape));
    }
    LOCKSTEP_CHECK(all.empty(), "[checkpoint] ", source.folder,
                   " does not fit, nothing was loaded:", listing(all, world() > 1));
    return loaded;
  }

  /// Every file that anybody needs, all of its bytes by one rank; its header also by each rank that needs it.
  std::string verify(const Source& source) {
    Lines damage;
    open_.clear();
    const auto note = [&](const std::function<void()>& check) {
      if (std::string error = error_of(check); !error.empty()) damage.push_back(std::move(error));
    };
    if (options_.verify == Verify::hashes)
      for (size_t i = size_t(rank()); i < files_.size(); i += size_t(world()))
        note([&] { verify_file(source.folder, source.manifest, files_[i]); });
    for (const std::string& file : own_files_)
      note([&] { open_.emplace(file, open_part(source.folder, source.manifest, file)); });
    const std::vector<std::string> texts = gather_texts(group_, pack(damage), "checkpoint load, verified");
    std::vector<std::pair<int, std::string>> all;
    for (size_t r = 0; r < texts.size(); ++r)
      for (const std::string& line : unpack(texts[r])) all.emplace_back(int(r), line);
    return listing(all, world() > 1);
  }

  void fill(const Source& source) {
    std::string error = error_of([&] {
      for (const Piece& piece : wanted_) {
        for (const Part& part : find_tensor(source.manifest, piece.name)->parts) {
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
    const std::vector<std::string> errors = gather_texts(group_, error, "checkpoint load, done");
    std::vector<std::pair<int, std::string>> all;
    for (size_t r = 0; r < errors.size(); ++r)
      if (!errors[r].empty()) all.emplace_back(int(r), errors[r]);
    LOCKSTEP_CHECK(all.empty(), "[checkpoint] ", source.folder,
                   " could not be read after it was verified; what is in the tensors is not to be used:",
                   listing(all, world() > 1));
  }

  const std::string dir_;
  const std::vector<Piece> wanted_;
  dist::ProcessGroup* group_;
  const LoadOptions options_;
  Lines files_, own_files_;                        // that any rank needs; that this one does
  std::map<std::string, data::SafeTensors> open_;  // own_files_
};

template <class T> const T& get(const Numbers& numbers, const std::string& name, const char* kind) {
  const auto found = numbers.find(name);
  LOCKSTEP_CHECK(found != numbers.end(), "[checkpoint] expected a number \"", name, "\", the checkpoint has none");
  const T* value = std::get_if<T>(&found->second);
  LOCKSTEP_CHECK(value, "[checkpoint] expected \"", name, "\" to be ", kind, ", got ", text_of(found->second));
  return *value;
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
  return get<int64_t>(numbers, name, "a whole number");
}
double number(const Numbers& numbers, const std::string& name) {
  const auto found = numbers.find(name);
  if (found != numbers.end())
    if (const int64_t* whole = std::get_if<int64_t>(&found->second)) return double(*whole);
  return get<double>(numbers, name, "a number");
}
const std::string& text(const Numbers& numbers, const std::string& name) {
  return get<std::string>(numbers, name, "a text");
}

}  // namespace lockstep::checkpoints
