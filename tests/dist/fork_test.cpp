// A forked child that exits, destroys its copies of objects, or fails must not affect its parent's job.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "dist/control.h"
#include "dist/process_group.h"
#include "tensor/ops.h"
#include "tests/dist/outcomes.h"
#include "tests/dist/reports.h"
#include "tests/fork.h"
#include "tests/messages.h"

using namespace lockstep;
using namespace lockstep::dist;

namespace {

using Group = std::shared_ptr<ProcessGroup>;

/// A child ends after the library's handlers, which are registered later, and before LeakSanitizer's check: memory that
/// only a thread of the parent refers to is no leak.
bool is_child = false;
[[maybe_unused]] const int child_ends = std::atexit([] {
  if (is_child) ::_exit(0);
});

/// The exit code of a child that runs fn and calls exit(), or 128 + its signal. Limit: 10 s.
int in_child(const std::function<void(Group&)>& fn, Group& group) {
  return testing::in_fork([&] {
    ::alarm(10);
    is_child = true;
    try {
      fn(group);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      ::_exit(3);
    }
    std::exit(0);
  });
}

void check_says(const std::function<void()>& fn, const std::string& expected) {
  const std::string said = message(fn);
  LOCKSTEP_CHECK(contains(said, expected), "expected ", expected, ", got ", said);
}

constexpr const char* of_parent = "one of a child that it forked";

const std::pair<const char*, std::function<void(Group&)>> children[] = {
    {"exits", [](Group&) {}},
    {"shuts down", [](Group&) { shutdown(); }},
    {"lets go of a group", [](Group& group) { group.reset(); }},
    {"asks for the world", [](Group&) { check_says([] { world(); }, "expected dist::init()"); }},
    {"uses a group", [](Group& group) { check_says([&] { group->barrier(Seconds(1)); }, of_parent); }},
    {"asks the store", [](Group& group) { check_says([&] { group->control().set("a", "b"); }, of_parent); }},
    {"fails", [](Group& group) { group->control().report(Fault::rank_failed, 0, "a child"); }},
    {"leaves", [](Group& group) { group->control().leave(); }},
    {"has a world of its own",
     [](Group&) {
       init(Rendezvous{});
       LOCKSTEP_CHECK(world().size() == 1, "a world of ", world().size());
     }},
};

}  // namespace

TEST_CASE("fork: a child that exits, lets go or fails leaves its parent's job alone") {
  for (const std::string transport : {"shm", "tcp"}) {
    CAPTURE(transport);
    const auto body = [](int) {
      Group group = world().new_group({0, 1}, "pair");
      const Tensor t = ones({100});
      world().all_reduce(t, {.async = true}).wait();  // creates channels and a worker thread
      for (const auto& [name, fn] : children) {
        const int code = in_child(fn, group);
        LOCKSTEP_CHECK(code == 0, "a child that ", name, " ended with ", code);
        group->all_reduce(t).wait();
        world().barrier(Seconds(10));
      }
    };
    testing::check_ranks(2, body, testing::over(transport, 20, 0.5));
  }
}
