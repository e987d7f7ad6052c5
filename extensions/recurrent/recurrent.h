#pragma once
// Recurrent layers and the loss of CTC: #include <lockstep/recurrent.h>.
#include "extensions/recurrent/ctc.h"
#include "extensions/recurrent/layers.h"
