#include "autograd/composed.h"

#include <cmath>

#include "autograd/recorded.h"

#define Value Variable
#define Indexed VariableIndices
#include "tensor/composed.inc"
#undef Value
#undef Indexed
