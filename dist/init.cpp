// init.cpp: init() and shutdown(), and the group of all ranks (the world). Ranks that are threads of spawn() have one
// world each; otherwise the process has one.
#include <chrono>
#include <cstdlib>
#include <future>
#include <map>
#include <optional>
#include <thread>

#include "dist/job.h"
#include "dist/local_control.h"
#include "dist/native_group.h"
#include "tensor/maker.h"

namespace lockstep::dist {
namespace {

struct OfProcess {
  std::mutex mutex;
  std::optional<World> world;
};
// Never destroyed: threads may still use it while static objects are destroyed.
OfProcess& of_process() {
  static auto* all = new PerProcess<OfProcess>;
  return all->get();
}
thread_local World* thread_world = nullptr;

// Never destroyed. Written before init(), by add_backend().
std::map<std::string, AddedBackend>& backends() {
  static auto* all = new std::map<std::string, AddedBackend>;
  return *all;
}

void check_first() {
  LOCKSTEP_CHECK(
      !is_initialized(),
      "[init] expected one call, got a second one; leave init() out where spawn() or train::start() makes the "
      "ranks, else call shutdown() first");
}

/// Tells the other ranks why this process ends. The failed thread may hold locks, because an exception that nobody
/// catches does not unwind its stack; so another thread does it, and has 3 s.
void tell_others(const std::exception_ptr& error) {
  static std::promise<void> reported;
  try {
    std::thread([error] {
      try {
        if (World* const world = current_world()) world->job->fail(error);
        Control::leave_all();
      } catch (...) {}  // NOLINT: without a connection, the others notice its end
      reported.set_value();
    }).detach();
    reported.get_future().wait_for(std::chrono::seconds(3));
  } catch (...) {}  // NOLINT: no more threads
}

ProcessGroup& adopt(World made) {
  on_uncaught(tell_others);
  static const int registered = std::atexit([] { shutdown(); });
  LOCKSTEP_CHECK(registered == 0,
                 "[init] expected to be able to register the end of the job, got an error of atexit(); free memory");
  OfProcess& mine = of_process();
  const std::lock_guard lock(mine.mutex);
  return *mine.world.emplace(std::move(made)).group;
}

World& the_world() {
  World* world = current_world();
  LOCKSTEP_CHECK(world, "[dist] expected dist::init() (or spawn()) before the first use of the world");
  return *world;
}

}  // namespace

void check_backend(const char* op, const std::string& backend) {
  std::string known = "auto, native, nccl";
  if (std::string(op) == "init")
    for (const auto& [name, made] : backends()) known += ", " + name;
  LOCKSTEP_CHECK(backend == "auto" || backend == "native" || backend == "nccl", "[", op, "] expected backend ", known,
                 ", got \"", backend, "\"", std::string(op) == "init" ? "; add_backend() adds others" : "");
  LOCKSTEP_CHECK(backend != "nccl" || with_nccl, "[", op,
                 "] this build was made without NCCL, got backend nccl: configure it with -Dcuda=enabled and "
                 "-Dnccl=enabled, or use backend native");
}

std::shared_ptr<Control> make_control(const Rendezvous& rendezvous) {
  return rendezvous.world_size == 1 ? local_controls(1, rendezvous)[0] : Control::join(rendezvous);
}

void add_backend(const std::string& name, const AddedBackend& backend) { backends().insert_or_assign(name, backend); }

World make_world(std::shared_ptr<Control> control, const std::string& backend) {
  World world;
  world.job = std::make_shared<Job>(std::move(control));
  world.job->backend = backend;
  const Rendezvous& place = world.job->control->place();
  std::vector<int> ranks;
  for (int r = 0; r < place.world_size; ++r) ranks.push_back(r);
  const Membership everybody{"world", "world", place.rank, std::move(ranks)};
  if (with_nccl && backend != "native") world.group = make_nccl_group(world.job, everybody);
  else world.group = std::make_shared<NativeGroup>(world.job, everybody);
  return world;
}

void set_thread_world(World* world) { thread_world = world; }

World* current_world() {
  if (thread_world) return thread_world;
  OfProcess& mine = of_process();
  const std::lock_guard lock(mine.mutex);
  return mine.world ? &*mine.world : nullptr;
}

void guard(World& world, const std::function<void()>& body) {
  try {
    body();
  } catch (...) {
    world.job->fail(std::current_exception());
    throw;
  }
}

void guard(const std::function<void()>& body) { guard(the_world(), body); }

ProcessGroup& init(const std::string& url, const std::string& backend) {
  for (const auto& [name, made] : backends())
    if (backend == name || (backend == "auto" && url == "env://" && made.launched_us())) {
      check_first();
      return adopt(made.make(url));
    }
  return init(Rendezvous::from_url(url), backend);
}

ProcessGroup& init(const Rendezvous& rendezvous, const std::string& backend) {
  LOCKSTEP_CHECK(!backends().contains(backend), "[init] expected a URL with backend ", backend, ", got a rendezvous");
  check_backend("init", backend);
  LOCKSTEP_CHECK(rendezvous.world_size >= 1 && rendezvous.rank >= 0 && rendezvous.rank < rendezvous.world_size,
                 "[init] expected a world size of 1 or more, and a rank from 0 to world size - 1, got rank ",
                 rendezvous.rank, " of ", rendezvous.world_size);
  check_first();
  return adopt(make_world(make_control(rendezvous), backend));
}

bool is_initialized() { return current_world() != nullptr; }
ProcessGroup& world() { return *the_world().group; }

void set_step(uint64_t step) { the_world().job->control->set_step(step); }

void shutdown() {
  LOCKSTEP_CHECK(!thread_world,
                 "[shutdown] expected a rank that is a process; spawn() ends those that are threads; "
                 "leave the call out");
  World world;
  {
    OfProcess& mine = of_process();
    const std::lock_guard lock(mine.mutex);
    if (!mine.world) return;
    world = std::move(*mine.world);
    mine.world.reset();
  }
  world.group.reset();
  world.job->finish();
  if (world.after && !world.job->control->failed()) world.after();
}

}  // namespace lockstep::dist
