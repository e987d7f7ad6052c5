// --trace: starts and stops the trace of a training run. See tracing.h.
#include "train/tracing.h"

#include <cerrno>
#include <utility>

#include "base/environment.h"
#include "data/json.h"
#include "dist/clock.h"
#include "trace/trace.h"

namespace lockstep::train {

Tracing::Tracing(const ParallelOptions& o, const Team& team) : team_(team) {
  if (o.trace.empty()) return;
  const auto mib = environment("LOCKSTEP_TRACE_MIB");
  const int64_t limit = (mib ? std::stoll(*mib) : 1024) << 20;
  if (team.size() > 1) dist::start_trace(o.trace, *team.group(), limit);
  else trace::start(o.trace, {.limit_bytes = limit});
  open_ = true;
  const data::Json::Object facts{{"program", program_invocation_short_name},
                                 {"command", o.identity},
                                 {"ranks_in_process", o.ranks > 0 ? team.size() : 1}};
  trace::note("run", data::Json(facts).dump());
}

Tracing::~Tracing() {
  if (open_) trace::stop();
}

void Tracing::finish() {
  if (!std::exchange(open_, false)) return;
  if (team_.size() > 1) dist::stop_trace(*team_.group());
  else trace::stop();
}

}  // namespace lockstep::train
