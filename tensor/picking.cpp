#include "tensor/picking.h"

#define Value Tensor
#define Indexed ValuesIndices
#include "tensor/picking.inc"
#undef Value
#undef Indexed
