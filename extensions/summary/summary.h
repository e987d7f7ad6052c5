#pragma once
// TensorBoard's event files, and the state of a running job: #include <lockstep/summary.h> (README.md).
#include "extensions/summary/appender.h"
#include "extensions/summary/histogram.h"
#include "extensions/summary/section.h"
#include "extensions/summary/status.h"
#include "extensions/summary/top.h"
#include "extensions/summary/writer.h"
