#pragma once
// Journal and Rewind: record and restore the state that a piece of code overwrites (running statistics, vectors of the
// power method, counters). The code can then run a second time from the same state, and its effects count only once.
#include <vector>

#include "tensor/tensor.h"

namespace lockstep {

/// While it lives, saves the old bytes of every storage that operations of this thread overwrite, before the first
/// write. It saves no storage that was allocated during its lifetime. Storage::bump_version() reports writes to it; it
/// does not notice writes through data().
class Journal {
 public:
  Journal();
  ~Journal();
  Journal(const Journal&) = delete;

  /// A storage and a copy of its bytes before the first write.
  struct Entry {
    Tensor place, before;
  };
  std::vector<Entry> entries;

 private:
  friend class Storage;
  void note(Storage& storage);
  Journal* const outer_;
  const uint64_t number_;  // counts up; storages with a smaller made_in_ are older than this journal
};

/// While it lives, the storages in `entries` have their old bytes again, and no Journal of this thread saves anything.
/// The destructor restores the bytes and versions that the storages had at construction.
class Rewind {
 public:
  explicit Rewind(const std::vector<Journal::Entry>& entries);
  ~Rewind();
  Rewind(const Rewind&) = delete;

 private:
  struct Away {
    Ref<Storage> place, bytes;  // bytes: the contents that `place` had
    uint32_t version;
  };
  std::vector<Away> away_;
  Journal* const journal_;
};

}  // namespace lockstep
