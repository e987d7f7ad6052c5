#include "autograd/picking.h"

#define Value Variable
#define Indexed VariableIndices
#include "tensor/picking.inc"
#undef Value
#undef Indexed
