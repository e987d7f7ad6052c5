#pragma once
// Weights in 8 and 4 bits, and optimizers with 8-bit moments: #include <lockstep/quantization.h>.
#include "extensions/quantization/block_codes.h"
#include "extensions/quantization/codes.h"
#include "extensions/quantization/eight_bit.h"
#include "extensions/quantization/quantize.h"
