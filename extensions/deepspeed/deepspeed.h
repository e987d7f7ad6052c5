#pragma once
// DeepSpeed's reports and 1-bit optimizers (README.md).
#include "extensions/deepspeed/onebit/compressed.h"
#include "extensions/deepspeed/onebit/onebit.h"
#include "extensions/deepspeed/other_keys.h"
#include "extensions/deepspeed/reports.h"
