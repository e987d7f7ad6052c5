// Memory of the fake devices: inaccessible to the host, each allocation followed by a guard page, filled with NaN when
// its lifetime starts and ends. Freed pages are reused, the oldest first.
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "tests/cudasim/block.h"
#include "tests/cudasim/runtime.h"

namespace fake {
namespace {

constexpr size_t page = 4096, unit = 256;
/// Address space per device; ThreadSanitizer leaves little.
size_t arena_bytes() { return size_t(simt::with_tsan() ? 8 : 2048) << 30; }
constexpr unsigned char nothing = 0xff, edge = 0xfd;

// A loop instead of memset(), which ThreadSanitizer would attribute to the caller.
void fill(unsigned char* p, unsigned char value, size_t n) {
  if (!simt::with_tsan()) std::memset(p, value, n);
  else
    for (volatile unsigned char* q = p; q < p + n; ++q) *q = value;
}
/// Memory larger than this is filled only at its ends. The middle stays zero and uncommitted, so that a test can have
/// more than 2^32 elements.
constexpr size_t max_filled = size_t(256) << 20, filled_at_ends = 1 << 20;
/// Calls fn(begin, length) for all of the memory or, if it is large, for its two ends.
template <class Fn> void at_ends(unsigned char* p, size_t n, Fn fn) {
  if (n <= max_filled) return fn(p, n);
  fn(p, filled_at_ends);
  fn(p + n - filled_at_ends, filled_at_ends);
}
void fill_ends(unsigned char* p, unsigned char value, size_t n) {
  at_ends(p, n, [&](unsigned char* part, size_t length) { fill(part, value, length); });
}
void poison_ends(unsigned char* p, size_t n) { at_ends(p, n, simt::poison); }
void unpoison_ends(unsigned char* p, size_t n) { at_ends(p, n, simt::unpoison); }
/// True if all n bytes have this value.
bool holds(const unsigned char* p, unsigned char value, size_t n) {
  return n == 0 || (*p == value && std::memcmp(p, p + 1, n - 1) == 0);
}

/// Pages of one size class and the guard page behind them. The allocation ends where the pages end, except for
/// alignment; the remaining bytes and some in front of the allocation are its edges, which must not change.
struct Slot {
  unsigned char *begin = nullptr, *data = nullptr, *edge = nullptr;
  size_t room = 0, bytes = 0;
  unsigned char* after() const { return data + bytes; }
  unsigned char* end() const { return begin + room; }
  bool pooled = false, used_before = false, retired = false;
  Slot* next_open = nullptr;  // without protection keys: list of the slots that open_touched() opened
  bool open = false;
  char order = 0;  // for ThreadSanitizer: orders the end of one lifetime before the start of the next
};

/// The memory of one device.
struct DeviceMemory {
  SpinLock lock;
  unsigned char *base = nullptr, *end = nullptr;
  std::map<const unsigned char*, Slot*> slots;  // keyed by the first page of a slot
  std::map<const unsigned char*, Slot*> live;   // keyed by the start of a slot's data
  std::array<std::deque<Slot*>, 40> idle;       // free slots by size class
  Usage usage;
};
DeviceMemory& memory(int device) {
  static auto& all = *new std::array<DeviceMemory, max_devices>;
  return all[size_t(device)];
}

// --- access control ---

// Protection keys open and close all device memory for one thread in a few cycles. Without them, a slot is opened when
// a thread inside a scope first touches it, and all are closed when the last scope ends. Opening all memory at every
// scope instead would make the kernel visit each of its pages.
int protection_key() {
  static const int key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
  return key;
}
thread_local int scopes = 0;
int all_scopes = 0;
Slot* open_slots = nullptr;
SpinLock scopes_lock;  // guards the two above

/// Handles a fault at `p`: true if the thread is inside a scope and may retry because the slot was opened.
bool open_touched(unsigned char* p) {
  const int device = device_of(p);
  if (scopes == 0 || protection_key() >= 0 || device < 0) return false;
  DeviceMemory& m = memory(device);
  Slot* slot = nullptr;
  {
    const std::lock_guard lock(m.lock);
    const auto next = m.slots.upper_bound(p);
    if (next != m.slots.begin()) slot = std::prev(next)->second;
  }
  if (!slot || p >= slot->end()) return false;
  const std::lock_guard lock(scopes_lock);
  if (!slot->open) {
    mprotect(slot->begin, slot->room, PROT_READ | PROT_WRITE);
    slot->open = true;
    slot->next_open = open_slots;
    open_slots = slot;
  }
  return true;
}

std::string describe(const void* address) {
  const auto* p = static_cast<const unsigned char*>(address);
  for (int d = 0; d < max_devices; ++d) {
    DeviceMemory& m = memory(d);
    if (!m.base || p < m.base || p >= m.base + arena_bytes()) continue;
    auto next = m.slots.upper_bound(p);
    if (next == m.slots.begin()) return "device memory of cuda:" + std::to_string(d);
    const Slot& slot = *std::prev(next)->second;
    const std::string which =
        (slot.bytes == 0 ? "freed memory" : "an allocation of " + std::to_string(slot.bytes) + " bytes") +
        " on cuda:" + std::to_string(d);
    const ptrdiff_t at = p - slot.data;
    if (!slot.data || (at >= 0 && at < ptrdiff_t(slot.bytes))) return which;
    return std::to_string(at < 0 ? -at : at - ptrdiff_t(slot.bytes)) + " bytes " + (at < 0 ? "before " : "after ") +
           which;
  }
  return "";
}

struct sigaction before_us;
void on_fault(int, siginfo_t* info, void*) {
  if (open_touched(static_cast<unsigned char*>(info->si_addr))) return;
  const std::string where = describe(info->si_addr), who = simt::running();
  if (!where.empty()) {
    const std::string text = "cudasim: " + (who.empty() ? "host code" : who) + " touched " + where + "\n";
    if (write(2, text.data(), text.size()) < 0) std::abort();
  }
  sigaction(SIGSEGV, &before_us, nullptr);  // the instruction is retried with the previous handler
}

/// Installs the signal handler. Test frameworks replace it at every test, so each scope that needs it installs it
/// again.
void take_faults() {
  struct sigaction ours {
  }, theirs{};
  ours.sa_sigaction = on_fault;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &ours, &theirs);
  if (theirs.sa_sigaction != on_fault) before_us = theirs;
}

void open_arena(DeviceMemory& m) {
  if (m.base) return;
  void* p = mmap(nullptr, arena_bytes(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    std::perror("cudasim: mmap of device memory");
    std::abort();
  }
  m.base = m.end = static_cast<unsigned char*>(p);
  take_faults();
  // What a driver keeps open until the process ends: its devices, and an eventfd, a pipe and a socket beside them.
  int pair[2];
  if (memfd_create("/dev/nvidiactl", MFD_CLOEXEC) < 0 || eventfd(0, EFD_CLOEXEC) < 0 || pipe2(pair, O_CLOEXEC) != 0 ||
      socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
    std::perror("the fake driver's descriptors");
}

Slot* new_slot(DeviceMemory& m, size_t room) {
  if (m.end + room + page > m.base + arena_bytes()) return nullptr;
  Slot* slot = new Slot;
  slot->begin = m.end;
  slot->room = room;
  if (protection_key() >= 0 && pkey_mprotect(slot->begin, room, PROT_READ | PROT_WRITE, protection_key()) != 0)
    return nullptr;
  m.end += room + page;  // the guard page between stays closed
  m.slots[slot->begin] = slot;
  return slot;
}

Slot* live_slot(const void* p) {
  const int device = device_of(p);
  if (device < 0) return nullptr;
  DeviceMemory& m = memory(device);
  const std::lock_guard lock(m.lock);
  const auto next = m.live.upper_bound(static_cast<const unsigned char*>(p));
  return next == m.live.begin() ? nullptr : std::prev(next)->second;
}

}  // namespace

Countdown allocation_failure, launch_failure, run_failure;
void fail_allocation(int64_t nth, cudaError_t code) { allocation_failure.set(nth, code); }
void fail_launch(int64_t nth, cudaError_t code) { launch_failure.set(nth, code); }
void fail_run(int64_t nth, cudaError_t code) { run_failure.set(nth, code); }

DeviceScope::DeviceScope() {
  if (scopes++ > 0) return;
  if (protection_key() >= 0) {
    pkey_set(protection_key(), 0);
    return;
  }
  const std::lock_guard lock(scopes_lock);
  if (all_scopes++ == 0) take_faults();
}
DeviceScope::~DeviceScope() {
  if (--scopes > 0) return;
  if (protection_key() >= 0) {
    pkey_set(protection_key(), PKEY_DISABLE_ACCESS);
    return;
  }
  const std::lock_guard lock(scopes_lock);
  // If many devices have their own threads, alternating faults would take minutes, so open slots stay open.
  if (--all_scopes > 0 || settings().devices > 2) return;
  for (; open_slots; open_slots = open_slots->next_open) {
    mprotect(open_slots->begin, open_slots->room, PROT_NONE);
    open_slots->open = false;
  }
}

int device_of(const void* p) {
  const auto* at = static_cast<const unsigned char*>(p);
  for (int d = 0; d < max_devices; ++d) {
    const unsigned char* base = memory(d).base;
    if (base && at >= base && at < base + arena_bytes()) return d;
  }
  return -1;
}

void* reserve_memory(size_t bytes, int device, bool pooled) {
  DeviceMemory& m = memory(device);
  const size_t aligned = (bytes + unit - 1) / unit * unit, size_class = size_t(std::bit_width((aligned - 1) / page));
  const std::lock_guard lock(m.lock);
  open_arena(m);
  if (m.usage.used + bytes > settings().memory || aligned < bytes) return nullptr;
  std::deque<Slot*>& idle = m.idle[size_class];
  Slot* slot = nullptr;
  if (idle.size() > 4) {
    slot = idle.front();
    idle.pop_front();
  } else {
    slot = new_slot(m, page << size_class);
  }
  if (!slot) return nullptr;
  slot->bytes = bytes;
  slot->data = slot->end() - aligned;
  slot->pooled = pooled;
  slot->retired = false;
  m.live[slot->data] = slot;
  m.usage.used += bytes;
  if (pooled) {
    m.usage.pool_used += bytes;
    m.usage.pool_cached -= std::min(m.usage.pool_cached, bytes);
  }
  return slot->data;
}

void begin_memory(void* p) {
  Slot& slot = *live_slot(p);
  const DeviceScope open;
  simt::acquire(&slot.order);
  if (simt::with_tsan() && slot.used_before) {  // make it forget the previous lifetime
    if (protection_key() >= 0) {
      simt::renew(slot.begin, slot.room);
      pkey_mprotect(slot.begin, slot.room, PROT_READ | PROT_WRITE, protection_key());
    }
  } else if (slot.used_before && !simt::with_asan() && slot.room <= max_filled) {
    if (!holds(slot.edge, nothing, size_t(slot.end() - slot.edge)))
      fail_device(cudaErrorIllegalAddress, "freed device memory was written to");
  }
  slot.edge = std::max(slot.begin, slot.data - page);
  unpoison_ends(slot.begin, slot.room);
  fill(slot.edge, edge, size_t(slot.data - slot.edge));
  fill_ends(slot.data, nothing, slot.bytes);
  fill(slot.after(), edge, size_t(slot.end() - slot.after()));
  poison_ends(slot.begin, size_t(slot.data - slot.begin));
  simt::poison(slot.after(), size_t(slot.end() - slot.after()));
}

bool retire_memory(void* p) {
  Slot* slot = live_slot(p);
  if (!slot || slot->data != p || slot->retired) return false;
  slot->retired = true;
  return true;
}

void end_memory(void* p) {
  Slot& slot = *live_slot(p);
  DeviceMemory& m = memory(device_of(p));
  {
    const DeviceScope open;
    unpoison_ends(slot.begin, size_t(slot.data - slot.begin));
    simt::unpoison(slot.after(), size_t(slot.end() - slot.after()));
    if (!holds(slot.edge, edge, size_t(slot.data - slot.edge)) ||
        !holds(slot.after(), edge, size_t(slot.end() - slot.after())))
      fail_device(cudaErrorIllegalAddress,
                  "an allocation of " + std::to_string(slot.bytes) + " bytes was written to outside its bounds");
    if (slot.room > max_filled) madvise(slot.begin, slot.room, MADV_DONTNEED);
    fill_ends(slot.edge, nothing, size_t(slot.end() - slot.edge));
    poison_ends(slot.begin, slot.room);
    simt::release(&slot.order);
  }
  const std::lock_guard lock(m.lock);
  m.live.erase(slot.data);
  m.usage.used -= slot.bytes;
  if (slot.pooled) {
    m.usage.pool_used -= slot.bytes;
    m.usage.pool_cached += slot.bytes;
  }
  slot.bytes = 0;
  slot.used_before = true;
  m.idle[size_t(std::bit_width(slot.room / page)) - 1].push_back(&slot);
}

void set_memory(void* p, int value, size_t bytes) {
  at_ends(static_cast<unsigned char*>(p), bytes,
          [&](unsigned char* part, size_t length) { std::memset(part, value, length); });
}

bool is_inside(const void* p, size_t bytes) {
  const Slot* slot = live_slot(p);
  if (!slot || slot->retired) return false;
  const auto* at = static_cast<const unsigned char*>(p);
  return at >= slot->data && at + bytes <= slot->data + slot->bytes;
}

bool is_pooled(const void* p) {
  const Slot* slot = live_slot(p);
  return slot && slot->pooled;
}

Usage usage(int device) {
  DeviceMemory& m = memory(device);
  const std::lock_guard lock(m.lock);
  return m.usage;
}
void trim_pool(int device) {
  DeviceMemory& m = memory(device);
  const std::lock_guard lock(m.lock);
  m.usage.pool_cached = 0;
}

Held held() {
  Held all;
  for (int d = 0; d < max_devices; ++d) {
    DeviceMemory& m = memory(d);
    const std::lock_guard lock(m.lock);
    all.allocations += m.live.size();
    all.bytes += m.usage.used;
  }
  return all;
}

}  // namespace fake
