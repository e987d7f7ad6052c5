#pragma once
// Draws and checks the schedules of collectives, pipelines and ring attention, and gives the textbook costs of
// collectives.
#include "extensions/schedules/costs.h"
#include "extensions/schedules/draw.h"
#include "extensions/schedules/place_map.h"
#include "extensions/schedules/schedule_check.h"
