#pragma once
// Storage: the bytes of a tensor. Reference counted and versioned; can be emptied and refilled in place.
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "tensor/device.h"
#include "tensor/memory.h"

namespace lockstep {

/// Intrusive pointer: one word, no control block. T has retain() and release().
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

  /// The object, or nullptr.
  T* get() const { return object_; }
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }
  /// False for nullptr.
  explicit operator bool() const { return object_ != nullptr; }
  friend bool operator==(const Ref&, const Ref&) = default;

 private:
  T* object_ = nullptr;
};

class Journal;

/// The bytes of a tensor, shared by all its views.
class Storage {
 public:
  /// Allocates uninitialised bytes, counted under MemoryScope::current(). Error when there is not enough memory.
  static Ref<Storage> allocate(int64_t bytes, Device device);
  /// Wraps memory of another owner (a mapped file, a vector); `release` runs when the last tensor is gone.
  static Ref<Storage> adopt(void* data, int64_t bytes, Device device, std::function<void()> release);

  /// A storage that has no bytes yet, as after empty(whose). `origin`: any object that is needed later to fill in the
  /// bytes; the storage keeps it until refill().
  static Ref<Storage> reserve(int64_t bytes, Device device, const char* whose, std::shared_ptr<void> origin);

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }  ///< the size, also while emptied
  Device device() const { return device_; }
  Memory category() const { return category_; }
  /// Moves these bytes to another category of the memory ledger.
  void book_as(Memory category) {
    if (category == category_) return;
    if (!is_empty()) {
      book_memory(category_, -bytes_, device_);
      book_memory(category, bytes_, device_);
    }
    category_ = category;
  }

  /// Frees the bytes. Tensors on this storage stay valid, but must not be read until refill(); ZeRO-3 does this to
  /// parameters. `whose` describes the bytes in the Error of a premature read.
  void empty(const char* whose = "");
  /// Allocates the bytes again (uninitialised) after empty().
  void refill();
  bool is_empty() const { return data_ == nullptr && bytes_ > 0; }  ///< true between empty() and refill()
  /// The text `whose` that was passed to the last call of empty() or reserve().
  const char* emptied_of() const { return emptied_of_.c_str(); }
  const std::shared_ptr<void>& origin() const { return origin_; }

  /// Number of in-place writes. Autograd remembers the version of a saved tensor and raises an Error if it has changed.
  uint32_t version() const { return version_; }
  const char* last_writer() const { return last_writer_; }  ///< the operation of the last write
  /// Counts an in-place write by operation `writer`, which autograd's Error names. Call this before the write, because
  /// a Journal (tensor/journal.h) copies the old bytes.
  void bump_version(const char* writer) {
    if (journal_) [[unlikely]]
      note_write();
    ++version_;
    last_writer_ = writer;
  }
  /// Sets the version back, after a refill with exactly the bytes of that version.
  void restore_version(uint32_t version) { version_ = version; }
  /// Exchanges the bytes with another storage of the same size and device.
  void swap_bytes(Storage& other);

  int use_count() const { return refs_.load(std::memory_order_acquire); }  ///< number of references
  void retain() { refs_.fetch_add(1, std::memory_order_relaxed); }         ///< adds a reference
  /// Drops a reference; destroys the storage if that was the last one.
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
  inline static thread_local Journal* journal_ = nullptr;  // innermost journal of this thread

  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  std::atomic<int> refs_{0};
  uint32_t version_ = 0;
  const char* last_writer_ = "";
  uint64_t made_in_ = 0;    // number of the journal that was active when the bytes were allocated
  uint32_t born_ = 0;       // Graph::recordings() at the allocation
  void* stream_ = nullptr;  // stream of the allocation; the bytes are freed in its order; null on the CPU
  std::string emptied_of_;
  Device device_;
  Memory category_ = Memory::other;
  std::function<void()> release_;  // frees adopted memory; empty for other memory
  std::shared_ptr<void> origin_;   // set by reserve()
};

}  // namespace lockstep
