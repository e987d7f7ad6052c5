// The error for memory that ran out: what was wanted, the ledger, and the advice of this thread's engines.
#include <exception>
#include <utility>
#include <vector>

#include "base/printable.h"
#include "tensor/memory.h"

namespace lockstep {

namespace {

// Not owned: whoever added advice takes it back by destroying it.
thread_local std::vector<std::weak_ptr<const MemoryAdvice>> advisers;

}  // namespace

void add_memory_advice(const std::shared_ptr<const MemoryAdvice>& advice) {
  std::erase_if(advisers, [](const auto& one) { return one.expired(); });
  advisers.push_back(advice);
}

void fail_out_of_memory(const std::string& what, Device device) {
  std::string advice;
  auto asked = std::exchange(advisers, {});  // an adviser that runs out of memory itself finds nobody to ask
  for (const auto& one : asked) {
    try {
      if (const auto adviser = one.lock()) advice += (*adviser)(device);
    } catch (const std::exception&) {}  // NOLINT: the error goes on without this advice
  }
  advisers = std::move(asked);
  if (advice.empty()) advice = "A smaller batch, activation checkpointing, bf16, or ZeRO with offload need less.";
  throw OutOfMemory(printable(
      str(what, "; held now:\n", memory_limit(device) > 0 ? device_memory(device) : memory_report(device), advice)));
}

}  // namespace lockstep
