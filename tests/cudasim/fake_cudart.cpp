// A fake libcudart behind NVIDIA's REAL headers: host memory, adversarial streams.
//   eager  : every op runs at once (what a naive fake does - hides bugs)
//   lazy   : nothing runs until somebody waits for it (the latest legal moment)
//   random : at every API call a seeded RNG lets some streams advance (any legal moment)
// Device memory is PROT_NONE while host code runs: a host dereference of a device pointer faults.
#include <cuda_runtime_api.h>
#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>
#include <sys/mman.h>
#include "tests/cudasim/fake.h"
#include "tests/cudasim/simt_cpu.h"

namespace fake {
static Policy g_policy = Policy::Lazy; static std::mt19937_64 g_rng[8];   // one per device: a seed replays although ranks are threads
static thread_local int t_dev = 0; static thread_local cudaError_t t_last = cudaSuccess;
static int g_ndev = 2; static std::vector<std::string> g_log; static std::mutex g_mu;   // g_mu guards queues
constexpr size_t kArena = size_t(256) << 20;
struct Dev { unsigned char* base = nullptr; size_t used = 0; std::map<void*, size_t> live; std::set<void*> dead; int open = 0; std::mutex mu; };
static Dev g_devs[8];
static std::map<const char*, size_t> g_pinned;
static uint64_t g_fail_alloc = 0, g_nalloc = 0;

void configure(Policy p, uint64_t seed, int ndev) { g_policy = p; for (int d = 0; d < 8; d++) g_rng[d].seed(seed * 8 + d); g_ndev = ndev; g_fail_alloc = 0; }
void fail_nth_alloc(uint64_t n) { g_fail_alloc = n; g_nalloc = 0; }
static Dev& dev(int d) {
  Dev& D = g_devs[d];
  if (!D.base) { D.base = static_cast<unsigned char*>(mmap(nullptr, kArena, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)); }
  return D;
}
DeviceScope::DeviceScope(int d) : d_(d) { Dev& D = dev(d); std::lock_guard l(D.mu); if (D.open++ == 0) mprotect(D.base, D.used ? D.used : 4096, PROT_READ | PROT_WRITE); }
DeviceScope::~DeviceScope() { Dev& D = g_devs[d_]; std::lock_guard l(D.mu); if (--D.open == 0) mprotect(D.base, D.used ? D.used : 4096, PROT_NONE); }
int device_of(const void* p) { for (int d = 0; d < 8; d++) if (g_devs[d].base && p >= g_devs[d].base && p < g_devs[d].base + kArena) return d; return -1; }
size_t live_allocs() { size_t n = 0; for (auto& d : g_devs) n += d.live.size(); return n; }
}  // namespace fake
using namespace fake;

struct Op { std::function<void()> fn; };
struct CUevent_st { CUstream_st* s = nullptr; uint64_t upto = 0; bool recorded = false; };
struct CUstream_st { int dev = 0; std::deque<Op> q; uint64_t issued = 0, done = 0; std::mutex run_mu; };
static CUstream_st g_null[8];
static std::vector<CUstream_st*> g_streams;
static CUstream_st* S(cudaStream_t s) { if (!s || s == cudaStreamLegacy || s == cudaStreamPerThread) { g_null[t_dev].dev = t_dev; return &g_null[t_dev]; } return s; }

static void run_until(CUstream_st* s, uint64_t upto) {   // executes ops in order; an op may itself wait on another stream
  { std::lock_guard l(g_mu); if (s->done >= upto) return; }  // also breaks cs -> ms -> cs event chains
  std::unique_lock run(s->run_mu);
  for (;;) {
    Op op;
    { std::lock_guard l(g_mu); if (s->done >= upto || s->q.empty()) return; op = std::move(s->q.front()); s->q.pop_front(); }
    { DeviceScope sc(s->dev); op.fn(); }
    std::lock_guard l(g_mu); s->done++;
  }
}
static void enqueue(CUstream_st* s, std::function<void()> f) {
  { std::lock_guard l(g_mu); s->q.push_back({std::move(f)}); s->issued++; }
  if (g_policy == Policy::Eager) run_until(s, ~0ull);
}
static void chaos() {                                    // random policy: some stream of this device advances a little
  if (g_policy != Policy::Random) return;
  std::vector<CUstream_st*> v; uint64_t k;
  { std::lock_guard l(g_mu); for (auto* s : g_streams) if (s->dev == t_dev && !s->q.empty()) v.push_back(s); if (v.empty()) return; k = g_rng[t_dev](); }
  auto* s = v[k % v.size()]; if ((k >> 32) % 2) run_until(s, s->done + 1 + (k >> 40) % 3);
}
namespace fake {
void enqueue(cudaStream_t s, std::function<void()> f) { ::enqueue(S(s), std::move(f)); chaos(); }
int current_device() { return t_dev; }
}
#define RET(e) do { cudaError_t r_ = (e); if (r_ != cudaSuccess) t_last = r_; return r_; } while (0)

extern "C" {
cudaError_t cudaGetDeviceCount(int* n) { *n = g_ndev; RET(g_ndev ? cudaSuccess : cudaErrorNoDevice); }
cudaError_t cudaSetDevice(int d) { if (d < 0 || d >= g_ndev) RET(cudaErrorInvalidDevice); t_dev = d; return cudaSuccess; }
cudaError_t cudaGetDevice(int* d) { *d = t_dev; return cudaSuccess; }
cudaError_t cudaGetLastError(void) { auto e = t_last; t_last = cudaSuccess; return e; }
cudaError_t cudaPeekAtLastError(void) { return t_last; }
const char* cudaGetErrorString(cudaError_t e) { static thread_local char b[32]; std::snprintf(b, 32, "fake cuda error %d", int(e)); return b; }
const char* cudaGetErrorName(cudaError_t e) { return cudaGetErrorString(e); }
cudaError_t cudaMalloc(void** p, size_t n) {
  chaos(); Dev& D = dev(t_dev); std::lock_guard l(D.mu);
  if (g_fail_alloc && ++g_nalloc >= g_fail_alloc) { *p = nullptr; RET(cudaErrorMemoryAllocation); }
  size_t sz = (n + 4095) / 4096 * 4096 + 4096;             // never reused; a guard page after each
  if (D.used + sz > kArena) { *p = nullptr; RET(cudaErrorMemoryAllocation); }
  unsigned char* a = D.base + D.used; mprotect(a, sz, PROT_READ | PROT_WRITE); D.used += sz;
  size_t off = (sz - 4096 - n) / 256 * 256;                // 256-aligned, pushed towards the guard
  std::memset(a, 0xFF, sz);                                // NaN poison: cudaMalloc does not zero
  *p = a + off; D.live[*p] = n; if (!D.open) mprotect(D.base, D.used, PROT_NONE); return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void) { run_until(&g_null[t_dev], ~0ull); std::vector<CUstream_st*> v; { std::lock_guard l(g_mu); v = g_streams; } for (auto* s : v) if (s->dev == t_dev) run_until(s, ~0ull); return cudaSuccess; }
cudaError_t cudaFree(void* p) {
  if (!p) return cudaSuccess;
  int d = device_of(p); if (d < 0) RET(cudaErrorInvalidValue);
  cudaDeviceSynchronize(); Dev& D = dev(d); size_t n;
  { std::lock_guard l(D.mu); auto it = D.live.find(p); if (it == D.live.end()) RET(cudaErrorInvalidValue); n = it->second; D.live.erase(it); }
  { DeviceScope s(d); std::memset(p, 0xFF, n); } return cudaSuccess;
}
cudaError_t cudaMallocHost(void** p, size_t n) { *p = std::malloc(n); std::memset(*p, 0xFF, n); std::lock_guard l(g_mu); g_pinned[(const char*)*p] = n; return cudaSuccess; }
cudaError_t cudaFreeHost(void* p) { std::lock_guard l(g_mu); g_pinned.erase((const char*)p); std::free(p); return cudaSuccess; }
static bool pinned(const void* p) { std::lock_guard l(g_mu); auto it = g_pinned.upper_bound((const char*)p); if (it == g_pinned.begin()) return false; --it; return (const char*)p < it->first + it->second; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned) { *s = new CUstream_st; (*s)->dev = t_dev; std::lock_guard l(g_mu); g_streams.push_back(*s); return cudaSuccess; }
cudaError_t cudaStreamDestroy(cudaStream_t s) { run_until(s, ~0ull); std::lock_guard l(g_mu); g_streams.erase(std::find(g_streams.begin(), g_streams.end(), s)); delete s; return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t s) { run_until(S(s), ~0ull); return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t s) { chaos(); std::lock_guard l(g_mu); return S(s)->q.empty() ? cudaSuccess : cudaErrorNotReady; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) { *e = new CUevent_st; return cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t e) { delete e; return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) { chaos(); auto* q = S(s); std::lock_guard l(g_mu); e->s = q; e->upto = q->issued; e->recorded = true; return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
  if (!e->recorded) return cudaSuccess;                    // as in CUDA: waiting on an unrecorded event is a no-op
  auto* src = e->s; uint64_t upto = e->upto; auto* q = S(s); if (src == q) return cudaSuccess;
  ::enqueue(q, [src, upto] { run_until(src, upto); }); return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) { if (e->recorded) run_until(e->s, e->upto); return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t e) { chaos(); std::lock_guard l(g_mu); return !e->recorded || e->s->done >= e->upto ? cudaSuccess : cudaErrorNotReady; }
cudaError_t cudaMemcpyAsync(void* d, const void* s, size_t n, cudaMemcpyKind k, cudaStream_t st) {
  if (k == cudaMemcpyHostToDevice && (device_of(d) < 0 || device_of(s) >= 0)) RET(cudaErrorInvalidValue);
  if (k == cudaMemcpyDeviceToHost && (device_of(s) < 0 || device_of(d) >= 0)) RET(cudaErrorInvalidValue);
  if (k == cudaMemcpyHostToDevice && !pinned(s)) {         // pageable source: staged before the call returns
    auto buf = std::make_shared<std::vector<char>>((const char*)s, (const char*)s + n);
    fake::enqueue(st, [=] { std::memcpy(d, buf->data(), n); });
  } else fake::enqueue(st, [=] { std::memcpy(d, s, n); });
  if (k == cudaMemcpyDeviceToHost && !pinned(d)) run_until(S(st), ~0ull);   // pageable destination: synchronous
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* d, const void* s, size_t n, cudaMemcpyKind k) { auto e = cudaMemcpyAsync(d, s, n, k, nullptr); run_until(S(nullptr), ~0ull); return e; }
cudaError_t cudaMemsetAsync(void* d, int v, size_t n, cudaStream_t s) { if (device_of(d) < 0) RET(cudaErrorInvalidValue); fake::enqueue(s, [=] { std::memset(d, v, n); }); return cudaSuccess; }
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t f, void* u) { fake::enqueue(s, [=] { f(u); }); return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int d) {
  if (d < 0 || d >= g_ndev) RET(cudaErrorInvalidDevice);
  *p = {}; std::snprintf(p->name, sizeof p->name, "simulated"); p->multiProcessorCount = 4; p->sharedMemPerBlockOptin = 227 * 1024; p->major = 9; p->totalGlobalMem = kArena;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* v) { *v = 13000; return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* v) { *v = 13000; return cudaSuccess; }
cudaError_t cudaMallocAsync(void** p, size_t n, cudaStream_t) { return cudaMalloc(p, n); }
cudaError_t cudaFreeAsync(void* p, cudaStream_t s) { cudaStreamSynchronize(s); return cudaFree(p); }
static int g_pool;
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) { *pool = reinterpret_cast<cudaMemPool_t>(&g_pool); return cudaSuccess; }
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void* v) { *static_cast<uint64_t*>(v) = 0; return cudaSuccess; }
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t* available, size_t* total) { *available = kArena - dev(t_dev).used; *total = kArena; return cudaSuccess; }
cudaError_t cudaMemcpyPeerAsync(void* d, int, const void* s, int, size_t n, cudaStream_t st) {
  const int from = device_of(s), to = device_of(d); if (from < 0 || to < 0) RET(cudaErrorInvalidValue);
  fake::enqueue(st, [=] { DeviceScope a(from), b(to); std::memcpy(d, s, n); }); return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) { *least = 0; *greatest = -5; return cudaSuccess; }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* s, unsigned f, int) { return cudaStreamCreateWithFlags(s, f); }
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) { *ms = 0.001f; return cudaSuccess; }
// Kernels that the emulator runs go through the same queues.
static const bool g_hooked = (simt::g_enqueue = [](cudaStream_t s, std::function<void()> f) { fake::enqueue(s, std::move(f)); }, true);
}
