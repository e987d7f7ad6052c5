// The one place where errors are thrown: a good line for a breakpoint.
#include "tensor/check.h"

namespace lockstep {

void fail(const std::string& message) { throw Error(message); }

}  // namespace lockstep
