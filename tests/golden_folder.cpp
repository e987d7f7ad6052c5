// The path of tests/golden. See golden_folder.h.
#include "tests/golden_folder.h"

const char* const golden_folder = LOCKSTEP_GOLDEN;
