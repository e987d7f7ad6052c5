// Saves and restores bytes that operations overwrite. See journal.h.
#include "tensor/journal.h"

#include <algorithm>
#include <atomic>
#include <utility>

namespace lockstep {
namespace {

std::atomic<uint64_t> journals{0};

}  // namespace

Journal::Journal() : outer_(std::exchange(Storage::journal_, this)), number_(++journals) {}
Journal::~Journal() { Storage::journal_ = outer_; }

uint64_t Storage::number_of_journal() { return journal_ ? journal_->number_ : 0; }

void Storage::note_write() {
  if (!data_) return;
  for (Journal* one = journal_; one; one = one->outer_)
    if (made_in_ < one->number_) one->note(*this);
}

void Journal::note(Storage& storage) {
  const auto same = [&](const Entry& entry) { return entry.place.storage().get() == &storage; };
  if (std::any_of(entries.begin(), entries.end(), same)) return;
  const Rewind unseen({});  // the journal must not note the copy itself
  const MemoryScope scope(Memory::activation);
  const Tensor bytes(Ref<Storage>(&storage), 0, {storage.bytes()}, {1}, u8);
  entries.push_back({bytes, bytes.clone()});
}

Rewind::Rewind(const std::vector<Journal::Entry>& entries) : journal_(std::exchange(Storage::journal_, nullptr)) {
  const MemoryScope scope(Memory::activation);
  for (const Journal::Entry& entry : entries) {
    const Ref<Storage>& place = entry.place.storage();
    if (place->is_empty()) continue;
    // The old bytes are cloned, because another Rewind may need entry.before again.
    away_.push_back({place, entry.before.clone().storage(), place->version()});
    place->swap_bytes(*away_.back().bytes);
  }
}

Rewind::~Rewind() {
  for (Away& one : away_) {
    one.place->refill();  // if it was emptied meanwhile
    one.place->swap_bytes(*one.bytes);
    one.place->restore_version(one.version);
  }
  Storage::journal_ = journal_;
}

}  // namespace lockstep
