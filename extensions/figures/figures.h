#pragma once
// Includes all of the extension figures: numbers with units, and pictures.
#include "extensions/figures/quantity.h"
#include "extensions/figures/svg.h"
