// libFuzzer: any text as the trace of a rank is rejected with an Error, or gives a report and a merged file.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

#include "base/check.h"
#include "extensions/forecast/page.h"
#include "tests/fuzz/limits.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::Limits limits(size);
  using namespace lockstep::report;
  const int file = memfd_create("trace", 0);
  if (file < 0) std::abort();
  // Half of the inputs get a valid beginning, so that the fuzzer reaches the rest.
  const std::string head =
      "[\n{\"name\":\"trace\",\"ph\":\"M\",\"args\":{\"rank\":0,\"ranks\":1,\"run\":1,\"offset_ns\":0,\"error_ns\":0}},"
      "\n";
  const std::string text =
      (size > 0 && data[0] % 2 ? head : "") + std::string(reinterpret_cast<const char*>(data), size);
  if (write(file, text.data(), text.size()) != ssize_t(text.size())) std::abort();
  try {
    RunFiles run{.folder = "fuzz", .settings = {}, .metrics = {}, .traces = {}, .warnings = {}};
    run.traces.push_back(read_trace("/proc/self/fd/" + std::to_string(file)));
    if (make_page(run, analyze(run)).empty()) std::abort();
  } catch (const lockstep::Error&) {}
  close(file);
  return 0;
}
