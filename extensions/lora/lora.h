#pragma once
// Includes all of the extension lora: low-rank adapters, and their folders.
#include "extensions/lora/adapter.h"
#include "extensions/lora/low_rank.h"
