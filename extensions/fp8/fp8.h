#pragma once
// Training in 8-bit floats. See README.md.
#include "extensions/fp8/float8.h"
#include "extensions/fp8/linear.h"
#include "extensions/fp8/matrix.h"
#include "extensions/fp8/scaling.h"
#include "extensions/fp8/section.h"
