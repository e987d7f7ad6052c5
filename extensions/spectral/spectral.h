#pragma once
// Fourier transforms: #include <lockstep/spectral.h>.
#include "extensions/spectral/fft.h"
