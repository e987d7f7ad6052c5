#pragma once
// NumPy's files, CSV, WAV, and streams of many files: #include <lockstep/files.h>.
#include "extensions/files/csv.h"
#include "extensions/files/npy.h"
#include "extensions/files/stream.h"
#include "extensions/files/wav.h"
