#pragma once
// What a group runs its calls with. It lives until what is on its way has come, which may be longer than the group.
// The device's groups add to it (nccl/engine.h).
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "dist/in_place.h"
#include "dist/job.h"
#include "dist/messages.h"
#include "dist/process_group.h"
#include "dist/program.h"
#include "dist/transport.h"
#include "dist/turns.h"

namespace lockstep::dist {

// A schedule as one rank runs it.
struct Prepared {
  std::optional<Program> program;
  int64_t chunks = 1;
  Share in_place;              // for tensors in shared memory
  bool writes_others = false;  // uses chunks of others as working memory, so out of place it needs a copy
};

struct NativeEngine : Membership {
  NativeEngine(std::shared_ptr<Job> job, Membership member, std::shared_ptr<Traffic> traffic);
  virtual ~NativeEngine() { turns.drain(); }

  /// Nothing is on its way.
  virtual bool idle() const { return turns.idle(); }
  /// Does a call whose turn it is (turns.h).
  virtual void move(Call& call, uint64_t sequence);
  Algorithm choose(const Call& call) const;
  void collective(Call& call, uint64_t sequence);
  /// Returns when all ranks have come to this call, and throws when they call something else.
  void agree(Call& call, uint64_t sequence);
  /// Exchanges messages whose data are on the host, or just headers.
  void exchange(const Call& call, std::vector<Message>& batch);

  const std::shared_ptr<Job> job;
  std::unique_ptr<Transport> transport;  // null when alone
  const std::shared_ptr<Traffic> traffic;
  Turns turns;

 private:
  const Prepared& plan(const Call& call);
  void alone(const Call& call);
  void learn_count(Call& call, uint64_t sequence);
  void barrier(const Call& call, uint64_t sequence);
  void disseminate(const Mail& mail, const Call& call, uint64_t sequence);
  Mail mail(const Call& call);
  void book(const Moved& moved);

  std::map<std::tuple<Collective, Algorithm, int, bool>, Prepared> plans_;
};

}  // namespace lockstep::dist
