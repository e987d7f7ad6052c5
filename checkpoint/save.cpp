// Saves a checkpoint in two phases. First, every rank writes its own file into TAG.tmp-ID/ and flushes it. Then rank 0
// writes the manifest, renames the folder, and updates `latest`. Earlier checkpoints are not touched before the folder
// is renamed.
//
//   all     meet, exchange their contents, compute the layout       (in the thread that calls save())
//   rank 0  lock, remove leftovers of killed saves, make folder     (from here on in another thread, if async)
//   all     write, flush, report size and hash to rank 0
//   rank 0  manifest, flush | rename, flush | latest, flush | remove old checkpoints
#include <algorithm>
#include <filesystem>
#include <future>
#include <mutex>
#include <system_error>

#include "checkpoint/checkpoint.h"
#include "checkpoint/exchange.h"
#include "checkpoint/folder.h"
#include "checkpoint/hash.h"
#include "checkpoint/layout.h"
#include "checkpoint/lock.h"
#include "checkpoint/tensor_file.h"
#include "trace/trace.h"

namespace lockstep::checkpoints {
namespace {

using data::Json;
namespace fs = std::filesystem;

/// The work of one rank in one save.
struct Job {
  Manifest manifest;
  std::vector<Assignment::Write> writes;
  std::vector<std::vector<Tensor>> parts;  // parts of each write, in order
  std::string error;                       // reason why this rank cannot write
};

}  // namespace

struct Saver::State {
  State(const std::string& folder, dist::ProcessGroup* group, SaveOptions given)
      : dir(folder),
        ranks{group, given.warn},
        keeps_ranks(group ? group->weak_from_this().lock() : nullptr),
        options(std::move(given)),
        files(options.calls ? *options.calls : data::system_calls()) {}

  std::string path_of(const std::string& name) const { return dir + "/" + name; }

  /// Compares the arguments of save() on all ranks, given as JSON `texts`. Error if they differ; but different tags are
  /// an Error only with TagValidation::fail. Sets `tag` to the tag of rank 0.
  void agree(const std::vector<std::string>& texts, std::string& tag) {
    Json first;
    for (size_t r = 0; r < texts.size(); ++r) {
      const Json json = data::parse_json(texts[r], str("rank ", r));
      if (r == 0) {
        first = json;
        tag = first.at("tag").as_string();
        continue;
      }
      for (const auto& [key, value] : json.as_object()) {
        const Json& expected = first.at(key);
        if (value == expected) continue;
        const std::string differ = str("expected the same ", key, " on all ranks, got ", expected.dump(),
                                       " at rank 0 and ", value.dump(), " at rank ", r);
        LOCKSTEP_CHECK(key == "tag" && options.tag_validation != TagValidation::fail, differ,
                       "; pass the same everywhere");
        if (ranks.leads() && options.tag_validation == TagValidation::warn)
          ranks.warn(differ + "; using that of rank 0");
      }
    }
  }

  Job open(const std::string& given_tag, const Contents& contents) {
    ranks.meet("checkpoint save", options.timeout);
    Offer mine = offer_of(contents);
    if (mine.error.empty()) mine.error = error_of([&] { check_tag(given_tag); });
    const Json call(Json::Object{{"tag", given_tag},
                                 {"dir", dir},
                                 {"async", options.async},
                                 {"keep", options.keep},
                                 {"latest", options.latest},
                                 {"tag_validation", int(options.tag_validation)}});
    // Usually all ranks have equal contents, so compare their hashes first; only if these differ, gather the contents.
    std::string text = call.dump() + "\n" + to_text(mine);
    const std::string id = random_id(), hash = hash_of(data::as_bytes(text));
    const std::vector<std::string> heads = ranks.gather(id + hash, "checkpoint save, hash of contents");
    const bool same = std::all_of(heads.begin(), heads.end(),
                                  [&](const std::string& head) { return head.substr(id.size()) == hash; });
    if (!board) board.emplace(ranks, heads[0].substr(0, id.size()));
    board->next_round();

    std::vector<Offer> offers;
    std::vector<size_t> of_rank(size_t(ranks.world()), 0);
    std::string tag = given_tag;
    if (same) {
      offers.push_back(std::move(mine));
    } else {
      const std::vector<std::string> texts = ranks.gather(text, "checkpoint save, contents");
      std::vector<std::string> calls;
      std::map<std::string, size_t> known;
      for (size_t r = 0; r < texts.size(); ++r) {
        const size_t line = texts[r].find('\n');
        calls.push_back(texts[r].substr(0, line));
        const auto [at, is_new] = known.emplace(texts[r].substr(line + 1), offers.size());
        if (is_new) offers.push_back(parse_offer(at->first, str("rank ", r)));
        of_rank[r] = at->second;
      }
      for (size_t r = 0; r < of_rank.size(); ++r)
        LOCKSTEP_CHECK(offers[of_rank[r]].error.empty(), "rank ", r, ": ", offers[of_rank[r]].error);
      agree(calls, tag);
    }
    Assignment layout = make_layout(offers, of_rank);

    Job job{.manifest = std::move(layout.manifest), .writes = std::move(layout.writes[size_t(ranks.rank())])};
    Manifest& m = job.manifest;
    m.id = heads[0].substr(0, id.size());
    m.tag = tag;
    m.world = ranks.world();
    m.plan = contents.plan;
    m.client_state = contents.client_state;
    // chunk.piece is an index in the list of pieces that offer_of() made. It is also the index in contents.pieces:
    // offer_of() leaves out only invalid pieces, and these have raised an error above.
    for (const Assignment::Write& w : job.writes) {
      auto& parts = job.parts.emplace_back();
      for (const Assignment::Chunk& chunk : w.chunks) {
        if (chunk.begin == chunk.end) continue;
        const Piece& piece = contents.pieces[chunk.piece];
        parts.push_back(piece.tensor.view({-1}).narrow(0, chunk.begin - piece.begin, chunk.end - chunk.begin));
      }
    }
    return job;
  }

  /// Copies the tensors, so that training may change the originals while the copies are written.
  static void snapshot(Job& job) {
    for (auto& parts : job.parts) {
      for (Tensor& part : parts) part = part.device().is_cpu() ? part.clone() : part.to(cpu);
    }
  }

  void prepare(const Job& job) {
    files.make_folders(dir);
    if (!lock) {
      lock = std::make_unique<FolderLock>(files, dir, options.take_over,
                                          [this](const std::string& what) { ranks.warn(what); });
      kept.clear();
      for (const Found& found : list_checkpoints(dir)) {
        int64_t sequence = 0;  // stays 0 if the checkpoint is damaged; prune() removes it first
        try {
          sequence = read_manifest(path_of(found.folder)).sequence;
        } catch (const Error& error) { ranks.warn(error.what()); }
        kept.push_back({sequence, found.folder, found.tag});
      }
    }
    // With the lock held, no other job writes here: unfinished folders are leftovers.
    std::vector<std::string> stale;
    for (const auto& entry : fs::directory_iterator(dir))
      if (is_temporary(entry.path().filename().string())) stale.push_back(entry.path().string());
    for (const std::string& path : stale) fs::is_directory(path) ? files.remove_tree(path) : files.remove(path);
    files.make_folder(path_of(temporary_name(job.manifest.tag, job.manifest.id)));
  }

  /// Writes this rank's file; returns its size, hash and the crc of each part as a text.
  std::string write(const Job& job) {
    if (job.writes.empty()) return "{}";
    const Manifest& m = job.manifest;
    const std::string folder = path_of(temporary_name(m.tag, m.id)), name = file_of_rank(ranks.rank());
    std::vector<data::SafeTensorsEntry> entries;
    std::map<std::string, size_t> index;
    for (size_t i = 0; i < job.writes.size(); ++i) {
      const LogicalTensor& tensor = m.tensors.at(job.writes[i].tensor);
      const StoredPiece& part = tensor.parts[job.writes[i].part];
      const bool is_full = part.end - part.begin == tensor.numel();
      entries.push_back({part.name, tensor.dtype, is_full ? tensor.shape : Shape{part.end - part.begin}});
      index[part.name] = i;
    }
    data::NewFile to(files, folder + "/" + name);
    TensorFile file(to, name, entries, {{"checkpoint", m.id}, {"file", name}, {"tag", m.tag}});
    std::vector<uint32_t> crcs(entries.size());
    for (const auto& entry : entries) {
      const size_t i = index.at(entry.name);
      for (const Tensor& part : job.parts[i]) file.append(part.to(cpu));
      crcs[i] = file.take_crc();
    }
    to.finish();
    const FileSum sum = file.sum();
    files.sync_folder(folder);
    Json::Array list;
    for (const uint32_t crc : crcs) list.push_back(int64_t(crc));
    return Json(Json::Object{{"bytes", sum.bytes}, {"blake2b", sum.hash}, {"crc32c", std::move(list)}}).dump();
  }

  /// On rank 0: adds the reports of all ranks to the manifest; returns the errors that they report.
  std::vector<std::string> collect(const std::string& mine, Job& job) {
    Manifest& m = job.manifest;
    std::map<std::string, std::vector<StoredPiece*>> parts;  // parts of each file, in order
    for (auto& [name, tensor] : m.tensors)
      for (StoredPiece& part : tensor.parts) parts[part.file].push_back(&part);
    std::vector<std::string> errors;
    for (int r = 0; r < ranks.world(); ++r) {
      const std::string error = error_of([&] {
        const std::string text =
            r == 0 ? mine : board->read(str(r), options.write_timeout, str("rank ", r, " to write its file"));
        LOCKSTEP_CHECK(!text.starts_with('!'), text.substr(1));
        const std::string file = file_of_rank(r);
        if (text == "{}") return;
        const Json json = data::parse_json(text, str("rank ", r));
        m.files[file] = {json.at("bytes").as_int(), json.at("blake2b").as_string()};
        const auto& crcs = json.at("crc32c").as_array();
        LOCKSTEP_CHECK(crcs.size() == parts[file].size(), "expected ", parts[file].size(), " parts, got ", crcs.size(),
                       "; this is a bug in Lockstep, please report it");
        for (size_t i = 0; i < crcs.size(); ++i) parts[file][i]->crc = uint32_t(crcs[i].as_int());
      });
      if (!error.empty()) errors.push_back(ranks.are_one() ? error : str("rank ", r, ": ", error));
    }
    return errors;
  }

  void commit(Job& job) {
    Manifest& m = job.manifest;
    m.sequence = 1;
    for (const Kept& k : kept) m.sequence = std::max(m.sequence, k.sequence + 1);
    const std::string temporary = path_of(temporary_name(m.tag, m.id)), text = to_text(m);
    parse_manifest(text, manifest_name);  // never commit a manifest that could not be loaded
    files.write_file(temporary + "/" + manifest_name, text);
    files.sync_folder(temporary);
    const std::string folder = next_folder(dir, m.tag);
    files.rename(temporary, path_of(folder));
    renamed = true;
    kept.push_back({m.sequence, folder, m.tag});
    files.sync_folder(dir);
    if (options.latest) {
      const std::string next = path_of(temporary_name("latest", m.id));
      files.write_file(next, folder + "\n");
      files.rename(next, path_of("latest"));
      files.sync_folder(dir);
    }
    const std::lock_guard guard(mutex);
    committed = path_of(folder);
  }

  /// Removes checkpoints that are too old or were replaced under the same tag, but never the one that `latest` names.
  void prune(const std::string& id) {
    const std::string latest = read_latest(dir);
    std::sort(kept.begin(), kept.end(), [](const Kept& a, const Kept& b) { return a.sequence > b.sequence; });
    const std::string newest_tag = kept[0].tag;
    std::vector<std::string> gone;
    for (int stay = 0; const Kept& k : std::vector<Kept>(kept)) {
      const bool replaced = stay > 0 && k.tag == newest_tag, too_old = options.keep > 0 && stay >= options.keep;
      if ((!replaced && !too_old) || k.folder == latest) {
        ++stay;
        continue;
      }
      // Rename the folder before removing its files, so that a partly removed checkpoint is never listed.
      gone.push_back(path_of(temporary_name(k.folder, id)));
      files.rename(path_of(k.folder), gone.back());
      std::erase_if(kept, [&](const Kept& other) { return other.folder == k.folder; });
    }
    for (const std::string& folder : gone) files.remove_tree(folder);
  }

  void run(Job& job) {
    const std::string& tag = job.manifest.tag;
    std::string error;
    renamed = false;
    if (ranks.leads()) error = error_of([&] { prepare(job); });
    if (!ranks.are_one()) {
      if (ranks.leads()) board->pin("folder", error);
      else error = board->read("folder", options.write_timeout, "rank 0 to make the folder");
    }
    if (error.empty()) {
      std::string mine;  // a report, or '!' and an error
      std::string failed = job.error.empty() ? error_of([&] { mine = write(job); }) : job.error;
      if (!failed.empty()) mine = "!" + failed;
      if (ranks.leads()) {
        for (const std::string& e : collect(mine, job)) error += (error.empty() ? "" : "; ") + e;
        if (error.empty()) error = error_of([&] { commit(job); });
        if (!error.empty() && renamed) error += "; the checkpoint is complete, but `latest` may not name it";
        if (!error.empty() && !renamed)
          (void)error_of([&] { files.remove_tree(path_of(temporary_name(tag, job.manifest.id))); });
        if (!ranks.are_one()) board->pin("done", error.empty() ? committed : "!" + error);
      } else {
        board->pin(str(ranks.rank()), mine);
        const std::string done = board->read("done", 2 * options.write_timeout, "rank 0 to commit");
        if (done.starts_with('!')) error = done.substr(1);
        const std::lock_guard guard(mutex);
        if (error.empty()) committed = done;
      }
    }
    LOCKSTEP_CHECK(error.empty(), "[checkpoint] ", tag, " was not saved into ", dir, ": ", error);
    if (!ranks.leads()) return;
    const std::string left = error_of([&] { prune(job.manifest.id); });
    if (!left.empty()) ranks.warn(str(tag, " is saved, but older checkpoints could not be removed: ", left));
  }

  const std::string dir;
  const Ranks ranks;
  const std::shared_ptr<dist::ProcessGroup> keeps_ranks;  // the writing thread may be the last user of the group
  const SaveOptions options;
  data::Files files;
  std::optional<Board> board;

  const Maker maker;

  // On rank 0 only:
  std::unique_ptr<FolderLock> lock;
  struct Kept {
    int64_t sequence;
    std::string folder, tag;
  };
  std::vector<Kept> kept;
  bool renamed = false;  // true once the folder of the current save has its final name

  std::future<void> running;  // the writing thread
  mutable std::mutex mutex;
  std::string committed;  // guarded by mutex
};

Saver::Saver(const std::string& dir, dist::ProcessGroup* group, SaveOptions options)
    : state_(std::make_unique<State>(dir, group, std::move(options))) {
  LOCKSTEP_CHECK(!dir.empty(), "[checkpoint] expected a folder to save into, got an empty name; give its path");
  LOCKSTEP_CHECK(state_->options.keep >= 0, "[checkpoint] expected keep >= 0 (0: keep all), got ",
                 state_->options.keep);
  LOCKSTEP_CHECK(state_->options.timeout.count() > 0 && state_->options.write_timeout.count() > 0,
                 "[checkpoint] expected timeout and write_timeout above 0 s, got ", state_->options.timeout.count(),
                 " and ", state_->options.write_timeout.count());
}

Saver::~Saver() {
  if (!state_->maker.is_here()) {  // a forked child must not wait for its parent's thread
    never_destroy(std::move(state_));
    return;
  }
  try {
    wait();
  } catch (const std::exception& error) {
    try {
      state_->ranks.warn(error.what());
    } catch (...) {  // nothing can be done about it
    }
  }
}

void Saver::save(const std::string& tag, const Contents& contents) {
  const trace::Scope scope("save checkpoint", trace::Category::checkpoint);
  wait();
  Job job;
  try {
    job = state_->open(tag, contents);
  } catch (const dist::DistError&) { throw; } catch (const Error& error) {
    fail(str("[checkpoint] ", tag, " was not saved into ", state_->dir, ": ", error.what()));
  }
  if (!state_->options.async) return state_->run(job);
  job.error = error_of([&] { State::snapshot(job); });
  auto work = std::make_shared<Job>(std::move(job));
  try {
    state_->running = std::async(std::launch::async, [state = state_.get(), work] { state->run(*work); });
  } catch (const std::system_error& error) {  // the other ranks wait for this rank's report
    work->error = str("cannot start a thread: ", error.what(), "; raise ulimit -u, or save without async");
    state_->run(*work);
  }
}

void Saver::wait() {
  if (state_->running.valid()) state_->running.get();
}

std::string Saver::committed() const {
  const std::lock_guard guard(state_->mutex);
  return state_->committed;
}

}  // namespace lockstep::checkpoints
