// Ranks in threads and in child processes for tests of the control plane. See job.h.
#include "tests/dist/job.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <sstream>
#include <thread>

#include "dist/net.h"
#include "dist/wire.h"

using namespace lockstep;
using namespace lockstep::dist;

TestJob::TestJob(int world, double heartbeat, double timeout) {
  base.world_size = base.local_world_size = world;
  base.heartbeat = Seconds(heartbeat);
  base.timeout = Seconds(timeout);
  base.job = "test job";
  base.token = "a secret";
  base.port = 0;
  listener = open_listener(base.address, base.port);
}

TestJob::~TestJob() {
  if (listener >= 0) ::close(listener);
}

Rendezvous TestJob::place(int rank) {
  Rendezvous place = base;
  place.rank = place.local_rank = rank;
  if (rank == 0) place.listener = std::exchange(listener, -1);
  return place;
}

std::vector<int> TestJob::without(int rank) const {
  std::vector<int> ranks;
  for (int other = 0; other < base.world_size; ++other)
    if (other != rank) ranks.push_back(other);
  return ranks;
}

std::map<int, std::string> TestJob::run(const std::vector<int>& ranks, const std::function<void(Control&)>& body) {
  std::mutex mutex;
  std::map<int, std::string> said;
  std::vector<std::thread> threads;
  for (const int rank : ranks) {
    threads.emplace_back([&, rank, place = place(rank)] {
      std::string text;
      try {
        const auto control = Control::join(place);
        body(*control);
      } catch (const std::exception& error) { text = error.what(); }
      const std::lock_guard lock(mutex);
      said[rank] = text;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return said;
}

void check_calm(const std::map<int, std::string>& said) {
  for (const auto& [rank, text] : said) {
    INFO("rank ", rank);
    CHECK(text == "");
  }
}

void until_failed(Control& control) {
  for (const double end = now_seconds() + 20; now_seconds() < end;
       std::this_thread::sleep_for(std::chrono::milliseconds(1)))
    if (control.failed()) control.raise();
  throw Error("no failure within 20 s");
}

size_t open_files() { return size_t(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {})); }

double now_seconds() { return Seconds(Clock::now().time_since_epoch()).count(); }

double slack() {
  double load = 0;
  getloadavg(&load, 1);
  const double busy = load / std::max(1u, std::thread::hardware_concurrency());
  return (sanitized ? 10 : 3) * std::max(1.0, 2 * busy);
}

Child::Child(const std::string& script, const Rendezvous& place, int descriptors) {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  std::map<std::string, std::string> extra{{"LOCKSTEP_TEST_CHILD", script},
                                           {"LOCKSTEP_TEST_DESCRIPTORS", std::to_string(descriptors)},
                                           {"RANK", std::to_string(place.rank)},
                                           {"WORLD_SIZE", std::to_string(place.world_size)},
                                           {"LOCAL_RANK", std::to_string(place.rank)},
                                           {"LOCAL_WORLD_SIZE", std::to_string(place.world_size)},
                                           {"MASTER_ADDR", place.address},
                                           {"MASTER_PORT", std::to_string(place.port)},
                                           {"LOCKSTEP_TOKEN", place.token},
                                           {"LOCKSTEP_JOB", place.job},
                                           {"LOCKSTEP_TIMEOUT", str(place.timeout.count())},
                                           {"LOCKSTEP_HEARTBEAT", str(place.heartbeat.count())},
                                           {"LOCKSTEP_TEST_LISTENER", place.listener >= 0 ? "9" : "-1"}};
  std::vector<std::string> texts;
  for (char** entry = environ; *entry; ++entry)
    if (!extra.contains(std::string(*entry).substr(0, std::string(*entry).find('=')))) texts.emplace_back(*entry);
  for (const auto& [name, value] : extra) texts.push_back(name + "=" + value);
  std::vector<char*> environment;
  for (std::string& text : texts) environment.push_back(text.data());
  environment.push_back(nullptr);
  std::string program = "/proc/self/exe", which = "--test-case=child of a test", skipped = "--no-skip",
              quiet = "--minimal";
  char* arguments[] = {program.data(), which.data(), skipped.data(), quiet.data(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
  if (place.listener >= 0) posix_spawn_file_actions_adddup2(&actions, place.listener, 9);
  const int code = ::posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments, environment.data());
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  if (place.listener >= 0) ::close(place.listener);
  pipe_ = ends[0];
  REQUIRE(code == 0);
}

Child::~Child() {
  if (!reaped_) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  ::close(pipe_);
}

void Child::signal(int number) const { ::kill(pid_, number); }

int Child::wait() {
  for (const double end = now_seconds() + 30; now_seconds() < end;) {
    pollfd entry{pipe_, POLLIN, 0};
    if (::poll(&entry, 1, 100) <= 0) continue;
    char buffer[4096];
    const ssize_t got = ::read(pipe_, buffer, sizeof buffer);
    if (got > 0) {
      output_.append(buffer, size_t(got));
      continue;
    }
    int status = 0;  // the output ends when the process does
    ::waitpid(pid_, &status, 0);
    reaped_ = true;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }
  return -1;
}

namespace {

void say(const std::string& word) { (void)!::write(1, (word + "\n").data(), word.size() + 1); }

Activity activity_at(uint64_t completed) {
  return {.completed = completed, .group = "world", .collective = "all_reduce f32 x 8, tag w1"};
}

}  // namespace

// The child process: executes the words of its script one by one, then ends with _exit() unless the script says
// otherwise.
TEST_CASE("child of a test" * doctest::skip()) {
  const char* script = std::getenv("LOCKSTEP_TEST_CHILD");
  if (!script) return;
  const int descriptors = std::atoi(std::getenv("LOCKSTEP_TEST_DESCRIPTORS"));
  const rlimit limit{rlim_t(descriptors), rlim_t(descriptors)};
  if (descriptors > 0) ::setrlimit(RLIMIT_NOFILE, &limit);
  if (std::string(script) == "no_threads") {  // leaves no memory for another thread's stack
    int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t bytes = rlim_t(pages * ::sysconf(_SC_PAGESIZE) + (4 << 20));
    const rlimit memory{bytes, bytes};
    ::setrlimit(RLIMIT_AS, &memory);
  }
  int code = 0;
  try {
    Rendezvous place = Rendezvous::from_environment();
    place.listener = std::atoi(std::getenv("LOCKSTEP_TEST_LISTENER"));
    const std::shared_ptr<Control> control = Control::join(place);
    say("joined");
    std::istringstream words{std::string(script)};
    for (std::string word; words >> word;) {
      if (word == "step3") control->set_step(3);
      else if (word == "in9") control->begin(activity_at(8)), control->waits(0, 0, false);
      else if (word == "after8") control->begin(activity_at(7)), control->end();
      else if (word == "meet") control->barrier("meet", {0, 1, 2}, Seconds(20));
      else if (word == "report") control->report(Fault::rank_failed, place.rank, "forward: no such layer");
      else if (word == "kill") ::raise(SIGKILL);
      else if (word == "exit") std::exit(0);
      else if (word == "until_failed") until_failed(*control);
      else say(word);
    }
  } catch (const DistError& error) {
    say(str("fault ", name_of(error.fault), " ", error.rank, ": ", error.what()));
    code = 3;
  } catch (const std::exception& error) {
    say(str("error ", error.what()));
    code = 4;
  }
  ::_exit(code);
}
