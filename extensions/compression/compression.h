#pragma once
// Communication hooks that send fewer bytes: #include <lockstep/compression.h>.
#include "extensions/compression/comm_hooks.h"
