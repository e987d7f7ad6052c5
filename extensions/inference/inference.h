#pragma once
// Inference with the interface of DeepSpeed's init_inference(): #include <lockstep/inference.h>.
#include "extensions/inference/engine.h"
#include "extensions/inference/module_engine.h"
