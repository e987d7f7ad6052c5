#pragma once
// Models over several devices, host memory and disk: #include <lockstep/device_map.h>.
#include "extensions/device_map/dispatch.h"
#include "extensions/device_map/plan.h"
