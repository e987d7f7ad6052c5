// Power cuts after any operation of a save: unflushed data may be lost in whole or in part, and either the old or the
// new checkpoint loads bit for bit. Case 35 of docs/faults.md.
#include <fstream>
#include <map>
#include <set>

#include "tests/checkpoint/util.h"

using namespace lockstep;
using namespace lockstep::checkpoints;

namespace {

/// Records every operation and carries it out.
class Recorder final : public FileCalls {
 public:
  struct Op {
    enum Kind { create, write, sync, rename, folder, remove } kind;
    std::string path, to = {}, data = {};
    int64_t offset = 0;
  };
  std::vector<Op> ops;
  std::mutex mutex;  // ranks are threads: operations are recorded in the order in which they are carried out

  int open(const char* path, int flags) override {
    const std::lock_guard lock(mutex);
    const bool is_new = !fs::exists(path);
    const int fd = FileCalls::open(path, flags);
    if (fd >= 0) paths_[fd] = path;
    if (fd >= 0 && is_new) ops.push_back({Op::create, path});
    return fd;
  }
  int64_t write(int fd, const std::byte* data, size_t bytes, int64_t offset) override {
    return note({Op::write, path_of(fd), "", std::string(reinterpret_cast<const char*>(data), bytes), offset},
                [&] { return FileCalls::write(fd, data, bytes, offset); });
  }
  int sync(int fd) override {
    return note({Op::sync, path_of(fd)}, [] { return 0; });
  }
  int rename(const char* from, const char* to) override {
    return note({Op::rename, from, to}, [&] { return FileCalls::rename(from, to); });
  }
  int make_folder(const char* path) override {
    return note({Op::folder, path}, [&] { return FileCalls::make_folder(path); });
  }
  int remove(const char* path) override {
    return note({Op::remove, path}, [&] { return FileCalls::remove(path); });
  }
  int remove_folder(const char* path) override {
    return note({Op::remove, path}, [&] { return FileCalls::remove_folder(path); });
  }

 private:
  /// Carries out an operation, and records it if it succeeds.
  template <class Fn> auto note(const Op& op, const Fn& carry_out) -> decltype(carry_out()) {
    const std::lock_guard lock(mutex);
    const auto result = carry_out();
    if (result >= 0) ops.push_back(op);
    return result;
  }
  std::string path_of(int fd) {
    const std::lock_guard lock(mutex);
    return paths_.at(fd);
  }
  std::map<int, std::string> paths_;
};

/// A simulated disk with a write cache: inodes, directory entries, and the unflushed changes of both.
class Disk {
 public:
  explicit Disk(const std::string& root) : root_(root) { read(root, 0); }

  void apply(const Recorder::Op& op) {
    const std::string name = fs::path(op.path).filename();
    if (op.kind == Recorder::Op::write) return nodes_[at(op.path)].writes.emplace_back(op.offset, op.data), void();
    if (op.kind == Recorder::Op::sync) return flush(nodes_[at(op.path)]);
    const size_t parent = at(fs::path(op.path).parent_path());
    if (op.kind == Recorder::Op::create || op.kind == Recorder::Op::folder) {
      nodes_.emplace_back().is_folder = op.kind == Recorder::Op::folder;
      nodes_[parent].change({name, "", int(nodes_.size()) - 1});
    } else if (op.kind == Recorder::Op::rename) {
      nodes_[parent].change({fs::path(op.to).filename(), name, nodes_[parent].now.at(name)});
    } else {
      nodes_[parent].change({name, "", -1});
    }
  }

  /// Writes a possible state after a power cut to `folder`. For each unflushed change, keep() returns what survives: 0
  /// nothing, 1 half of a write, 2 all of it.
  void restore(const std::string& folder, const std::function<int()>& keep, int id = 0) const {
    fs::create_directory(folder);
    std::map<std::string, int> names = nodes_[size_t(id)].safe;
    for (const auto& [name, from, node] : nodes_[size_t(id)].pending) {
      if (keep() == 0) continue;
      if (!from.empty()) {
        const auto there = names.find(from);
        if (there == names.end() || there->second != node) continue;  // the file that it renames was lost
        names.erase(there);
      }
      if (node < 0) names.erase(name);
      else names[name] = node;
    }
    for (const auto& [name, child] : names) {
      const Node& node = nodes_[size_t(child)];
      if (node.is_folder) {
        restore(folder + "/" + name, keep, child);
        continue;
      }
      std::string content = node.content;
      for (const auto& [offset, data] : node.writes) {
        const int luck = keep();
        if (luck) put(content, offset, luck == 1 ? data.substr(0, data.size() / 2) : data);
      }
      std::ofstream(folder + "/" + name, std::ios::binary) << content;
    }
  }

 private:
  struct Change {
    std::string name, from;
    int node;
  };  // node -1: the entry is removed
  struct Node {
    bool is_folder = false;
    std::string content;                                  // on the disk
    std::vector<std::pair<int64_t, std::string>> writes;  // in the cache
    std::map<std::string, int> safe, now;
    std::vector<Change> pending;
    void change(const Change& c) {
      pending.push_back(c);
      now.erase(c.node < 0 ? c.name : c.from);
      if (c.node >= 0) now[c.name] = c.node;
    }
  };

  static void flush(Node& node) {
    for (const auto& [offset, data] : node.writes) put(node.content, offset, data);
    node.writes.clear();
    node.pending.clear();
    node.safe = node.now;
  }
  static void put(std::string& content, int64_t offset, const std::string& data) {
    if (int64_t(content.size()) < offset + int64_t(data.size())) content.resize(size_t(offset) + data.size());
    content.replace(size_t(offset), data.size(), data);
  }
  size_t at(const fs::path& path) const {
    size_t id = 0;
    if (path == root_) return id;
    for (const auto& part : path.lexically_relative(root_)) id = size_t(nodes_[id].now.at(part.string()));
    return id;
  }
  void read(const fs::path& path, size_t id) {
    if (nodes_.size() <= id) nodes_.resize(id + 1);
    nodes_[id].is_folder = fs::is_directory(path);
    if (!nodes_[id].is_folder) {
      nodes_[id].content = data::read_file(path.string(), 1 << 24);
      return;
    }
    for (const auto& entry : fs::directory_iterator(path)) {
      const size_t child = nodes_.size();
      nodes_[id].safe[entry.path().filename()] = int(child);
      nodes_.emplace_back();
      read(entry.path(), child);
    }
    nodes_[id].now = nodes_[id].safe;
  }

  fs::path root_;
  std::vector<Node> nodes_;
};

/// The version that loads after a power cut.
int version_after(const Disk& disk, const std::function<int()>& keep) {
  const TempDir dir;
  disk.restore(dir / "run", keep);
  return load_version(dir / "run");
}

/// The versions that can load after a power cut behind each operation of `ops`, starting from `disk`.
std::vector<std::set<int>> versions_after(const std::vector<Recorder::Op>& ops, Disk disk) {
  std::vector<std::set<int>> observed;
  for (size_t k = 0; k <= ops.size(); ++k) {
    std::set<int>& found = observed.emplace_back();
    for (int round = 0; round < 5; ++round) {  // nothing survives, everything does, then at random
      uint64_t state = 88172645463325252u + 7919 * k + uint64_t(round);
      const auto keep = [&] {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        return round == 0 ? 0 : round == 1 ? 2 : int(state % 3);
      };
      INFO("operation ", k, ", round ", round);
      CHECK_NOTHROW(found.insert(version_after(disk, keep)));
    }
    if (k < ops.size()) disk.apply(ops[k]);
  }
  return observed;
}

}  // namespace

TEST_CASE("35: a power cut behind any operation: the old or the new one, and the new one when save() had returned") {
  for (const auto& [tag, world] : {std::pair{"two", 1}, {"one", 1}, {"two", 3}}) {
    const Run run;
    const Disk disk(run.path());
    Recorder recorder;
    dist::spawn(world, [&, tag = tag, world = world](int rank) {
      save(run.path(), tag, contents_of(Cut::flat, world, rank, 2), &dist::world(), options_with(&recorder));
    });
    const auto observed = versions_after(recorder.ops, disk);
    bool is_new = false;
    for (const auto& found : observed) {
      for (const int v : found) CHECK((v == 1 || v == 2));
      if (found == std::set<int>{2}) is_new = true;
      CHECK((!is_new || found == std::set<int>{2}));  // once only the new version loads, it stays that way
    }
    CHECK(is_new);
    CHECK(observed.front() == std::set<int>{1});
  }
}

TEST_CASE("35: the test sees a save that does not flush") {
  const Run run;
  const Disk disk(run.path());
  Recorder recorder;
  save(run.path(), "two", of_one_rank(2), nullptr, options_with(&recorder));
  // Without the flush of a file or its folder, something is broken: `latest` names a missing checkpoint, or a file is
  // incomplete. Loading reports it or falls back to an intact checkpoint.
  int broken = 0, syncs = 0;
  for (size_t skip = 0; skip < recorder.ops.size(); ++skip) {
    if (recorder.ops[skip].kind != Recorder::Op::sync) continue;
    ++syncs;
    Disk without = disk;
    for (size_t k = 0; k < recorder.ops.size(); ++k)
      if (k != skip && recorder.ops[k].kind != Recorder::Op::remove) without.apply(recorder.ops[k]);
    std::set<std::string> outcomes;
    for (int round = 0; round < 3; ++round) {
      outcomes.insert(message([&] { fail(str(version_after(without, [&] { return round; }))); }));
    }
    broken += outcomes != std::set<std::string>{"2"};
  }
  CHECK(syncs >= 6);
  CHECK(broken >= 4);
}
