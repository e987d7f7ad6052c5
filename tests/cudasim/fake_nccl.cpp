// Fake NCCL: ranks are threads of one process. Group semantics, stream ordering and - what the real one does not do -
// every collective's kind, count, type, op and root are compared over the ranks, with a timeout.
#include <nccl.h>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>
#include "tests/cudasim/fake.h"
namespace {
struct Call { int kind = 0; size_t n = 0; int dt = 0, op = 0, root = 0; const void* s = nullptr; void* r = nullptr; };
struct World { int n; std::mutex mu; std::condition_variable cv; std::map<uint64_t, std::vector<Call>> posted; std::map<uint64_t, int> arrived, finished; bool dead = false; std::string why; };
std::mutex g_mu; std::map<std::string, std::shared_ptr<World>> g_worlds; uint64_t g_ids = 0; int g_timeout = 2000; std::string g_desync;
thread_local int t_depth = 0; thread_local std::vector<std::function<void()>> t_group;
size_t esz(int dt) { return dt == ncclFloat32 || dt == ncclInt32 ? 4 : dt == ncclFloat64 || dt == ncclInt64 ? 8 : dt == ncclFloat16 || dt == ncclBfloat16 ? 2 : 1; }
}
struct ncclComm { std::shared_ptr<World> w; int rank, dev; uint64_t seq = 0; ncclResult_t async = ncclSuccess; };
namespace fake { void set_nccl_timeout_ms(int t) { g_timeout = t; } std::string nccl_last_desync() { std::lock_guard l(g_mu); return g_desync; } }
static void execute(ncclComm* c, uint64_t seq, Call call) {
  auto w = c->w; std::unique_lock l(w->mu);
  if (w->dead) { c->async = ncclRemoteError; return; }
  auto& v = w->posted[seq]; v.resize(w->n); v[c->rank] = call;
  auto fail = [&](std::string m) { w->dead = true; w->why = m; { std::lock_guard g(g_mu); g_desync = m; } c->async = ncclRemoteError; w->cv.notify_all(); };
  if (++w->arrived[seq] == w->n) {
    for (int r = 1; r < w->n; r++) if (v[r].kind != v[0].kind || v[r].n != v[0].n || v[r].dt != v[0].dt || v[r].op != v[0].op || v[r].root != v[0].root) {
      fail("collective #" + std::to_string(seq) + " differs: rank 0 kind " + std::to_string(v[0].kind) + " n " + std::to_string(v[0].n) + " dt " + std::to_string(v[0].dt) + ", rank " + std::to_string(r) + " kind " + std::to_string(v[r].kind) + " n " + std::to_string(v[r].n) + " dt " + std::to_string(v[r].dt)); return; }
    std::vector<std::unique_ptr<fake::DeviceScope>> open; for (int d = 0; d < w->n; d++) { int dv = fake::device_of(v[d].r); if (dv >= 0) open.push_back(std::make_unique<fake::DeviceScope>(dv)); }
    const size_t n = call.n, e = esz(call.dt);
    if (call.kind == 1 && call.dt == ncclFloat32) { std::vector<float> a(n, 0.f); for (auto& x : v) for (size_t i = 0; i < n; i++) a[i] += ((const float*)x.s)[i]; if (call.op == ncclAvg) for (auto& f : a) f /= w->n; for (auto& x : v) std::memcpy(x.r, a.data(), n * 4); }
    else if (call.kind == 2) { for (auto& x : v) std::memmove((char*)x.r, v[call.root].s, n * e); }
    else if (call.kind == 3) { for (auto& x : v) for (int r = 0; r < w->n; r++) std::memmove((char*)x.r + r * n * e, v[r].s, n * e); }
    w->finished[seq] = 1; w->cv.notify_all();
  } else if (!w->cv.wait_for(l, std::chrono::milliseconds(g_timeout), [&] { return w->finished.count(seq) || w->dead; })) {
    std::string miss; for (int r = 0; r < w->n; r++) if (!v[r].kind) miss += " " + std::to_string(r);
    fail("timeout in collective #" + std::to_string(seq) + ": rank(s)" + miss + " never arrived");
  } else if (!w->finished.count(seq)) c->async = ncclRemoteError;
}
static ncclResult_t submit(ncclComm* c, Call call, cudaStream_t s) {
  if (!c || (call.n && (fake::device_of(call.s) < 0 || fake::device_of(call.r) < 0))) return ncclInvalidArgument;   // host pointers
  if (c->dev != fake::current_device()) return ncclInvalidUsage;
  auto go = [=] { uint64_t q = c->seq++; fake::enqueue(s, [=] { execute(c, q, call); }); };
  if (t_depth) t_group.push_back(go); else go();
  return ncclSuccess;
}
extern "C" {
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) { std::memset(id, 0, sizeof *id); std::lock_guard l(g_mu); std::snprintf(id->internal, 64, "fake-%llu", (unsigned long long)++g_ids); return ncclSuccess; }
ncclResult_t ncclCommInitRank(ncclComm_t* c, int n, ncclUniqueId id, int rank) {
  if (n < 1 || rank < 0 || rank >= n) return ncclInvalidArgument;
  std::lock_guard l(g_mu); auto& w = g_worlds[id.internal]; if (!w) { w = std::make_shared<World>(); w->n = n; }
  if (w->n != n) return ncclInvalidUsage;
  *c = new ncclComm{w, rank, fake::current_device()}; return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t c) { delete c; return ncclSuccess; }
ncclResult_t ncclCommAbort(ncclComm_t c) { { std::lock_guard l(c->w->mu); c->w->dead = true; c->w->cv.notify_all(); } delete c; return ncclSuccess; }
ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t* r) { *r = c->async; return ncclSuccess; }
const char* ncclGetErrorString(ncclResult_t) { return "fake nccl error"; }
ncclResult_t ncclGroupStart() { t_depth++; return ncclSuccess; }
ncclResult_t ncclGroupEnd() { if (t_depth == 0) return ncclInvalidUsage; if (--t_depth == 0) { auto g = std::move(t_group); t_group.clear(); for (auto& f : g) f(); } return ncclSuccess; }
ncclResult_t ncclAllReduce(const void* s, void* r, size_t n, ncclDataType_t t, ncclRedOp_t op, ncclComm_t c, cudaStream_t st) { return submit(c, {1, n, t, op, 0, s, r}, st); }
ncclResult_t ncclBroadcast(const void* s, void* r, size_t n, ncclDataType_t t, int root, ncclComm_t c, cudaStream_t st) { return submit(c, {2, n, t, 0, root, s, r}, st); }
ncclResult_t ncclAllGather(const void* s, void* r, size_t n, ncclDataType_t t, ncclComm_t c, cudaStream_t st) { return submit(c, {3, n, t, 0, 0, s, r}, st); }
}
