// libFuzzer: any files in a run's folder give a report, or are rejected with an Error.
#include <cstdlib>

#include "base/check.h"
#include "extensions/forecast/page.h"
#include "tests/fuzz/folder.h"
#include "tests/fuzz/limits.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;
  static const fuzz::Folder run;
  const fuzz::Limits limits(size);
  try {
    run.write({reinterpret_cast<const char*>(data), size},
              {"metrics.jsonl", "config.json", "rank-0.json", "rank-1.json", "run.json", "trainer_state.json"});
    const report::RunFiles files = report::read_run(run.path());
    if (report::make_page(files, report::analyze(files)).empty()) std::abort();
  } catch (const Error&) {}
  return 0;
}
