#pragma once
// The bytes under a tensor: reference counted, versioned, and able to be emptied and refilled in place.
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "tensor/device.h"
#include "tensor/memory.h"

namespace lockstep {

/// Intrusive pointer: one word, no control block. T has `retain()` and `release()`.
template <class T> class Ref {
 public:
  Ref() = default;
  explicit Ref(T* object) : object_(object) {
    if (object_) object_->retain();
  }
  Ref(const Ref& other) : Ref(other.object_) {}
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() {
    if (object_) object_->release();
  }

  T* get() const { return object_; }
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }
  explicit operator bool() const { return object_ != nullptr; }
  friend bool operator==(const Ref&, const Ref&) = default;

 private:
  T* object_ = nullptr;
};

class Journal;

class Storage {
 public:
  /// Uninitialised bytes on `device`, booked under MemoryScope::current().
  static Ref<Storage> allocate(int64_t bytes, Device device);
  /// Memory of somebody else (a mapped file, a vector); `release` runs when the last tensor is gone.
  static Ref<Storage> adopt(void* data, int64_t bytes, Device device, std::function<void()> release);

  /// Bytes that are not there yet, as after empty(). `origin` is kept until refill(), for whoever knows how to fill
  /// them.
  static Ref<Storage> reserve(int64_t bytes, Device device, const char* whose, std::shared_ptr<void> origin);

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  Device device() const { return device_; }
  Memory category() const { return category_; }
  /// Moves these bytes to another category of the ledger.
  void book_as(Memory category) {
    if (category == category_) return;
    if (!is_empty()) {
      book_memory(category_, -bytes_, device_);
      book_memory(category, bytes_, device_);
    }
    category_ = category;
  }

  /// Frees the bytes; tensors on this storage stay, and must not be read until refill(). ZeRO 3 does this to
  /// parameters. `whose`: named in the Error of a reader.
  void empty(const char* whose = "");
  /// Allocates the bytes again (uninitialised) after empty().
  void refill();
  bool is_empty() const { return data_ == nullptr && bytes_ > 0; }
  const char* emptied_of() const { return emptied_of_.c_str(); }
  const std::shared_ptr<void>& origin() const { return origin_; }

  /// Counts in-place writes. A tensor saved for backward remembers it; `writer` names the operation in the Error. To be
  /// called before the write, as a Journal (tensor/journal.h) keeps what was there.
  uint32_t version() const { return version_; }
  const char* last_writer() const { return last_writer_; }
  void bump_version(const char* writer) {
    if (journal_) [[unlikely]]
      note_write();
    ++version_;
    last_writer_ = writer;
  }
  /// After a refill with the very bytes that were there at that version.
  void restore_version(uint32_t version) { version_ = version; }
  /// Bytes change places with those of another storage, as many on the same device.
  void swap_bytes(Storage& other);

  int use_count() const { return refs_.load(std::memory_order_acquire); }
  void retain() { refs_.fetch_add(1, std::memory_order_relaxed); }
  void release() {
    if (refs_.fetch_sub(1, std::memory_order_acq_rel) == 1) destroy();
  }

 private:
  friend class Journal;
  friend class Rewind;
  Storage() = default;
  ~Storage() = default;
  void destroy();
  void note_write();
  static uint64_t number_of_journal();
  inline static thread_local Journal* journal_ = nullptr;  // of this thread, the innermost

  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  std::atomic<int> refs_{0};
  uint32_t version_ = 0;
  const char* last_writer_ = "";
  uint64_t made_in_ = 0;    // the journal in which the bytes were allocated
  uint32_t born_ = 0;       // Graph::recordings() when the bytes were allocated
  void* stream_ = nullptr;  // in whose order the bytes were allocated and will be freed; none on the CPU
  std::string emptied_of_;
  Device device_;
  Memory category_ = Memory::other;
  std::function<void()> release_;  // set for adopted memory only
  std::shared_ptr<void> origin_;   // of reserve()
};

}  // namespace lockstep
