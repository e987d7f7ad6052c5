// Limits of launches, and the choice of blocks to run.
#include <algorithm>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <utility>

#include "tests/cudasim/block.h"
#include "tests/cudasim/clocks.h"
#include "tests/cudasim/runtime.h"

namespace simt {
namespace {

fake::SpinLock allowed_lock;
std::map<std::pair<const void*, int>, size_t>& allowed() {  // by kernel and device
  static auto& all = *new std::map<std::pair<const void*, int>, size_t>;
  return all;
}

/// The restrictions of the fake::SomeBlocks objects; the innermost is the last.
struct Some {
  std::vector<fake::Part> parts;
  uint64_t samples = 0;
};
std::vector<Some> scopes;

}  // namespace

size_t max_shared() {
  const int capability = fake::settings().capability;
  return size_t(capability >= 90 ? 227 : capability == 80 ? 163 : capability > 80 ? 99 : 64) * 1024;
}

bool allow_shared(const void* kernel, int device, size_t bytes) {
  if (bytes > max_shared()) return false;
  const std::lock_guard lock(allowed_lock);
  allowed()[{kernel, device}] = bytes;
  return true;
}

cudaError_t check_launch(const void* kernel, dim3 grid, dim3 block, size_t shared) {
  const uint64_t threads = uint64_t(block.x) * block.y * block.z;
  const bool fits = threads >= 1 && threads <= max_threads && block.z <= 64 && grid.x >= 1 && grid.x <= 0x7fffffffu &&
                    grid.y >= 1 && grid.y <= 65535 && grid.z >= 1 && grid.z <= 65535;
  if (!fits) return cudaErrorInvalidConfiguration;
  if (shared <= shared_unasked) return cudaSuccess;
  const std::lock_guard lock(allowed_lock);
  const auto found = allowed().find({kernel, launch_device()});
  return found != allowed().end() && shared <= found->second ? cudaSuccess : cudaErrorInvalidValue;
}

std::vector<uint64_t> some_of(uint64_t blocks) {
  constexpr uint64_t limit = 64, at_end = 2, around = 4;
  if (scopes.empty() || blocks <= limit) return {};
  const auto& [parts, samples] = scopes.back();
  std::set<uint64_t> chosen;
  for (uint64_t i = 0; i < at_end; ++i) chosen.insert({i, blocks - 1 - i});
  for (const auto& [begin, end] : parts) {
    const uint64_t first = uint64_t(begin * double(blocks)), last = uint64_t(end * double(blocks)) + around;
    for (uint64_t i = first - std::min(first, around); i <= last && i < blocks; ++i) chosen.insert(i);
  }
  std::mt19937_64 random(options().seed + blocks);
  for (uint64_t i = 0; i < samples; ++i) chosen.insert(random() % blocks);
  return {chosen.begin(), chosen.end()};
}

}  // namespace simt

namespace fake {
namespace {
void finish_all() {
  for (int d = 0; d < settings().devices; ++d) finish_device(d);
}
}  // namespace

SomeBlocks::SomeBlocks(std::vector<Part> parts, uint64_t samples) : memory_(settings().memory) {
  finish_all();
  settings().memory = size_t(1) << 40;
  simt::scopes.push_back({std::move(parts), samples});
}
SomeBlocks::~SomeBlocks() {
  finish_all();
  settings().memory = memory_;
  simt::scopes.pop_back();
}

}  // namespace fake
