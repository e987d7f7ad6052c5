#pragma once
// Includes all of the extension generation: sampling and beam search, streams of text, scores of texts.
#include "extensions/generation/generate.h"
#include "extensions/generation/generation_config.h"
#include "extensions/generation/json_lines.h"
#include "extensions/generation/padded.h"
#include "extensions/generation/prompt.h"
#include "extensions/generation/sampling.h"
#include "extensions/generation/scoring.h"
#include "extensions/generation/text_stream.h"
#include "extensions/generation/text_table.h"
