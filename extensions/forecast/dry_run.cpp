// A backend that records each call of a kernel instead of running it. See dry_run.h.
#include "extensions/forecast/dry_run.h"

#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <string_view>
#include <utility>

#include "optim/step_batch.h"
#include "tensor/backend.h"
#include "tensor/kernels.h"

namespace lockstep {

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

/// Records one argument of a kernel call.
void see(DryKernel& kernel, const KernelArgument& argument) {
  if (const auto* x = argument.as<Tensor>()) add_operand(kernel, *x, argument.is_written);
  else if (const auto* all = argument.as<std::vector<Tensor>>())
    for (const Tensor& one : *all) add_operand(kernel, one, kernel.name == "unscale");
  else if (const auto* attention = argument.as<AttentionArgs>())
    kernel.causal = attention->causal, kernel.window = attention->window, kernel.dropout = attention->dropout;
  else if (const auto* dims = argument.as<uint32_t>()) kernel.reduced = *dims;
  else if (const auto* product = argument.as<MatmulArgs>())
    kernel.fuses = product->activation != Activation::gelu_erf && product->activation != Activation::silu;
}

template <class T> const T& argument(std::initializer_list<KernelArgument> all, size_t i) {
  return *all.begin()[i].as<T>();
}

void note_bytes(const char* name, int64_t bytes) {
  DryKernel kernel{.name = name};
  kernel.operands.push_back({{bytes}, u8, bytes, true});
  note(std::move(kernel));
}

/// Records a call of a kernel. In three families of kernels the arguments do not tell which bytes are read, so each of
/// them has a branch.
void note_call(const char* op, std::initializer_list<KernelArgument> arguments) {
  const std::string_view name = op;
  if (name == "pointwise") {
    const bool is_value = argument<PointwisePart>(arguments, 1) == PointwisePart::value;
    const bool is_add = argument<PointwiseOp>(arguments, 0) == PointwiseOp::add;
    DryKernel kernel{.name = !is_value ? "pointwise_grad" : is_add ? "add" : "pointwise"};
    const Tensor* const* in = argument<const Tensor* const*>(arguments, 3);
    for (int i = 0; i < argument<int>(arguments, 4); ++i) add_operand(kernel, *in[i], false);
    add_operand(kernel, argument<Tensor>(arguments, 5), true);
    note(std::move(kernel));
  } else if (name == "store_numbers") {
    const size_t bytes = argument<size_t>(arguments, 2);
    // Copies the numbers, because the branch for square_sums reads them.
    std::memcpy(argument<void*>(arguments, 0), argument<const void*>(arguments, 1), bytes);
    note_bytes("numbers", int64_t(bytes));
  } else if (name == "square_sums") {
    const auto* pieces = static_cast<const SquarePiece*>(argument<const void*>(arguments, 0));
    int64_t bytes = 8 * argument<int64_t>(arguments, 2);
    for (int i = 0; i < argument<int>(arguments, 1); ++i) bytes += pieces[i].n * size_of(pieces[i].dtype);
    note_bytes(op, bytes);
  } else if (name == "add_sums" || name == "take_norm") {
    note_bytes(op, 8 * argument<int64_t>(arguments, 1));
  } else {
    DryKernel kernel{.name = op};
    for (const KernelArgument& one : arguments) see(kernel, one);
    note(std::move(kernel));
  }
}

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

void note_copy(void* to, Device to_device, const void*, Device from_device, size_t bytes, bool) {
  note_bytes(to_device.is_cpu() ? "copy to host" : from_device.is_cpu() ? "copy from host" : "copy", int64_t(bytes));
  if (to_device.is_cpu()) std::memset(to, 0, bytes);
}

[[noreturn]] void no_graph() { fail("[DryRun] graphs are not recorded in a dry run; run the step without capture()"); }

const Backend noted_backend{
    .recorder = note_call,
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
