#pragma once
// Which instructions make the products of bf16 on the CPU. The bits of results depend on it, so ranks compare it, and
// runs write it down.
#include <string_view>

namespace lockstep {

enum class Bf16Products {
  portable,     ///< f32 arithmetic, on any processor
  avx512_bf16,  ///< pairs of bf16 by AVX512-BF16
};

/// The processor's, unless LOCKSTEP_BF16_PRODUCTS says otherwise. Error when it names what the processor lacks.
Bf16Products bf16_products();
/// From now on. Error when the processor lacks it.
void set_bf16_products(Bf16Products products);
bool has_bf16_products(Bf16Products products);
std::string_view name_of(Bf16Products products);

}  // namespace lockstep
