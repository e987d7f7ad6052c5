// Fibers for x86-64 (System V): a switch saves the callee-saved registers and swaps the stack pointers. The
// floating-point control words are the same in all fibers and are not saved.
#include "tests/cudasim/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "tests/cudasim/runtime.h"

#if !defined(__x86_64__)
#error "the emulator's fibers are written for x86-64"
#endif

asm(R"(
.text
.globl simt_switch
.type simt_switch,@function
simt_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
.size simt_switch,.-simt_switch
)");
extern "C" void simt_switch(void** save, void* load);

namespace simt {
namespace {

constexpr size_t page = 4096, stack_bytes = 256 * 1024;  // pages are committed when touched
thread_local Fiber* starting = nullptr;

/// Unused stacks, kept with ThreadSanitizer: unmapping a stack would split its shadow memory into more mappings than a
/// process may have.
struct Spare {
  fake::SpinLock lock;
  std::vector<char*> stacks;
};
Spare& spare() {
  static Spare& all = *new Spare;  // leaked: outlives all threads
  return all;
}

}  // namespace

void renew(void* pages, size_t bytes) {
  begin_ignore();  // else ThreadSanitizer takes mmap() for a write
  mmap(pages, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  end_ignore();
}

Fiber::Fiber(void (*body)(), unsigned number) : body_(body), number_(number) {
  if (const std::lock_guard lock(spare().lock); !spare().stacks.empty()) {
    stack_ = spare().stacks.back();
    spare().stacks.pop_back();
    return;
  }
  void* p =
      mmap(nullptr, stack_bytes + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  // With ThreadSanitizer there is no guard page: neighbouring stacks without one merge into a single mapping, and its
  // many stacks would otherwise exceed the mappings that a process may have.
  if (p == MAP_FAILED || (!with_tsan() && mprotect(p, page, PROT_NONE) != 0)) {
    std::perror("cudasim: mmap of a stack");
    std::abort();
  }
  stack_ = static_cast<char*>(p) + page;
}
Fiber::~Fiber() {
  if (!with_tsan()) {
    munmap(stack_ - page, stack_bytes + page);
    return;
  }
  renew(stack_, stack_bytes);
  const std::lock_guard lock(spare().lock);
  spare().stacks.push_back(stack_);
}

void Fiber::begin() {
  // Stack tops at different offsets in their pages fall into different cache sets.
  auto* sp = reinterpret_cast<uint64_t*>(stack_ + stack_bytes - number_ % 61 * 64);
  *--sp = 0;  // keeps the alignment at entry
  *--sp = reinterpret_cast<uint64_t>(&Fiber::entry);
  for (int i = 0; i < 6; ++i) *--sp = 0;
  inside_ = sp;
  fake_inside_ = nullptr;
}

void Fiber::entry() {
  Fiber* self = starting;
  const void* bottom;
  size_t size;
  if (with_asan()) __sanitizer_finish_switch_fiber(nullptr, &bottom, &size);
  if (!self->outer_bottom_) self->outer_bottom_ = bottom, self->outer_size_ = size;
  self->body_();
  std::abort();  // the body leaves by end() or leave_to(); it never returns
}

void Fiber::enter() {
  if (!inside_) begin();
  starting = this;
  if (with_asan()) __sanitizer_start_switch_fiber(&fake_outside_, stack_, stack_bytes);
  simt_switch(&outside_, inside_);
  if (with_asan()) __sanitizer_finish_switch_fiber(fake_outside_, nullptr, nullptr);
}

void Fiber::end() {
  if (with_asan()) __sanitizer_start_switch_fiber(nullptr, outer_bottom_, outer_size_);
  void* dropped;
  inside_ = nullptr;
  simt_switch(&dropped, outside_);
}

void Fiber::leave_to(Fiber* next) {
  void* to = outside_;
  const void* bottom = outer_bottom_;
  size_t size = outer_size_;
  if (next) {
    next->outside_ = outside_, next->outer_bottom_ = outer_bottom_, next->outer_size_ = outer_size_;
    if (!next->inside_) next->begin(), starting = next;
    to = next->inside_, bottom = next->stack_, size = stack_bytes;
  }
  if (with_asan()) __sanitizer_start_switch_fiber(&fake_inside_, bottom, size);
  simt_switch(&inside_, to);
  if (with_asan()) __sanitizer_finish_switch_fiber(fake_inside_, nullptr, nullptr);
}

}  // namespace simt
