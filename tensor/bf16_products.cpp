// Chooses the instructions for bf16 matrix products. See bf16_products.h.
#include "tensor/bf16_products.h"

#include <atomic>

#include "base/check.h"
#include "base/environment.h"

namespace lockstep {
namespace {

std::atomic<int> chosen{-1};  // -1: not chosen yet

void check_has(Bf16Products products) {
  LOCKSTEP_CHECK(has_bf16_products(products), "[bf16_products] this processor has no ", name_of(products),
                 ": use portable (LOCKSTEP_BF16_PRODUCTS=portable)");
}

}  // namespace

bool has_bf16_products(Bf16Products products) {
#if defined(__x86_64__)
  static const bool native = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vl") &&
                             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
  return products == Bf16Products::portable || native;
#else
  return products == Bf16Products::portable;
#endif
}

std::string_view name_of(Bf16Products products) {
  return products == Bf16Products::portable ? "portable" : "avx512_bf16";
}

void set_bf16_products(Bf16Products products) {
  check_has(products);
  chosen.store(int(products), std::memory_order_relaxed);
}

Bf16Products bf16_products() {
  int found = chosen.load(std::memory_order_relaxed);
  if (found < 0) {
    const std::string asked = environment("LOCKSTEP_BF16_PRODUCTS").value_or("auto");
    const bool native = asked == "auto" ? has_bf16_products(Bf16Products::avx512_bf16) : asked == "avx512_bf16";
    found = int(native ? Bf16Products::avx512_bf16 : Bf16Products::portable);
    set_bf16_products(Bf16Products(found));
  }
  return Bf16Products(found);
}

}  // namespace lockstep
