#pragma once
// Linear algebra: #include <lockstep/linear_algebra.h>.
#include "extensions/linear_algebra/init.h"
#include "extensions/linear_algebra/linalg.h"
