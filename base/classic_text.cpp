// Formats numbers in the classic locale. See classic_text.h.
#include "base/classic_text.h"

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
  std::string out(size_t(std::max(0, std::vsnprintf(nullptr, 0, pattern, values))), 0);
  std::vsnprintf(out.data(), out.size() + 1, pattern, again);
  va_end(again);
  va_end(values);
  return out;
}

}  // namespace lockstep
