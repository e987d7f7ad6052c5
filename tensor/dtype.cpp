// Names of element types.
#include "tensor/dtype.h"

#include <ostream>

namespace lockstep {
namespace {

struct DTypeName {
  std::string_view name;
  DType dtype;
};
constexpr DTypeName dtype_names[] = {{"f32", f32},       {"f64", f64},       {"f16", f16},         {"bf16", bf16},
                                     {"i64", i64},       {"i32", i32},       {"i8", i8},           {"u8", u8},
                                     {"bool", boolean},  {"float32", f32},   {"float64", f64},     {"float16", f16},
                                     {"bfloat16", bf16}, {"int64", i64},     {"int32", i32},       {"int8", i8},
                                     {"uint8", u8},      {"float", f32},     {"double", f64},      {"half", f16},
                                     {"long", i64},      {"int", i32},       {"boolean", boolean}, {"c64", c64},
                                     {"c128", c128},     {"complex64", c64}, {"complex128", c128}};

}  // namespace

DType parse_dtype(std::string_view name) {
  for (const auto& entry : dtype_names) {
    if (entry.name == name) return entry.dtype;
  }
  fail(str(
      "[dtype] expected one of f32, f64, f16, bf16, i64, i32, i8, u8, bool, c64, c128 (or float32, float64, float16, "
      "bfloat16, int64, int32, int8, uint8, complex64, complex128), got \"",
      name, "\""));
}

std::ostream& operator<<(std::ostream& out, DType dtype) { return out << name_of(dtype); }

void fail_dtype(const char* op, DType got, const DType* expected, int count) {
  std::string list;
  for (int i = 0; i < count; ++i) list += str(i == 0 ? "" : i + 1 == count ? " or " : ", ", expected[i]);
  fail(str("[", op, "] expected dtype ", list, ", got ", got, "; convert it with .to(dtype)"));
}

}  // namespace lockstep
