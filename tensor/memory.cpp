// The caching allocator, and the ledger that counts the bytes in use. Small blocks come from each thread's free lists
// (no lock, no atomic), large blocks from one list per size class under a mutex. Under AddressSanitizer nothing is
// cached, so that it detects every use after free.
#include "tensor/memory.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <iomanip>
#include <mutex>
#include <ostream>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "tensor/backend.h"
#include "tensor/pages.h"

namespace lockstep {

using namespace pages;

namespace {

// A free block stores the link to the next one in its first bytes.
struct FreeBlock {
  FreeBlock* next;
};

// --- the ledger ---

struct Account {
  std::atomic<int64_t> current{0}, peak{0};

  void book(int64_t bytes) {
    const int64_t now = current.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    int64_t highest = peak.load(std::memory_order_relaxed);
    while (now > highest && !peak.compare_exchange_weak(highest, now, std::memory_order_relaxed)) {}
  }
  MemoryUse use() const { return {current.load(std::memory_order_relaxed), peak.load(std::memory_order_relaxed)}; }
};

struct Ledger {
  Account category[memory_categories], total;
};
// Ledger 0 counts the bytes of the CPU, each further ledger those of one GPU.
constexpr int max_ledgers = 1 + 64;
Ledger ledgers[max_ledgers];
Ledger& ledger(Device device) {
  return ledgers[device.is_cpu() ? 0 : 1 + std::min<int>(device.index, max_ledgers - 2)];
}
// The CPU can stand for several virtual devices. All but the first have a ledger of their own. The bytes of the first
// are computed: those of the whole CPU minus those of all other virtual devices (beyond_first).
constexpr int max_virtual = 64;
Ledger virtual_ledgers[max_virtual], beyond_first;
std::atomic<bool> first_is_watched{false};  // true: the first virtual device's peak is tracked
std::atomic<int64_t> limits[max_ledgers + max_virtual];
std::atomic<bool> has_limits{false};
std::atomic<int64_t>& limit_of(Device device) {
  return limits[device.is_cpu() ? std::min<int>(device.index, max_virtual - 1)
                                : max_virtual + std::min<int>(device.index, max_ledgers - 1)];
}

int64_t current_of(const Account& account) { return account.current.load(std::memory_order_relaxed); }
int64_t first_holds(Memory category) {
  return category == Memory::offload
             ? 0
             : current_of(ledgers[0].category[int(category)]) - current_of(beyond_first.category[int(category)]);
}
int64_t first_holds() {
  return current_of(ledgers[0].total) - current_of(ledgers[0].category[int(Memory::offload)]) -
         current_of(beyond_first.total);
}
void raise_peak(Account& account, int64_t now) { account.peak = std::max(account.peak.load(), now); }

void book_virtual(Memory category, int64_t bytes, int index) {
  if (category == Memory::offload) return;
  if (index == 0) {
    raise_peak(virtual_ledgers[0].category[int(category)], first_holds(category));
    raise_peak(virtual_ledgers[0].total, first_holds());
    return;
  }
  first_is_watched.store(true, std::memory_order_relaxed);
  for (Ledger* book : {&virtual_ledgers[std::min(index, max_virtual - 1)], &beyond_first}) {
    book->category[int(category)].book(bytes);
    book->total.book(bytes);
  }
}

thread_local constinit Memory current_category = Memory::other;
std::atomic<int64_t> allocations_until_failure{0};

// --- small blocks ---

constexpr size_t small_bins = small_block / alignment;
constexpr size_t small_cache_limit = size_t(1) << 20;  // most bytes that a thread caches

struct SmallCache {
  FreeBlock* bins[small_bins] = {};
  size_t bytes = 0;
  bool closed = false;  // true: the thread is ending, so nothing more is cached
};
thread_local constinit SmallCache small_cache;  // constant initialisation avoids a guard on the fast path

void drain_small_cache() {
  for (FreeBlock*& bin : small_cache.bins) {
    while (bin) std::free(std::exchange(bin, bin->next));
  }
  small_cache.bytes = 0;
}

struct SmallCacheCloser {
  bool armed = false;
  ~SmallCacheCloser() {
    drain_small_cache();
    small_cache.closed = true;
  }
};
thread_local SmallCacheCloser small_cache_closer;

size_t small_bin(size_t bytes) { return bytes == 0 ? 0 : (bytes - 1) / alignment; }

// --- large blocks ---

class LargeCache {
 public:
  void* allocate(size_t bytes) {
    const size_t size = class_size(bytes);
    const std::lock_guard lock(mutex_);
    void* data = nullptr;
    size_t got = size;
    // Take a cached block of this size class, or of a larger class up to 125 % of the request.
    for (; !data && got <= bytes + bytes / 4; got = class_size(got + 1)) {
      if ((data = take(got))) break;
    }
    if (!data) {
      got = size;
      data = system_allocate(size);
      if (!data) {
        release_locked(0);
        data = system_allocate(size);
      }
      if (!data) return nullptr;
    }
    if (got != size) oversized_.emplace(data, got);
    live_ += got;
    max_live_ = std::max(max_live_, live_);
    release_locked(limit());
    return data;
  }

  void deallocate(void* data, size_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    size_t size = class_size(bytes);
    if (!oversized_.empty()) {
      if (const auto found = oversized_.find(data); found != oversized_.end()) {
        size = found->second;
        oversized_.erase(found);
      }
    }
    live_ -= size;
    put(data, size);
    release_locked(limit());
  }

  void release() {
    const std::lock_guard lock(mutex_);
    release_locked(0);
  }

  int64_t cached() {
    const std::lock_guard lock(mutex_);
    return int64_t(cached_);
  }

 private:
  // The largest number of bytes to cache: 256 MiB, or half of the live bytes, or the bytes freed since the peak plus an
  // eighth of the peak, whichever is most. The eighth is for blocks that are larger than requested. With a lower limit,
  // every training step would return pages to the system and fault in new ones.
  size_t limit() const { return std::max({size_t(256) << 20, live_ / 2, max_live_ + max_live_ / 8 - live_}); }

  void* take(size_t size) {
    FreeBlock*& bin = bins_[class_index(size)];
    if (!bin) return nullptr;
    last_used_[class_index(size)] = ++uses_;
    cached_ -= size;
    return std::exchange(bin, bin->next);
  }

  void put(void* data, size_t size) {
    last_used_[class_index(size)] = ++uses_;
    FreeBlock*& bin = bins_[class_index(size)];
    bin = new (data) FreeBlock{bin};
    cached_ += size;
  }

  // Returns blocks to the system until `keep` bytes are left. Begins with the least recently used size class, because a
  // training step will need the recently used sizes again.
  void release_locked(size_t keep) noexcept {
    while (cached_ > keep) {
      int oldest = -1;
      for (int i = 0; i < int(std::size(bins_)); ++i) {
        if (bins_[i] && (oldest < 0 || last_used_[i] < last_used_[oldest])) oldest = i;
      }
      const size_t size = size_t(8 + oldest % 8) << (oldest / 8 - 3);
      const uint64_t when = last_used_[oldest];
      while (bins_[oldest] && cached_ > keep) system_free(take(size), size);
      last_used_[oldest] = when;  // returning blocks does not count as use
    }
  }

  std::mutex mutex_;
  FreeBlock* bins_[64 * 8] = {};
  uint64_t last_used_[64 * 8] = {}, uses_ = 0;
  size_t cached_ = 0, live_ = 0, max_live_ = 0;
  std::unordered_map<void*, size_t> oversized_;  // live blocks of a larger class than asked for
};

// Never destroyed, because tensors in static variables may outlive it.
LargeCache& large_cache() {
  static LargeCache& cache = *new LargeCache;
  return cache;
}

[[noreturn]] void fail_allocation(size_t bytes) {
  fail_out_of_memory(str("[memory] could not allocate ", bytes, " bytes"));
}

void maybe_fail(size_t bytes) {
  if (allocations_until_failure.load(std::memory_order_relaxed) == 0) [[likely]]
    return;
  if (allocations_until_failure.fetch_sub(1, std::memory_order_relaxed) == 1) fail_allocation(bytes);
}

}  // namespace

std::string_view name_of(Memory category) {
  constexpr std::string_view names[] = {"parameter",     "gradient", "optimizer", "activation",
                                        "communication", "other",    "offload"};
  return names[int(category)];
}

MemoryScope::MemoryScope(Memory category) : previous_(current_category) { current_category = category; }
MemoryScope::~MemoryScope() { current_category = previous_; }
Memory MemoryScope::current() { return current_category; }

MemoryReport memory_report(Device device) {
  MemoryReport report;
  const Ledger& book = ledger(device);
  for (int i = 0; i < memory_categories; ++i) report.category[i] = book.category[i].use();
  report.total = book.total.use();
  const Backend* other = backend(device);
  report.cached =
      other ? int64_t(other->cached_bytes(device.index)) : large_cache().cached() + int64_t(small_cache.bytes);
  return report;
}

std::ostream& operator<<(std::ostream& out, const MemoryReport& report) {
  const auto line = [&](std::string_view name, const MemoryUse& use) {
    out << std::left << std::setw(14) << name << std::right << std::setw(16) << use.current << std::setw(16) << use.peak
        << '\n';
  };
  out << "category          bytes held         at most\n";
  for (int i = 0; i < memory_categories; ++i) line(name_of(Memory(i)), report.category[i]);
  line("total", report.total);
  return out << std::left << std::setw(14) << "cached" << std::right << std::setw(16) << report.cached << '\n';
}

void reset_peak_memory(Device device) {
  Ledger& book = ledger(device);
  for (Account& account : book.category) account.peak = account.current.load();
  book.total.peak = book.total.current.load();
}

void release_cached_memory(Device device) {
  if (const Backend* other = backend(device)) return other->release_cached(device.index);
  drain_small_cache();
  large_cache().release();
}

void* allocate_small(size_t bytes) {
  const size_t bin = small_bin(bytes);
  if (FreeBlock* block = small_cache.bins[bin]) {
    small_cache.bins[bin] = block->next;
    small_cache.bytes -= (bin + 1) * alignment;
    return block;
  }
  void* data = std::aligned_alloc(alignment, (bin + 1) * alignment);
  if (!data) fail_allocation(bytes);
  return data;
}

void deallocate_small(void* data, size_t bytes) noexcept {
  const size_t bin = small_bin(bytes), size = (bin + 1) * alignment;
  if (!caching || small_cache.closed || small_cache.bytes + size > small_cache_limit) return std::free(data);
  if (!small_cache_closer.armed) small_cache_closer.armed = true;  // the first use registers the thread's destructor
  small_cache.bins[bin] = new (data) FreeBlock{small_cache.bins[bin]};
  small_cache.bytes += size;
}

void* allocate_cpu(size_t bytes) {
  maybe_fail(bytes);
  if (bytes <= small_block) return allocate_small(bytes);
  void* data = nullptr;
  // Larger requests fail: rounding up their size would overflow, or (without caching) AddressSanitizer would abort.
  if (bytes < size_t(1) << (caching ? 62 : 40)) data = caching ? large_cache().allocate(bytes) : system_allocate(bytes);
  if (!data) fail_allocation(bytes);
  return data;
}

void deallocate_cpu(void* data, size_t bytes) noexcept {
  if (!data) return;
  if (bytes <= small_block) return deallocate_small(data, bytes);
  if (caching) return large_cache().deallocate(data, bytes);
  std::free(data);
}

MemoryReport device_memory(Device device) {
  MemoryReport report = memory_report(device);
  if (!device.is_cpu()) return report;
  const Ledger& book = virtual_ledgers[std::min<int>(device.index, max_virtual - 1)];
  const auto use = [&](const Account& account, int64_t first) {
    MemoryUse of = account.use();
    if (device.index == 0) of = {first, std::max(of.peak, first)};
    return of;
  };
  for (int i = 0; i < memory_categories; ++i) report.category[i] = use(book.category[i], first_holds(Memory(i)));
  report.total = use(book.total, first_holds());
  return report;
}

void reset_peak_device_memory(Device device) {
  if (!device.is_cpu()) return reset_peak_memory(device);
  first_is_watched = true;
  const MemoryReport now = device_memory(device);
  Ledger& book = virtual_ledgers[std::min<int>(device.index, max_virtual - 1)];
  for (int i = 0; i < memory_categories; ++i) book.category[i].peak = now.category[i].current;
  book.total.peak = now.total.current;
}

void set_memory_limit(Device device, int64_t bytes) {
  check_device("set_memory_limit", device);
  LOCKSTEP_CHECK(bytes >= 0, "[set_memory_limit] expected bytes >= 0 for ", device, ", got ", bytes);
  limit_of(device) = bytes;
  has_limits = std::any_of(std::begin(limits), std::end(limits), [](const auto& limit) { return limit.load() > 0; });
}
int64_t memory_limit(Device device) { return limit_of(device); }
int64_t memory_size(Device device) {
  const Backend* const other = backend(device);
  const int64_t limit = memory_limit(device), all = other ? int64_t(other->memory_size(device.index)) : 0;
  return limit > 0 && all > 0 ? std::min(limit, all) : std::max(limit, all);
}

namespace {
void check_limit(size_t bytes, Device device) {
  const int64_t limit = limit_of(device);
  if (limit == 0 || MemoryScope::current() == Memory::offload) return;
  const int64_t held = device_memory(device).total.current;
  if (held + int64_t(bytes) <= limit) return;
  fail_out_of_memory(str("[memory] ", device, " is limited to ", limit, " bytes: ", held, " are held, and ", bytes,
                         " more were wanted, ", held + int64_t(bytes) - limit, " too many; raise set_memory_limit()"),
                     device);
}
}  // namespace

void* allocate(size_t bytes, Device device) {
  if (has_limits.load(std::memory_order_relaxed)) [[unlikely]]
    check_limit(bytes, device);
  const Backend* other = backend(device);
  if (!other) return allocate_cpu(bytes);
  maybe_fail(bytes);
  return other->allocate(bytes, device.index);
}

void deallocate(void* data, size_t bytes, Device device, void* stream) noexcept {
  if (const Backend* other = backend(device)) return other->deallocate(data, bytes, device.index, stream);
  deallocate_cpu(data, bytes);
}

void book_memory(Memory category, int64_t bytes, Device device) noexcept {
  Ledger& book = ledger(device);
  book.category[int(category)].book(bytes);
  book.total.book(bytes);
  if (device.is_cpu() && (device.index > 0 || first_is_watched.load(std::memory_order_relaxed))) [[unlikely]]
    book_virtual(category, bytes, device.index);
}

void fail_allocation_after(int64_t n) { allocations_until_failure = std::max<int64_t>(n, 0); }

}  // namespace lockstep
