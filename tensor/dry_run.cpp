// A backend and a table of kernels that record each call instead of running it. See dry_run.h.
#include "tensor/dry_run.h"

#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <type_traits>
#include <utility>

#include "tensor/backend.h"
#include "tensor/check.h"
#include "tensor/fp8.h"
#include "tensor/kernels.h"
#include "tensor/quantized.h"
#include "tensor/step_batch.h"

namespace lockstep {

extern std::atomic<const Backend*> cuda_stands_in;  // device.cpp

namespace {

std::mutex noted_mutex;
std::vector<DryKernel> noted;

void note(DryKernel kernel) {
  const std::lock_guard lock(noted_mutex);
  noted.push_back(std::move(kernel));
}

void add_operand(DryKernel& kernel, const Tensor& x, bool is_written) {
  if (!x.defined()) return;
  int64_t elements = 1;
  for (int d = 0; d < x.dim(); ++d)
    if (x.strides()[d] != 0) elements *= x.shape()[d];
  kernel.operands.push_back({x.shape(), x.dtype(), x.numel() == 0 ? 0 : elements, is_written});
}

/// Records one argument of a kernel call. A tensor passed by const reference is read, any other is written.
void see(DryKernel& kernel, const Tensor& x) { add_operand(kernel, x, false); }
void see(DryKernel& kernel, Tensor& x) { add_operand(kernel, x, true); }
void see(DryKernel& kernel, const std::vector<Tensor>& all) {
  for (const Tensor& x : all) add_operand(kernel, x, true);
}
void see(DryKernel& kernel, const Quantized& q) { see(kernel, q.codes), see(kernel, q.scales); }
void see(DryKernel& kernel, const Fp8Matrix& m) { see(kernel, m.codes), see(kernel, m.scale_inv); }
void see(DryKernel& kernel, const AttentionArgs& args) {
  kernel.causal = args.causal, kernel.window = args.window, kernel.dropout = args.dropout;
}
void see(DryKernel& kernel, uint32_t dims) { kernel.reduced = dims; }
void see(DryKernel& kernel, const MatmulArgs& args) {
  kernel.fuses = args.activation != Activation::gelu_erf && args.activation != Activation::silu;
}
template <class T> void see(DryKernel&, const T&) {}

/// The name of entry `id` of Kernels. Noted<id>::call() stands in for this kernel and records its calls. `id` is needed
/// because several kernels have the same signature.
template <int id> inline const char* entry_name = "";
template <int id, class Fn> struct Noted;
template <int id, class Result, class... Args> struct Noted<id, Result (*)(Args...)> {
  static Result call(Args... args) {
    DryKernel kernel{.name = entry_name<id>};
    (see(kernel, static_cast<std::add_lvalue_reference_t<Args>>(args)), ...);
    note(std::move(kernel));
    if constexpr (!std::is_void_v<Result>) return Result(true);
  }
};

void noted_pointwise(PointwiseOp op, PointwisePart part, const PointwiseArgs&, const Tensor* const* in, int count,
                     Tensor& out) {
  DryKernel kernel{.name = part == PointwisePart::value && op == PointwiseOp::add ? "add"
                           : part == PointwisePart::value                         ? "pointwise"
                                                                                  : "pointwise_grad"};
  for (int i = 0; i < count; ++i) add_operand(kernel, *in[i], false);
  add_operand(kernel, out, true);
  note(std::move(kernel));
}

enum EntryId {
#define LOCKSTEP_ENTRY(name, result, parameters) id_of_##name,
#include "tensor/operations.def"
};
#define LOCKSTEP_ENTRY(name, result, parameters) template <> inline const char* entry_name<id_of_##name> = #name;
#include "tensor/operations.def"

const Kernels noted_kernels = [] {
  Kernels k{
#define LOCKSTEP_ENTRY(name, result, parameters) .name = Noted<id_of_##name, decltype(Kernels::name)>::call,
#include "tensor/operations.def"
  };
  k.pointwise = noted_pointwise;
  return k;
}();

std::atomic<int64_t> held{0};

void* take_addresses(size_t bytes, int) {
  void* const p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  LOCKSTEP_CHECK(p != MAP_FAILED, "[DryRun] cannot reserve ", bytes,
                 " bytes of address space; raise its limit (ulimit -v)");
  ++held;
  return p;
}
void give_addresses_back(void* p, size_t bytes, int, void*) noexcept {
  munmap(p, bytes);
  --held;
}

void note_bytes(const char* name, int64_t bytes) {
  DryKernel kernel{.name = name};
  kernel.operands.push_back({{bytes}, u8, bytes, true});
  note(std::move(kernel));
}

void note_copy(void* to, Device to_device, const void*, Device from_device, size_t bytes, bool) {
  note_bytes(to_device.is_cpu() ? "copy to host" : from_device.is_cpu() ? "copy from host" : "copy", int64_t(bytes));
  if (to_device.is_cpu()) std::memset(to, 0, bytes);
}

[[noreturn]] void no_graph() { fail("[DryRun] graphs are not recorded in a dry run; run the step without capture()"); }

const Backend noted_backend{
    .kernels = &noted_kernels,
    .solvers = nullptr,
    .device_count = [] { return 1; },
    .why_none = [] { return std::string(); },
    .describe = [] { return std::string("a dry run: kernels are recorded, not run\n"); },
    .multiplies_bf16 = [](int) { return true; },
    .select = [](int) {},
    .allocate = take_addresses,
    .deallocate = give_addresses_back,
    .memory_size = [](int) { return size_t(0); },
    .cached_bytes = [](int) { return size_t(0); },
    .release_cached = [](int) {},
    .copy_bytes = note_copy,
    .synchronize = [](int) {},
    .distrust = [](int, const char*) {},
    .pin = [](size_t bytes) { return ::operator new(bytes); },
    .unpin = [](void* p) noexcept { ::operator delete(p); },
    .new_stream = [](int, bool) -> void* { return nullptr; },
    .free_stream = [](void*, int) noexcept {},
    .current_stream = [](int) -> void* { return nullptr; },
    .set_current_stream = [](int, void*) {},
    .synchronize_stream = [](void*, int) {},
    .new_event = [](int, bool) -> void* { return nullptr; },
    .free_event = [](void*, int) noexcept {},
    .record = [](void*, void*, int) {},
    .wait = [](void*, void*, int) {},
    .done = [](void*, int) { return true; },
    .synchronize_event = [](void*, int) {},
    .milliseconds = [](void*, void*, int) { return 0.; },
    .begin_capture = [](int) { no_graph(); },
    .end_capture = [](int) -> void* { no_graph(); },
    .abandon_capture = [](int) noexcept {},
    .launch_graph = [](void*, int) { no_graph(); },
    .set_keys = [](RecordedKey*, const RecordedKey*, int, int) { no_graph(); },
    .free_graph = [](void*, int) noexcept {},
    .store =
        [](void* to, const void* from, size_t bytes) {
          std::memcpy(to, from, bytes);  // square_sums reads them there
          note_bytes("numbers", int64_t(bytes));
        },
    .square_sums =
        [](const void* pieces, int count, int64_t chunks, void*, double*) {
          const auto* all = static_cast<const SquarePiece*>(pieces);
          int64_t bytes = 8 * chunks;
          for (int i = 0; i < count; ++i) bytes += all[i].n * size_of(all[i].dtype);
          note_bytes("square_sums", bytes);
        },
    .add_sums = [](const void*, int64_t count, const double*, double*) { note_bytes("add_sums", 8 * count); },
    .take_norm = [](const void*, int64_t count, const double*, double*, void*) { note_bytes("take_norm", 8 * count); },
    .find_nonfinite =
        [](const std::vector<Tensor>& x, int32_t*) {
          DryKernel kernel{.name = "find_nonfinite"};
          for (const Tensor& one : x) add_operand(kernel, one, false);
          note(std::move(kernel));
        },
    .hold_for_graphs = [](const std::shared_ptr<void>&, int, uint32_t) noexcept {},
};

}  // namespace

DryRun::DryRun() {
  const Backend* none = nullptr;
  LOCKSTEP_CHECK(cuda_stands_in.compare_exchange_strong(none, &noted_backend),
                 "[DryRun] only one DryRun may exist at a time; destroy the other one first");
  take();
}

DryRun::~DryRun() {
  // While tensors of the dry run exist, its backend stays: the real backend could not free their memory.
  if (held.load() == 0) cuda_stands_in.store(nullptr);
}

std::vector<DryKernel> DryRun::take() {
  const std::lock_guard lock(noted_mutex);
  return std::exchange(noted, {});
}

}  // namespace lockstep
