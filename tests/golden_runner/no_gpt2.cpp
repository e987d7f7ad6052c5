// Takes the place of gpt2.cpp outside of the tree, where the headers of GPT-2's folders are not installed.
#include "base/check.h"
#include "tests/golden_runner/golden.h"

void golden::run_gpt2(const Case&, Report&) { lockstep::fail("cases of GPT-2's folders run in the tree only"); }
