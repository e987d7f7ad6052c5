#include "tensor/classic_text.h"

#include <locale.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>

namespace lockstep {

ClassicLocale::ClassicLocale() {
  static const locale_t classic = newlocale(LC_ALL_MASK, "C", locale_t());
  before_ = uselocale(classic);
}
ClassicLocale::~ClassicLocale() { uselocale(static_cast<locale_t>(before_)); }

std::string format(const char* pattern, ...) {
  const ClassicLocale classic;
  va_list values, again;
  va_start(values, pattern);
  va_copy(again, values);
  char text[600];
  const int size = std::vsnprintf(text, sizeof text, pattern, values);
  std::string out(text, std::min(size_t(size), sizeof text - 1));
  if (size_t(size) >= sizeof text) {
    out.resize(size_t(size));
    std::vsnprintf(out.data(), out.size() + 1, pattern, again);
  }
  va_end(again);
  va_end(values);
  return out;
}

}  // namespace lockstep
