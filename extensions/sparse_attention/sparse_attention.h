#pragma once
// Block-sparse attention: #include <lockstep/sparse_attention.h>.
#include "extensions/sparse_attention/layouts.h"
#include "extensions/sparse_attention/section.h"
