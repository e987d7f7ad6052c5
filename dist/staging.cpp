// staging.cpp: copies a call's tensors between device and host. See staging.h.
#include "dist/staging.h"

#include "tensor/ops.h"

namespace lockstep::dist {

Staging::Staging(Call& call) {
  const auto on_host = [&](Tensor& t, bool receives) {
    if (!t.defined() || t.device().is_cpu()) return;
    // Do not copy the old contents of a tensor that a message will fill: that would wait for the device.
    const bool fills = receives && (call.collective == Collective::receive || call.collective == Collective::batch);
    const Tensor here = fills ? empty(t.shape(), {.dtype = t.dtype(), .device = cpu}) : t.to(cpu);
    if (receives) results_.emplace_back(t, here);
    t = here;
  };
  const bool in_place = call.output.defined() && call.input.defined() &&
                        call.output.raw_data() == call.input.raw_data() && call.output.numel() == call.input.numel();
  on_host(call.output, call.collective != Collective::send);
  if (in_place) call.input = call.output;
  else on_host(call.input, false);
  for (PointToPoint& p : call.batch) on_host(p.tensor, !p.is_send);
}

void Staging::finish() const {
  for (const auto& [there, here] : results_) there.copy_(here);
}

}  // namespace lockstep::dist
