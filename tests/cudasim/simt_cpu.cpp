// The block emulator. Compile WITHOUT sanitizers even when the kernels are instrumented
// (its own bookkeeping is not what is under test); it tells ASan/TSan about the fibers.
#include "tests/cudasim/simt_cpu.h"
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <random>
#include <vector>
#include <sys/mman.h>
#include <unistd.h>
#if defined(SIMT_ASAN)
extern "C" {
void __sanitizer_start_switch_fiber(void** fake, const void* bottom, size_t size);
void __sanitizer_finish_switch_fiber(void* fake, const void** bottom, size_t* size);
void __asan_poison_memory_region(void const volatile*, size_t);
void __asan_unpoison_memory_region(void const volatile*, size_t);
}
#endif
#if defined(SIMT_TSAN)
extern "C" {
void* __tsan_get_current_fiber(void);
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void*);
void __tsan_switch_to_fiber(void*, unsigned flags);   // flag 1 = no_sync: fibers stay concurrent
void __tsan_acquire(void*);
void __tsan_release(void*);
void __tsan_set_fiber_name(void*, const char*);
}
#endif

// ---- context switch: save callee-saved registers, swap stack pointers (x86-64 SysV).
#if defined(__x86_64__) && !defined(SIMT_UCONTEXT)
asm(R"(
.text
.globl simt_switch
.type simt_switch,@function
simt_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  subq $8,%rsp
  stmxcsr (%rsp); fnstcw 4(%rsp)
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  ldmxcsr (%rsp); fldcw 4(%rsp)
  addq $8,%rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
.size simt_switch,.-simt_switch
)");
extern "C" void simt_switch(void** save_sp, void* load_sp);
#else
#include <ucontext.h>
#endif

constinit thread_local uint3 threadIdx{}, blockIdx{};
constinit thread_local dim3 blockDim{}, gridDim{};
namespace simt {
constinit thread_local ThreadCtx* t_ctx = nullptr;
static thread_local unsigned t_nthreads = 0;
Options& options() { static Options o; return o; }
Stats& stats() { static thread_local Stats s; return s; }
static void run_now(cudaStream_t, std::function<void()> f) { f(); }
EnqueueFn g_enqueue = run_now;

namespace {
#if defined(SIMT_TSAN)
constexpr size_t kStack = 64 * 1024;           // remapped at every start, see fresh()
#else
constexpr size_t kStack = 256 * 1024;          // lazily committed by mmap; a guard page below
#endif
enum class St : uint8_t { Ready, AtBarrier, AtWarp, Done };

struct Fiber {
  ThreadCtx ctx;                                // first: t_ctx points here
  St st = St::Ready;
  bool started = false;
  void* sp = nullptr;
  char* stack = nullptr;
#if defined(SIMT_UCONTEXT) || !defined(__x86_64__)
  ucontext_t uc;
#endif
  void* fake = nullptr;                         // ASan
  void* tsan = nullptr;                         // TSan fiber
  const char* file = nullptr; int line = 0;     // where it waits
  unsigned wmask = 0, wop = 0;                  // warp op it waits in
  unsigned bytes = 0, ballot = 0; int src = 0; bool pred = false;
  alignas(16) unsigned char slot[16], res[16];
};

struct Warp { unsigned arrived = 0, done = 0; char hb = 0; };

struct Exec {
  std::vector<Fiber> fibers;
  std::vector<char*> free_stacks;
  std::vector<Warp> warps;
  Fiber* cur = nullptr;
  void* main_sp = nullptr;
#if defined(SIMT_UCONTEXT) || !defined(__x86_64__)
  ucontext_t main_uc;
#endif
  void* main_fake = nullptr; void* main_tsan = nullptr;
  const void* main_bottom = nullptr; size_t main_size = 0;
  const std::function<void()>* body = nullptr;
  std::string fault_msg;
  unsigned at_barrier = 0, done = 0;
  const char* bar_file = nullptr; int bar_line = 0;
  char bar_hb = 0, fence_hb = 0, end_hb = 0;
  // shared memory arena
  unsigned char* arena = nullptr; size_t arena_used = 0, dyn_bytes = 0; void* dyn = nullptr;
  struct Slot { const void* key; void* p; }; Slot slots[64]; unsigned nslots = 0;
  std::mt19937_64 rng;
  std::vector<unsigned> ready;                  // queue of runnable threads
};
constexpr size_t kArena = 232 * 1024;           // 227 KB usable on sm_90, plus red zones
thread_local Exec* X = nullptr;
thread_local bool in_kernel = false;

char* new_stack() {
  void* p = mmap(nullptr, kStack + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) { std::perror("mmap"); std::abort(); }
  mprotect(p, 4096, PROT_NONE);
  return static_cast<char*>(p) + 4096;
}

// TSan: memory that a new simulated thread or block reuses must look new, or unrelated
// accesses at the same address would be reported. A fixed mmap resets TSan's shadow.
[[maybe_unused]] void fresh(void* p, size_t n) {
#if defined(SIMT_TSAN)
  mmap(p, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
#else
  (void)p; (void)n;
#endif
}
// inlined copies: a libc memcpy would be seen by TSan as the kernel's own access
inline void copy(void* d, const void* s, unsigned n) {
  switch (n) {
    case 1: __builtin_memcpy(d, s, 1); break;   case 2: __builtin_memcpy(d, s, 2); break;
    case 4: __builtin_memcpy(d, s, 4); break;   case 8: __builtin_memcpy(d, s, 8); break;
    case 16: __builtin_memcpy(d, s, 16); break; default: fault("shuffle of an unsupported size");
  }
}

void fiber_main();

void to_main(bool dying) {
  Fiber* f = X->cur; stats().switches++;
#if defined(SIMT_ASAN)
  __sanitizer_start_switch_fiber(dying ? nullptr : &f->fake, X->main_bottom, X->main_size);
#endif
#if defined(SIMT_TSAN)
  __tsan_switch_to_fiber(X->main_tsan, 1);
#endif
#if defined(__x86_64__) && !defined(SIMT_UCONTEXT)
  simt_switch(&f->sp, X->main_sp);
#else
  swapcontext(&f->uc, &X->main_uc);
#endif
#if defined(SIMT_ASAN)
  __sanitizer_finish_switch_fiber(f->fake, nullptr, nullptr);
#endif
  (void)dying;
}

void resume(Fiber* f) {
  X->cur = f; t_ctx = &f->ctx; threadIdx = f->ctx.tid; stats().switches++;
  if (!f->started) {
    f->started = true;
    if (X->free_stacks.empty()) { X->free_stacks.push_back(new_stack()); stats().fibers_used++; }
    f->stack = X->free_stacks.back(); X->free_stacks.pop_back();
    fresh(f->stack, kStack);
    const size_t colour = f->ctx.lin % 61 * 64;          // spread stack tops over cache sets
#if defined(__x86_64__) && !defined(SIMT_UCONTEXT)
    uint64_t* sp = reinterpret_cast<uint64_t*>(f->stack + kStack - colour);
    *--sp = 0;                                           // keeps rsp%16==8 at entry
    *--sp = reinterpret_cast<uint64_t>(&fiber_main);
    for (int i = 0; i < 6; i++) *--sp = 0;
    uint32_t mx; uint16_t cw; asm volatile("stmxcsr %0" : "=m"(mx)); asm volatile("fnstcw %0" : "=m"(cw));
    *--sp = uint64_t(mx) | (uint64_t(cw) << 32);
    f->sp = sp;
#else
    getcontext(&f->uc); f->uc.uc_stack = {f->stack, 0, kStack - colour}; f->uc.uc_link = nullptr;
    makecontext(&f->uc, fiber_main, 0);
#endif
  }
#if defined(SIMT_ASAN)
  __sanitizer_start_switch_fiber(&X->main_fake, f->stack, kStack);
#endif
#if defined(SIMT_TSAN)
  __tsan_switch_to_fiber(f->tsan, 1);
#endif
#if defined(__x86_64__) && !defined(SIMT_UCONTEXT)
  simt_switch(&X->main_sp, f->sp);
#else
  swapcontext(&X->main_uc, &f->uc);
#endif
#if defined(SIMT_ASAN)
  __sanitizer_finish_switch_fiber(X->main_fake, nullptr, nullptr);
#endif
  if (f->st == St::Done && f->stack) { X->free_stacks.push_back(f->stack); f->stack = nullptr; }
}

std::string who(const Fiber& f) {
  char b[128]; std::snprintf(b, sizeof b, "block(%u,%u,%u) thread(%u,%u,%u)", blockIdx.x, blockIdx.y, blockIdx.z,
                             f.ctx.tid.x, f.ctx.tid.y, f.ctx.tid.z); return b;
}

void fiber_main() {
#if defined(SIMT_ASAN)
  __sanitizer_finish_switch_fiber(nullptr, &X->main_bottom, &X->main_size);
#endif
  try { (*X->body)(); }
  catch (const Fault& e) { if (X->fault_msg.empty()) X->fault_msg = e.what; }
  catch (const std::exception& e) { if (X->fault_msg.empty()) X->fault_msg = std::string("exception in kernel: ") + e.what(); }
  Fiber* f = X->cur;
#if defined(SIMT_TSAN)
  __tsan_release(&X->end_hb);
#endif
  f->st = St::Done; X->done++;
  X->warps[f->ctx.warp].done |= 1u << f->ctx.lane;
  to_main(true);
  std::abort();
}

void make_ready(unsigned i) { X->fibers[i].st = St::Ready; X->ready.push_back(i); }

void release_barrier() {
  stats().barriers++;
  unsigned n = X->fibers.size(); X->at_barrier = 0;
  for (unsigned i = 0; i < n; i++) if (X->fibers[i].st == St::AtBarrier) make_ready(i);
  if (options().order == Order::Reverse) std::reverse(X->ready.begin(), X->ready.end());
}
}  // namespace

void fault(const std::string& m) { throw Fault{who(*X->cur) + ": " + m}; }

void barrier(const char* file, int line) {
  if (!in_kernel) { std::fprintf(stderr, "__syncthreads outside a kernel\n"); std::abort(); }
  Fiber* f = X->cur;
  if (X->at_barrier && (X->bar_line != line || std::strcmp(X->bar_file, file)))
    fault(std::string("barrier divergence: this thread is at ") + file + ":" + std::to_string(line) +
          ", others wait at " + X->bar_file + ":" + std::to_string(X->bar_line));
  X->bar_file = file; X->bar_line = line; f->file = file; f->line = line;
#if defined(SIMT_TSAN)
  __tsan_release(&X->bar_hb);
#endif
  f->st = St::AtBarrier; X->at_barrier++;
  to_main(false);
#if defined(SIMT_TSAN)
  __tsan_acquire(&X->bar_hb);
#endif
  if (!X->fault_msg.empty()) throw Fault{X->fault_msg};
}

void fence() {
#if defined(SIMT_TSAN)
  __tsan_acquire(&X->fence_hb); __tsan_release(&X->fence_hb);
#endif
}

// Rendezvous of the lanes in mask. The LAST lane to arrive performs the whole exchange for
// everybody (res[l] = slot[src[l]]), so one park per lane and per operation is enough.
static void rendezvous(unsigned mask, unsigned op) {
  Fiber* f = X->cur; Warp& w = X->warps[f->ctx.warp]; stats().warp_ops++;
  const unsigned lane_bit = 1u << f->ctx.lane;
  if (!(mask & lane_bit)) fault("warp op: calling lane is not in its own mask");
  const unsigned base = f->ctx.warp * 32, nlanes = std::min(32u, t_nthreads - base);
  const unsigned exist = nlanes < 32 ? (1u << nlanes) - 1 : ~0u;
  if ((mask & ~exist) && mask != ~0u) fault("warp op: mask names lanes that do not exist");
  const unsigned want = mask & exist;
  if (w.done & want) fault("warp op: a lane named in the mask has already exited");
  for (unsigned m = w.arrived & want; m; m &= m - 1) {
    Fiber& g = X->fibers[base + __builtin_ctz(m)];
    if (g.wmask != mask || g.wop != op) fault("warp op: lanes disagree on mask or operation");
  }
  f->wmask = mask; f->wop = op; w.arrived |= lane_bit;
  if ((w.arrived & want) != want) {
    f->st = St::AtWarp; to_main(false);
    if (!X->fault_msg.empty()) throw Fault{X->fault_msg};
    return;
  }
  w.arrived &= ~want;
  unsigned bal = 0;
  for (unsigned m = want; m; m &= m - 1) bal |= unsigned(X->fibers[base + __builtin_ctz(m)].pred) << __builtin_ctz(m);
  for (unsigned m = want; m; m &= m - 1) {
    const unsigned l = __builtin_ctz(m); Fiber& g = X->fibers[base + l];
    g.ballot = bal;
    if (g.bytes) {
      if (!(want >> g.src & 1)) fault("shuffle reads lane " + std::to_string(g.src) + ", which is not in the mask");
      copy(g.res, X->fibers[base + g.src].slot, g.bytes);
    }
    if (l != f->ctx.lane) make_ready(base + l);
  }
}

void warp_exchange(unsigned mask, unsigned op, const void* in, void* out, unsigned bytes, int src, int width) {
  Fiber* f = X->cur; copy(f->slot, in, bytes); f->bytes = bytes; f->src = src; f->pred = 0;
  rendezvous(mask, op * 64 + width);
  copy(out, f->res, bytes);
}
unsigned warp_ballot(unsigned mask, int pred) {
  Fiber* f = X->cur; f->pred = pred != 0; f->bytes = 0;
  rendezvous(mask, 7 * 64); return f->ballot;
}
void warp_sync(unsigned mask) {
  Fiber* f = X->cur; f->bytes = 0; f->pred = 0;
#if defined(SIMT_TSAN)
  char* hb = &X->warps[f->ctx.warp].hb; __tsan_release(hb);
#endif
  rendezvous(mask, 8 * 64);
#if defined(SIMT_TSAN)
  __tsan_acquire(hb);                                    // __syncwarp orders memory; shuffles do NOT
#endif
}

static void* arena_alloc(size_t bytes, size_t align, const char* name) {
  constexpr size_t kRed = 32;
  size_t off = (X->arena_used + kRed + align - 1) / align * align;
  if (off + bytes + kRed > kArena) fault(std::string("shared memory exhausted (227 KB) at ") + name);
  X->arena_used = off + bytes;
  unsigned char* p = X->arena + off;
#if defined(SIMT_ASAN)
  __asan_unpoison_memory_region(p, bytes);
#endif
  const unsigned char fill = options().poison; for (size_t i = 0; i < bytes; i++) const_cast<volatile unsigned char*>(p)[i] = fill;   // not libc memset: see copy()
  return p;
}
void* shared_slot(const void* key, size_t bytes, size_t align, const char* name) {
  for (unsigned i = 0; i < X->nslots; i++) if (X->slots[i].key == key) return X->slots[i].p;
  if (X->nslots == 64) fault("more than 64 shared arrays in one kernel");
  void* p = arena_alloc(bytes, std::max<size_t>(align, 16), name);
  X->slots[X->nslots++] = {key, p}; return p;
}
void* dyn_shared() {
  if (!X->dyn) { X->dyn = arena_alloc(X->dyn_bytes, 16, "dynamic shared"); }
  return X->dyn;
}

void run_grid(dim3 g, dim3 b, size_t smem, const std::function<void()>& body) {
  const unsigned n = b.x * b.y * b.z;
  Exec ex; X = &ex; ex.body = &body; in_kernel = true;
  ex.rng.seed(options().seed);
  static thread_local unsigned char* arena = static_cast<unsigned char*>(mmap(nullptr, kArena, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ex.arena = arena;
  static thread_local std::vector<char*> stack_cache; ex.free_stacks.swap(stack_cache);
  ex.free_stacks.reserve(1100); ex.ready.reserve(2 * n + 64);
#if defined(SIMT_TSAN)
  ex.main_tsan = __tsan_get_current_fiber();
#endif
  const uint64_t nb = uint64_t(g.x) * g.y * g.z;
  std::vector<uint64_t> order(nb); for (uint64_t i = 0; i < nb; i++) order[i] = i;
  if (options().order == Order::Reverse) std::reverse(order.begin(), order.end());
  if (options().order == Order::Random) std::shuffle(order.begin(), order.end(), ex.rng);
  ex.fibers.resize(n); ex.warps.resize((n + 31) / 32);
  for (uint64_t bi : order) {
    stats().blocks++; stats().threads += n;
    blockIdx = uint3{unsigned(bi % g.x), unsigned(bi / g.x % g.y), unsigned(bi / g.x / g.y)};
    blockDim = b; gridDim = g; t_nthreads = n;
    ex.at_barrier = ex.done = 0; if (ex.arena_used) fresh(ex.arena, (ex.arena_used + 8191) / 4096 * 4096);
    ex.nslots = 0; ex.arena_used = 0; ex.dyn = nullptr; ex.dyn_bytes = smem;
    for (auto& w : ex.warps) w = Warp{};
#if defined(SIMT_ASAN)
    __asan_poison_memory_region(ex.arena, kArena);
#endif
    ex.ready.clear();
    for (unsigned i = 0; i < n; i++) {
      Fiber& f = ex.fibers[i];
      f.ctx = ThreadCtx{uint3{i % b.x, i / b.x % b.y, i / b.x / b.y}, i, i % 32, i / 32};
      f.st = St::Ready; f.started = false; f.fake = nullptr;
#if defined(SIMT_TSAN)
      f.tsan = __tsan_create_fiber(0);
#endif
      ex.ready.push_back(i);
    }
    if (options().order == Order::Reverse) std::reverse(ex.ready.begin(), ex.ready.end());
    std::vector<unsigned> batch; batch.reserve(2 * n + 64);
    while (ex.done < n && ex.fault_msg.empty()) {
      if (ex.ready.empty()) {
        if (ex.at_barrier && ex.at_barrier + ex.done == n) {
          if (ex.done && options().strict_barrier) {
            ex.fault_msg = "barrier divergence: " + std::to_string(ex.at_barrier) + " threads wait at " + ex.bar_file + ":" +
                           std::to_string(ex.bar_line) + " but " + std::to_string(ex.done) + " threads of the block have exited";
            break;
          }
          release_barrier(); continue;
        }
        ex.fault_msg = "deadlock in block (" + std::to_string(blockIdx.x) + "): " + std::to_string(ex.at_barrier) +
                       " threads at a barrier, " + std::to_string(n - ex.at_barrier - ex.done) + " in a warp operation, " + std::to_string(ex.done) + " exited";
        break;
      }
      batch.swap(ex.ready); ex.ready.clear();
      if (options().order == Order::Random) std::shuffle(batch.begin(), batch.end(), ex.rng);
      for (unsigned i : batch) { resume(&ex.fibers[i]); if (!ex.fault_msg.empty()) break; }
    }
    if (!ex.fault_msg.empty()) {             // unwind the fibers that are still parked
      for (auto& f : ex.fibers) if (f.started && f.st != St::Done) resume(&f);
    }
#if defined(SIMT_TSAN)
    for (auto& f : ex.fibers) __tsan_destroy_fiber(f.tsan);
#endif
    if (!ex.fault_msg.empty()) break;
  }
#if defined(SIMT_ASAN)
  __asan_unpoison_memory_region(ex.arena, kArena);
#endif
#if defined(SIMT_TSAN)
  __tsan_acquire(&ex.end_hb);               // kernel end orders everything before what follows
#endif
  stack_cache.swap(ex.free_stacks); in_kernel = false; t_ctx = nullptr;
  std::string m = ex.fault_msg; X = nullptr;
  if (!m.empty()) throw Fault{m};
}
}  // namespace simt
