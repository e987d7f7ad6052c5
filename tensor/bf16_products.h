#pragma once
// Instructions that compute bf16 matrix products on the CPU. The choice affects the bits of results, so ranks compare
// it, and runs log it.
#include <string_view>

namespace lockstep {

/// The two implementations.
enum class Bf16Products {
  portable,     ///< f32 arithmetic, on any processor
  avx512_bf16,  ///< products of pairs of bf16 by AVX512-BF16
};

/// Returns the implementation in use. Default: the one that the environment variable LOCKSTEP_BF16_PRODUCTS names, or
/// else the best that the processor has. Error when the variable names instructions that the processor lacks.
Bf16Products bf16_products();
/// Sets the implementation to use. Error when the processor lacks the instructions.
void set_bf16_products(Bf16Products products);
/// True if the processor has the instructions.
bool has_bf16_products(Bf16Products products);
/// "portable" or "avx512_bf16".
std::string_view name_of(Bf16Products products);

}  // namespace lockstep
