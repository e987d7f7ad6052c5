#pragma once
// What a piece of a program writes over: state that was there before it began (running statistics, vectors of a power
// method, counters), as it was then. So the piece can run a second time as it ran the first, and counts once.
#include <vector>

#include "tensor/tensor.h"

namespace lockstep {

/// While it lives, it keeps what operations of this thread write over for the first time; results that were made
/// meanwhile are no state. Told by Storage::bump_version(), so not of writes through data().
class Journal {
 public:
  Journal();
  ~Journal();
  Journal(const Journal&) = delete;

  /// All bytes of a storage: where they are, and what they were.
  struct Entry {
    Tensor place, before;
  };
  std::vector<Entry> entries;

 private:
  friend class Storage;
  void note(Storage& storage);
  Journal* const outer_;
  const uint64_t number_;  // grows; Storage::made_in_ is that of the innermost one
};

/// While it lives, state is as it was before what these entries are of, and this thread keeps no journal; at its end
/// state is as it was at its beginning, of the same version.
class Rewind {
 public:
  explicit Rewind(const std::vector<Journal::Entry>& entries);
  ~Rewind();
  Rewind(const Rewind&) = delete;

 private:
  struct Away {
    Ref<Storage> place, bytes;  // what it had lies in `bytes`
    uint32_t version;
  };
  std::vector<Away> away_;
  Journal* const journal_;
};

}  // namespace lockstep
