// Storage: allocates, empties, refills and destroys blocks of bytes, and counts them in the memory ledger (memory.h).
#include "tensor/storage.h"

#include <new>

#include "base/check.h"
#include "tensor/backend.h"
#include "tensor/graph.h"

namespace lockstep {

static_assert(sizeof(Storage) <= small_block);

namespace {
void* stream_of(Device device) {
  const Backend* other = backend(device);
  return other ? other->current_stream(device.index) : nullptr;
}
}  // namespace

Ref<Storage> Storage::allocate(int64_t bytes, Device device) {
  check_device("storage", device);
  LOCKSTEP_CHECK(bytes >= 0, "[storage] expected a size >= 0, got ", bytes);
  void* data = bytes > 0 ? lockstep::allocate(size_t(bytes), device) : nullptr;
  auto* storage = new (allocate_small(sizeof(Storage))) Storage;
  storage->data_ = static_cast<std::byte*>(data);
  storage->bytes_ = bytes;
  storage->device_ = device;
  storage->stream_ = stream_of(device);
  storage->born_ = Graph::recordings();
  storage->made_in_ = number_of_journal();
  storage->category_ = MemoryScope::current();
  book_memory(storage->category_, bytes, device);
  return Ref<Storage>(storage);
}

Ref<Storage> Storage::adopt(void* data, int64_t bytes, Device device, std::function<void()> release) {
  check_device("storage", device);
  LOCKSTEP_CHECK(bytes >= 0 && (data || bytes == 0), "[storage] expected a size >= 0, and data unless it is 0, got ",
                 bytes, " bytes at ", data);
  auto* storage = new (allocate_small(sizeof(Storage))) Storage;
  storage->data_ = static_cast<std::byte*>(data);
  storage->bytes_ = bytes;
  storage->device_ = device;
  storage->born_ = Graph::recordings();
  storage->category_ = MemoryScope::current();
  // A release_ that is set marks the bytes as adopted. Without a `release`, set a function that does nothing.
  storage->release_ = release ? std::move(release) : [] {};
  book_memory(storage->category_, bytes, device);
  return Ref<Storage>(storage);
}

Ref<Storage> Storage::reserve(int64_t bytes, Device device, const char* whose, std::shared_ptr<void> origin) {
  Ref<Storage> storage = allocate(0, device);
  LOCKSTEP_CHECK(bytes >= 0, "[storage] expected a size >= 0, got ", bytes);
  storage->bytes_ = bytes;
  storage->emptied_of_ = whose;
  storage->origin_ = std::move(origin);
  return storage;
}

void Storage::empty(const char* whose) {
  if (!data_) return;
  emptied_of_ = whose;
  const Backend* other = born_ == Graph::recordings() ? nullptr : backend(device_);
  if (release_) {
    const std::shared_ptr<void> owner(data_, [release = std::exchange(release_, nullptr)](void*) { release(); });
    if (other) other->hold_for_graphs(owner, device_.index, born_);
  } else {
    if (!other || !other->keep_for_graphs(data_, device_.index, stream_, born_))
      deallocate(data_, size_t(bytes_), device_, stream_);
  }
  data_ = nullptr;
  book_memory(category_, -bytes_, device_);
}

void Storage::refill() {
  if (!is_empty()) return;
  data_ = static_cast<std::byte*>(lockstep::allocate(size_t(bytes_), device_));
  stream_ = stream_of(device_);
  born_ = Graph::recordings();
  made_in_ = number_of_journal();
  origin_ = nullptr;
  book_memory(category_, bytes_, device_);
}

void Storage::swap_bytes(Storage& other) {
  LOCKSTEP_CHECK(bytes_ == other.bytes_ && device_ == other.device_ && !is_empty() && !other.is_empty(),
                 "[storage] expected two non-empty storages of one size and device, got ", bytes_, " bytes on ",
                 device_, " and ", other.bytes_, " on ", other.device_);
  std::swap(data_, other.data_);
  std::swap(stream_, other.stream_);
  std::swap(born_, other.born_);
  std::swap(release_, other.release_);
}

void Storage::destroy() {
  empty();
  if (release_) release_();  // empty() does not release adopted memory of 0 bytes
  this->~Storage();
  deallocate_small(this, sizeof(Storage));
}

}  // namespace lockstep
