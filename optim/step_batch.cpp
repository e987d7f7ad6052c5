// Collects optimizer updates and launches them. See step_batch.h.
#include "optim/step_batch.h"

#include <algorithm>
#include <set>

#include "base/check.h"
#include "optim/step_kernels.h"
#include "tensor/backend.h"
#include "tensor/graph.h"
#include "tensor/ops.h"

namespace lockstep {
namespace {

thread_local StepBatch* collecting_batch = nullptr;

std::byte* bytes_of(const Tensor& x) { return static_cast<std::byte*>(x.raw_data()); }

}  // namespace

StepBatch::StepBatch(Device device) : device_(device) {
  LOCKSTEP_CHECK(!device.is_cpu(), "[StepBatch] expected a CUDA device, got ", device);
}

StepBatch::Scope::Scope(StepBatch& batch, int key, int64_t step, bool numbers_only) {
  batch.key_ = key, batch.step_ = step, batch.numbers_only_ = numbers_only;
  collecting_batch = &batch;
}
StepBatch::Scope::~Scope() { collecting_batch = nullptr; }
StepBatch* StepBatch::collecting() { return collecting_batch; }

void StepBatch::add(Launch launch, StepPiece piece, Tensor gradient) {
  if (piece.n == 0) return;
  auto job = jobs_.begin();
  while (job != jobs_.end() && job->launch != launch) ++job;
  if (job == jobs_.end()) job = jobs_.insert(job, Job{.launch = launch, .pieces = {}, .table = {}});
  piece.slot = slot_;
  piece.first_chunk = job->chunks;
  job->chunks += (piece.n + chunk - 1) / chunk;
  job->pieces.push_back(piece);
  gradients_.push_back(std::move(gradient));
}

void StepBatch::clear() {
  for (Job& job : jobs_) job.pieces.clear(), job.chunks = 0;
  slots_.clear();
  gradients_.clear();
}

void StepBatch::check_recordable(const char* op) const {
  std::set<int> keys;
  for (const Slot& slot : slots_) keys.insert(slot.key);
  LOCKSTEP_CHECK(keys.size() == slots_.size(), "[", op,
                 "] a step can be captured only if all parameters of a group have been updated equally often and with "
                 "the same options; put the other parameters into groups of their own");
  LOCKSTEP_CHECK(numbers_.defined() && numbers_.numel() >= bytes(), "[", op,
                 "] run one step with these parameters before capturing one");
}

int64_t StepBatch::bytes() const { return int64_t(sizeof(StepControl) + slots_.size() * sizeof(StepSlot)); }

/// Writes host bytes to device memory. The bytes travel as a kernel's arguments, so the host memory may be reused at
/// once, and a graph can record the write.
void StepBatch::write(const Tensor& to, int64_t at, const void* bytes, size_t size) const {
  kernels::store_numbers(device_, bytes_of(to) + at, bytes, size);
}

/// Returns the address of the table's bytes on the device, after writing them if they have changed. While a graph is
/// recorded, writes them to memory of the graph's own, because table.device may change before a replay.
const std::byte* StepBatch::hold(Table& table, const void* bytes, size_t size) {
  const MemoryScope scope(Memory::other);
  const TensorOptions there{.dtype = u8, .device = device_};
  if (Graph::is_capturing()) {
    const Tensor fresh = empty({int64_t(size)}, there);
    write(fresh, 0, bytes, size);
    gradients_.push_back(fresh);
    return bytes_of(fresh);
  }
  if (!table.device.defined() || table.device.numel() < int64_t(size)) {
    table.device = empty({int64_t(size)}, there);
    table.held.clear();
  }
  if (table.held.size() != size || std::memcmp(table.held.data(), bytes, size) != 0) {
    write(table.device, 0, bytes, size);
    const auto* first = static_cast<const std::byte*>(bytes);
    table.held.assign(first, first + size);
  }
  return bytes_of(table.device);
}

void StepBatch::set(const StepControl& control, bool keeps_skipped) {
  if (!numbers_.defined() || numbers_.numel() < bytes()) {
    LOCKSTEP_CHECK(!recorded_, "[StepBatch] the recorded graph has no room for ", slots_.size(),
                   " distinct step counts of parameters; capture the graph anew");
    const MemoryScope scope(Memory::other);
    numbers_ = empty({bytes() + 32 * int64_t(sizeof(StepSlot))}, {.dtype = u8, .device = device_});
  }
  std::vector<std::byte> all(static_cast<size_t>(bytes()));
  std::memcpy(all.data(), &control, sizeof control);
  for (size_t i = 0; i < slots_.size(); ++i)
    std::memcpy(all.data() + sizeof control + i * sizeof(StepSlot), &slots_[i].numbers, sizeof(StepSlot));
  const size_t from = keeps_skipped ? sizeof control.skipped : 0;
  write(numbers_, int64_t(from), all.data() + from, all.size() - from);
}

void StepBatch::add_squares(const std::vector<Squares>& all, const Tensor& sums) {
  std::vector<SquarePiece> pieces;
  int64_t chunks = 0;
  for (const Squares& s : all) {
    if (s.x.numel() == 0) continue;
    SquarePiece piece{};
    piece.x = s.x.raw_data(), piece.n = s.x.numel(), piece.first_chunk = chunks, piece.at = s.at;
    piece.dtype = s.x.dtype(), piece.is_aligned = reinterpret_cast<uintptr_t>(piece.x) % 16 == 0;
    pieces.push_back(piece);
    chunks += (piece.n + chunk - 1) / chunk;
  }
  if (pieces.empty()) return;
  const std::byte* there = hold(squares_, pieces.data(), pieces.size() * sizeof(SquarePiece));
  kernels::square_sums(device_, there, int(pieces.size()), chunks, bytes_of(numbers_), sums.data<double>());
}

void StepBatch::add_up(const std::vector<NormPiece>& all, const Tensor& sums, const Tensor& totals) {
  if (all.empty()) return;
  const std::byte* there = hold(tensors_, all.data(), all.size() * sizeof(NormPiece));
  kernels::add_sums(device_, there, int64_t(all.size()), sums.data<double>(), totals.data<double>());
}

void StepBatch::take_norm(const std::vector<NormPiece>& all, const Tensor& sums) {
  const std::byte* there = all.empty() ? nullptr : hold(norms_, all.data(), all.size() * sizeof(NormPiece));
  const Tensor squares = empty({std::max(int64_t(all.size()), int64_t(1))}, {.dtype = f64, .device = device_});
  kernels::take_norm(device_, there, int64_t(all.size()), sums.data<double>(), squares.data<double>(),
                     bytes_of(numbers_));
}

Tensor StepBatch::found() const {
  constexpr int64_t at = offsetof(StepControl, found) / sizeof(int32_t);
  return {numbers_.storage(), numbers_.offset() / int64_t(sizeof(int32_t)) + at, {1}, {1}, i32};
}

void StepBatch::launch() {
  select_for_kernel(device_);
  recorded_ |= Graph::is_capturing();
  for (Job& job : jobs_) {
    if (job.pieces.empty()) continue;
    const std::byte* there = hold(job.table, job.pieces.data(), job.pieces.size() * sizeof(StepPiece));
    job.launch(there, int(job.pieces.size()), job.chunks, bytes_of(numbers_));
  }
  gradients_.clear();
}

StepControl StepBatch::read() const {
  StepControl control;
  if (numbers_.defined())
    backend(device_)->copy_bytes(&control, cpu, bytes_of(numbers_), device_, sizeof control, true);
  return control;
}

}  // namespace lockstep
