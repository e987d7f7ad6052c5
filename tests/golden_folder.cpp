#include "tests/golden_folder.h"

const char* const golden_folder = LOCKSTEP_GOLDEN;
