#pragma once
// Serving without HTTP: #include <lockstep/serving.h>. The server is part of the program gpt-serve.
#include "extensions/serving/service.h"
#include "extensions/serving/simulate.h"
