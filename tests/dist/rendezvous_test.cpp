// How ranks find their job, and why a rank is rejected.
// A number in a test's name is a row of docs/faults.md.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <list>
#include <numeric>
#include <thread>

#include "base/suggest.h"
#include "dist/control.h"
#include "dist/net.h"
#include "dist/wire.h"
#include "tests/dist/at_once.h"
#include "tests/dist/job.h"
#include "tests/dist/proxy.h"
#include "tests/environment.h"
#include "tests/messages.h"
#include "tests/temp_dir.h"

using namespace lockstep;
using namespace lockstep::dist;
using testing::TempDir;

namespace {

using Variables = std::vector<std::pair<std::string, std::string>>;

// Sets the environment of a rank during a test; unsets all other variables that Lockstep reads, and LOCKSTEP_TIMEUOT,
// which a test misspells on purpose.
class Environment {
 public:
  explicit Environment(const Variables& variables) {
    for (const std::string& name :
         split("RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT LOCKSTEP_TOKEN LOCKSTEP_JOB "
               "LOCKSTEP_TIMEOUT LOCKSTEP_TIMEUOT LOCKSTEP_HEARTBEAT LOCKSTEP_INTERFACE LOCKSTEP_TRANSPORT "
               "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE "
               "SLURM_PROCID SLURM_NTASKS SLURM_LOCALID SLURM_TASKS_PER_NODE SLURM_STEP_TASKS_PER_NODE SLURM_NODEID "
               "SLURM_NNODES SLURM_STEP_NODELIST SLURM_JOB_NODELIST",
               ' ')) {
      former_.emplace_back(name, std::nullopt);
    }
    for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  }

 private:
  std::list<testing::EnvironmentVariable> former_;  // restores all of them
};

Variables operator+(Variables a, const Variables& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::string join_says(const Rendezvous& place) {
  return message([&] { Control::join(place); });
}

// A foreign server: sends `text` to every client, then stays silent.
class OtherServer {
 public:
  explicit OtherServer(std::string text) : fd_(open_listener("127.0.0.1", port)) {
    thread_ = std::thread([this, text = std::move(text)] {
      std::vector<Fd> kept;
      while (!stop_) {
        Fd fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!fd) {
          std::this_thread::sleep_for(std::chrono::milliseconds(2));
          continue;
        }
        (void)!::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL);
        kept.push_back(std::move(fd));
      }
    });
  }
  ~OtherServer() {
    stop_ = true;
    thread_.join();
  }
  int port = 0;

 private:
  Fd fd_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace

TEST_CASE("rendezvous: from the environment of torchrun, Open MPI and SLURM") {
  const Variables torchrun{{"RANK", "5"}, {"WORLD_SIZE", "8"}, {"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "1234"}};
  const Variables ompi{{"OMPI_COMM_WORLD_RANK", "3"},
                       {"OMPI_COMM_WORLD_SIZE", "4"},
                       {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
                       {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};
  const Variables slurm{{"SLURM_PROCID", "6"}, {"SLURM_NTASKS", "8"}, {"SLURM_LOCALID", "2"}};
  struct Row {
    Variables variables;
    int rank, world, local_rank, local_world;
    std::string address;
    int port;
  };
  const Row rows[] = {
      {torchrun, 5, 8, 0, 1, "10.0.0.1", 1234},
      {torchrun + Variables{{"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "4"}}, 5, 8, 1, 4, "10.0.0.1", 1234},
      {torchrun + Variables{{"WORLD_SIZE", "6"}, {"MASTER_ADDR", "localhost"}}, 5, 6, 5, 6, "localhost", 1234},
      {{{"RANK", "0"}, {"WORLD_SIZE", "1"}}, 0, 1, 0, 1, "127.0.0.1", 29500},
      {ompi, 3, 4, 3, 4, "127.0.0.1", 29500},
      {ompi + Variables{{"MASTER_ADDR", "n1"}, {"MASTER_PORT", "77"}}, 3, 4, 3, 4, "n1", 77},
      {ompi + torchrun, 5, 8, 0, 1, "10.0.0.1", 1234},  // RANK and WORLD_SIZE take precedence over Open MPI's variables
      {slurm + Variables{{"SLURM_NNODES", "1"}}, 6, 8, 2, 8, "127.0.0.1", 29500},
      {slurm + Variables{{"SLURM_NNODES", "2"}, {"SLURM_JOB_NODELIST", "gpu[07-08,11]"}}, 6, 8, 2, 3, "gpu07", 29500},
      {slurm + Variables{{"SLURM_NNODES", "2"}, {"SLURM_JOB_NODELIST", "x,y"}, {"SLURM_STEP_NODELIST", "a1,b[2-3]"}}, 6,
       8, 2, 3, "a1", 29500},
      {slurm + Variables{{"SLURM_NNODES", "2"},
                         {"SLURM_JOB_NODELIST", "r[1,3]-n.local"},
                         {"SLURM_TASKS_PER_NODE", "5,4(x2),7"},
                         {"SLURM_NODEID", "2"}},
       6, 8, 2, 4, "r1-n.local", 29500},
  };
  for (const Row& row : rows) {
    const Environment environment(row.variables);
    const Rendezvous place = Rendezvous::from_environment();
    INFO(row.address);
    CHECK(place.rank == row.rank);
    CHECK(place.world_size == row.world);
    CHECK(place.local_rank == row.local_rank);
    CHECK(place.local_world_size == row.local_world);
    CHECK(place.address == row.address);
    CHECK(place.port == row.port);
  }
  const Environment environment(torchrun + Variables{{"LOCKSTEP_TOKEN", "t"},
                                                     {"LOCKSTEP_JOB", "j"},
                                                     {"LOCKSTEP_TIMEOUT", "7.5"},
                                                     {"LOCKSTEP_HEARTBEAT", "0.2"},
                                                     {"LOCKSTEP_INTERFACE", "lo"},
                                                     {"LOCKSTEP_TRANSPORT", "tcp"}});
  const Rendezvous place = Rendezvous::from_environment();
  CHECK(place.token == "t");
  CHECK(place.job == "j");
  CHECK(place.timeout == Seconds(7.5));
  CHECK(place.heartbeat == Seconds(0.2));
  CHECK(place.interface == "lo");
  CHECK(place.transport == "tcp");
}

TEST_CASE("rendezvous: Errors name the wrong environment variable") {
  const Variables good{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "1234"}};
  const std::pair<Variables, std::string> rows[] = {
      {{}, "unset: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT. Start with `lockstep run -n N -- program`, or set them"},
      {{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}},
       "unset: MASTER_PORT. Start with `lockstep run -n N -- program`, or set it"},
      {{{"WORLD_SIZE", "1"}}, "unset: RANK"},
      {{{"RANK", ""}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}}, "unset: RANK."},
      {good + Variables{{"RANK", "2"}}, "[init] expected RANK to be an integer from 0 to 1, got '2'"},
      {good + Variables{{"RANK", "-1"}}, "[init] expected RANK to be an integer from 0 to 1, got '-1'"},
      {good + Variables{{"RANK", "1x"}}, "got '1x'"},
      {good + Variables{{"WORLD_SIZE", "0"}}, "[init] expected WORLD_SIZE to be an integer from 1 to 65536, got '0'"},
      {good + Variables{{"WORLD_SIZE", "99999999999999999999"}}, "[init] expected WORLD_SIZE to be an integer"},
      {good + Variables{{"LOCAL_RANK", "2"}}, "[init] expected LOCAL_RANK to be an integer from 0 to 1, got '2'"},
      {good + Variables{{"MASTER_PORT", "65536"}},
       "[init] expected MASTER_PORT to be an integer from 1 to 65535, got '65536'"},
      {good + Variables{{"LOCKSTEP_TIMEOUT", "0"}},
       "[environment] expected LOCKSTEP_TIMEOUT to be a number of seconds"},
      {good + Variables{{"LOCKSTEP_HEARTBEAT", "nan"}},
       "[environment] expected LOCKSTEP_HEARTBEAT to be a number of seconds"},
      {good + Variables{{"LOCKSTEP_TRANSPORT", "rdma"}},
       "[environment] expected LOCKSTEP_TRANSPORT to be auto, threads, shm or tcp, got 'rdma'"},
      {good + Variables{{"LOCKSTEP_TIMEUOT", "9"}},
       "[environment] there is no variable LOCKSTEP_TIMEUOT; did you mean LOCKSTEP_TIMEOUT? (unset it"},
      {{{"OMPI_COMM_WORLD_RANK", "1"},
        {"OMPI_COMM_WORLD_SIZE", "4"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}},
       "unset: MASTER_ADDR."},
  };
  for (const auto& [variables, expected] : rows) {
    const Environment environment(variables);
    CHECK_ERROR(Rendezvous::from_environment(), expected);
  }
}

TEST_CASE("rendezvous: from a URL") {
  const Environment environment(Variables{{"LOCKSTEP_TOKEN", "t"}});
  Rendezvous place = Rendezvous::from_url("tcp://[fd00::1]:1234?rank=1&world_size=3");
  CHECK(place.address == "fd00::1");
  CHECK(place.port == 1234);
  CHECK(place.rank == 1);
  CHECK(place.world_size == 3);
  CHECK(place.token == "t");
  CHECK(place.local_world_size == 1);
  place = Rendezvous::from_url("tcp://localhost:9?rank=1&world_size=3");
  CHECK(place.local_rank == 1);
  place = Rendezvous::from_url("file:///tmp/a/b?rank=0&world_size=4&local_rank=0&local_world_size=2");
  CHECK(place.file == "/tmp/a/b");
  CHECK(place.local_world_size == 2);
  {
    const Environment ranks(Variables{{"RANK", "1"}, {"WORLD_SIZE", "2"}});
    CHECK(Rendezvous::from_url("tcp://h:5").rank == 1);
    CHECK(Rendezvous::from_url("tcp://h:5?rank=0").rank == 0);
  }
  const std::pair<std::string, std::string> rows[] = {
      {"", "[init] expected env://, tcp://HOST:PORT?rank=R&world_size=N or file:///PATH?rank=R&world_size=N, got ''"},
      {"udp://a:1", "got 'udp://a:1'"},
      {"tcp://a:1",
       "unset: RANK, WORLD_SIZE. Start with `lockstep run -n N -- program`, or set them, or add ?rank=R&world_size=N "
       "to the URL"},
      {"tcp://a?rank=0&world_size=1", "[init] expected tcp://HOST:PORT"},
      {"tcp://:1?rank=0&world_size=1", "[init] expected tcp://HOST:PORT"},
      {"tcp://::1:1?rank=0&world_size=1", "with brackets around an IPv6 address"},
      {"tcp://a:0?rank=0&world_size=1", "to be an integer from 1 to 65535, got '0'"},
      {"tcp://a:1?rank=3&world_size=3", "[init] expected rank to be an integer from 0 to 2, got '3'"},
      {"tcp://a:1?rank=0&rank=1&world_size=3", "[init] expected rank once"},
      {"tcp://a:1?rank=0&size=3", "got 'size=3'"},
      {"tcp://a:1?rank=0&world_size=2&token=x",
       "[init] expected no token in a URL, where others can see it: set LOCKSTEP_TOKEN"},
      {"file://relative?rank=0&world_size=1", "[init] expected file:/// and an absolute path"},
      {"env://somewhere?rank=0&world_size=1", "[init] expected nothing between env:// and '?', got 'somewhere'"},
  };
  for (const auto& [url, expected] : rows) {
    INFO(url);
    CHECK_ERROR(Rendezvous::from_url(url), expected);
  }
}

TEST_CASE("rendezvous: a place that makes no sense is refused at once") {
  const testing::TempDir dir;
  const std::string pipe = dir / "pipe";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  const std::pair<std::function<void(Rendezvous&)>, std::string> rows[] = {
      {[](Rendezvous& p) { p.rank = 2; }, "[rendezvous] expected a rank from 0 to 1 (world size 2), got 2"},
      {[](Rendezvous& p) { p.world_size = 0; }, "[rendezvous] expected a world size from 1 to 65536, got 0"},
      {[](Rendezvous& p) { p.timeout = Seconds(0); }, "[rendezvous] expected a timeout"},
      {[](Rendezvous& p) { p.heartbeat = Seconds(0); }, "[rendezvous] expected a heartbeat"},
      {[](Rendezvous& p) { p.port = 65536; }, "[rendezvous] expected a port from 0 to 65535, got 65536"},
      {[](Rendezvous& p) { p.rank = 1, p.port = 0; }, "[rendezvous] expected the port of rank 0, got 0 at rank 1"},
      {[](Rendezvous& p) { p.address = "no such host."; },
       "[rendezvous] expected the name or address of a host, got 'no such host.'"},
      {[](Rendezvous& p) { p.address = "0.0.0.0"; }, "[rendezvous] expected a token to listen at 0.0.0.0:"},
      {[](Rendezvous& p) { p.address = "::"; },
       "got none: anybody who can reach that address could join. `lockstep run` makes one; else set LOCKSTEP_TOKEN"},
      {[](Rendezvous& p) { p.rank = 1, p.port = 9, p.address = "198.51.100.1"; },
       "[rendezvous] expected a token to join at 198.51.100.1:9, got none"},
      {[](Rendezvous& p) { p.address = "198.51.100.1", p.token = "t"; },
       "[rendezvous] rank 0 expected MASTER_ADDR to be an address of its own machine, got 198.51.100.1"},
      {[](Rendezvous& p) { p.file = "/no/such/folder/file"; },
       "[rendezvous] rank 0 cannot write /no/such/folder/file: No such file or directory"},
      {[&](Rendezvous& p) { p.rank = 1, p.file = pipe; },
       " to be a file of this user that nobody else may read or write"},
  };
  for (const auto& [change, expected] : rows) {
    Rendezvous place{.world_size = 2, .port = 0, .timeout = Seconds(5)};
    change(place);
    CHECK_ERROR(Control::join(place), expected);
  }
}

TEST_CASE("rendezvous 22: a port in use is an error at once, also for the ranks that meet whoever uses it") {
  TestJob job(2, 1, 10);
  const double start = now_seconds();
  std::string second, stray;
  job.run({0, 1}, [&](Control& control) {
    if (control.place().rank == 0) return control.barrier("end", {0, 1}, Seconds(20));
    // a second job that was given the same port
    Rendezvous other{.world_size = 2, .port = control.place().port, .token = "another secret"};
    second = join_says(other);
    other.rank = 1;
    stray = join_says(other);
    control.barrier("end", {0, 1}, Seconds(20));
  });
  CHECK(contains(second, str("[rendezvous] port ", job.base.port,
                             " is used (by something else on this machine, at 127.0.0.1): choose another MASTER_PORT, "
                             "or start with `lockstep run`")));
  CHECK(contains(stray,
                 "wrong token: LOCKSTEP_TOKEN must be the same secret on all ranks of a job; perhaps another job "
                 "listens on this port"));
  CHECK(now_seconds() - start < slack());
}

TEST_CASE("rendezvous 23: a listener that is silent, or speaks something else") {
  const std::pair<std::string, double> rows[] = {{"", 5},
                                                 {"SSH-2.0-OpenSSH_9.2\r\n", 0},
                                                 {std::string(4096, '\0'), 0},
                                                 {"LSc1\xff\xff\xff\xff", 5},
                                                 {encode(FrameKind::reply, 0, "x"), 0}};
  at_once(rows, [](const auto& row) {
    const auto& [text, seconds] = row;
    OtherServer listener(text);
    // without the timeout a silent peer would have 20 s
    const Rendezvous place{.rank = 1, .world_size = 2, .port = listener.port, .timeout = Seconds(5.5)};
    const double start = now_seconds();
    CHECK_ERROR(Control::join(place),
                str("[rendezvous] peer at 127.0.0.1:", listener.port, " does not speak Lockstep's protocol ("));
    CHECK(now_seconds() - start > seconds - 0.5);
    CHECK(now_seconds() - start < seconds + slack());
  });
}

TEST_CASE("rendezvous 27: missing ranks are named to all that came") {
  TestJob job(4, 1, 0.5);
  const auto said = job.run({0, 2}, [](Control&) {});
  for (const auto& [rank, text] : said) {
    INFO(text);
    CHECK(contains(text, "; missing ranks: 1, 3 (of 0-3)"));
    CHECK(contains(text, "[rendezvous] waited 0."));
  }
  Rendezvous lone_rank{.rank = 1, .world_size = 2, .timeout = Seconds(0.3)};
  ::close(open_listener("127.0.0.1", lone_rank.port = 0));
  CHECK_ERROR(Control::join(lone_rank),
              str("[rendezvous] rank 1 waited 0.3 s for rank 0 at 127.0.0.1:", lone_rank.port,
                  ": Connection refused; start rank 0, and give all ranks the same MASTER_ADDR and MASTER_PORT"));
}

TEST_CASE("rendezvous 19: connections that are reset are tried again") {
  TestJob job(3, 1, 20);
  Proxy proxy("127.0.0.1", job.base.port, {.reset_first = 5});
  const auto meet = [](Control& control) { control.barrier("meet", {0, 1, 2}, Seconds(10)); };
  std::jthread others([&] {
    at_once(std::vector{1, 2}, [&](int rank) {
      Rendezvous place = job.place(rank);
      place.port = proxy.port();
      CHECK_ERROR_IS(meet(*Control::join(place)), "(no error)");
    });
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  proxy.cut();  // also resets ranks that already wait for rank 0
  check_calm(job.run({0}, meet));
  others.join();
  CHECK(proxy.connections() >= 7);
}

TEST_CASE("rendezvous 26, 28, 29: a foreign process is rejected, and the Error names both sides") {
  struct Row {
    std::function<void(Rendezvous&)> change;
    std::string expected;
    bool job_fails;
  };
  const Row rows[] = {
      {[](Rendezvous& p) { p.job = "other job"; }, "this is job 'test job', rank 1 (pid ", false},
      {[](Rendezvous& p) { p.job = "other job"; }, " is of job 'other job'", false},
      {[](Rendezvous& p) { p.token = "guess"; }, "wrong token", false},
      {[](Rendezvous& p) { p.token = ""; }, "wrong token", false},
      {[](Rendezvous& p) { p.world_size = 3; }, ") has world size 2, rank 1 (pid ", true},
      {[](Rendezvous& p) { p.world_size = 3; }, ") has world size 3: start all ranks with the same WORLD_SIZE", true},
      {[](Rendezvous& p) { p.identity = "build=2\nmodel=gpt\nlr=0.2\n"; },
       "ranks must run the same program with the same configuration; first difference: 'lr=0.1' at rank 0, 'lr=0.2' at "
       "rank 1 (pid ",
       true},
      {[](Rendezvous& p) { p.identity = "build=2\nmodel=gpt\n"; },
       "first difference: 'lr=0.1' at rank 0, '(nothing)' at rank 1", true},
  };
  for (const Row& row : rows) {
    TestJob job(2, 1, 20);
    job.base.identity = "build=2\nmodel=gpt\nlr=0.1\n";
    Rendezvous wrong = job.place(1), right = job.place(1);
    row.change(wrong);
    std::string refused, joined;
    std::thread other([&] {
      refused = join_says(wrong);
      if (!row.job_fails) joined = join_says(right);  // the job still accepts the right rank
    });
    const auto said = job.run({0}, [](Control&) {});
    other.join();
    INFO(refused, " / ", said.at(0));
    CHECK(contains(refused, "[rendezvous] refused by 127.0.0.1:"));
    CHECK(contains(refused, row.expected));
    if (row.job_fails) CHECK(contains(said.at(0), row.expected));
    else CHECK((said.at(0) == "" && joined == "(no error)"));
  }
  TestJob job(2, 1, 20);
  check_calm(job.run({0, 1}, [&](Control& control) {
    if (control.place().rank == 1) {
      Rendezvous again = control.place();  // a second rank 1
      again.listener = -1;
      const std::string twice = join_says(again);
      INFO(twice);
      CHECK(contains(twice, "rank 1 is taken by rank 1 (pid "));
      CHECK(contains(twice, " joined second: every process needs its own RANK"));
    }
    control.barrier("meet", {0, 1}, Seconds(10));
  }));
}

TEST_CASE("rendezvous 29: another version of the protocol is refused, by the store and by a rank") {
  OtherServer newer(encode(FrameKind::challenge, 0, Writer().u32(7).text("different from here on").body));
  const Rendezvous place{.rank = 1, .world_size = 2, .port = newer.port};
  CHECK_ERROR(Control::join(place), str("127.0.0.1:", newer.port, " speaks protocol 7, rank 1 speaks ", wire_protocol,
                                        ": all ranks need the same build"));
}

TEST_CASE("rendezvous: over a file, whatever lies there from earlier runs") {
  TempDir folder;
  const std::string path = folder / "rendezvous";
  const auto run = [&](int world) {
    std::vector<int> all(static_cast<size_t>(world));
    std::iota(all.begin(), all.end(), 0);
    at_once(all, [&](int rank) {
      Rendezvous place = Rendezvous::from_url(str("file://", path, "?rank=", rank, "&world_size=", world));
      place.timeout = Seconds(20);
      // The others see the old file first.
      if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(60));
      const auto control = Control::join(place);
      CHECK(control->place().token.size() == 64);
      control->barrier("meet", all, Seconds(10));
    });
    CHECK(!std::filesystem::exists(path));  // the file is removed
  };
  const auto leave_behind = [&](int port, const std::string& token) {
    std::ofstream(path) << str("lockstep rendezvous 1\nhost=127.0.0.1\nport=", port, "\ntoken=", token, "\nend\n");
    ::chmod(path.c_str(), 0600);
  };
  for (const int world : {1, 2, 4}) run(world);
  int dead = 0;
  ::close(open_listener("127.0.0.1", dead));
  leave_behind(dead, "old");
  run(3);
  OtherServer other("HTTP/1.1 400 Bad Request\r\n");
  leave_behind(other.port, "old");
  run(3);
  TestJob job(1);  // another job now listens on the old port
  job.run({0}, [&](Control& control) {
    leave_behind(control.place().port, "old");
    run(3);
  });

  const std::string url = "file://" + path + "?rank=1&world_size=2";
  Rendezvous place = Rendezvous::from_url(url);
  place.timeout = Seconds(0.2);
  CHECK_ERROR(Control::join(place),
              str("[rendezvous] rank 1 waited 0.2 s for rank 0 at ", path,
                  ": the file does not exist; start rank 0, and give all ranks the same path of the file"));
  leave_behind(1, "t");
  ::chmod(path.c_str(), 0644);
  CHECK_ERROR(Control::join(place), "to be a file of this user that nobody else may read or write");
  for (const std::string text : {"", "something else\n", "lockstep rendezvous 1\nhost=h\nport=0\ntoken=t\nend\n",
                                 "lockstep rendezvous 1\nhost=h\nport=1\ntoken=t"}) {
    std::ofstream(path) << text;
    ::chmod(path.c_str(), 0600);
    CHECK_ERROR(Control::join(place), "to be written by rank 0 of a job, got something else");
  }
  std::filesystem::remove(path);
}

TEST_CASE("rendezvous: IPv6, other addresses with a token, interfaces and subnets") {
  for (const std::string address : {"::1", "127.0.0.2", "localhost", "0.0.0.0"}) {
    int port = 0;
    int fd = -1;
    // This machine has no IPv6.
    if (contains(message([&] { fd = open_listener(address, port); }), "cannot make a socket")) continue;
    if (fd < 0) {
      MESSAGE(address, " is not available");
      continue;
    }
    at_once(std::vector{0, 1}, [&](int rank) {
      const auto control = Control::join({.rank = rank,
                                          .world_size = 2,
                                          .address = address == "0.0.0.0" && rank > 0 ? "127.0.0.1" : address,
                                          .port = port,
                                          .listener = rank == 0 ? fd : -1,
                                          .token = "needed for 0.0.0.0"});
      if (address != "localhost") CHECK(control->own_address() == (address == "::1" ? "::1" : "127.0.0.1"));
      control->barrier("meet", {0, 1}, Seconds(10));
    });
  }
  CHECK(address_on("lo") == "127.0.0.1");
  CHECK(address_on("127.0.0.0/8") == "127.0.0.1");
  CHECK_ERROR(
      address_on("no0"),
      "[rendezvous] expected a network interface or subnet of this machine, got 'no0'; this machine has lo 127.0.0.1");
  CHECK_ERROR(address_on("203.0.113.0/24"), "got '203.0.113.0/24'; this machine has");
  for (const std::string wrong : {"10.0.0.0/33", "10.0.0.0/", "fd00::/129", "nonsense/8", "10.0.0.0/-1"})
    CHECK_ERROR(address_on(wrong),
                "[rendezvous] expected an interface or a subnet such as eth0, 10.0.0.0/8 or fd00::/8, got '" + wrong);
  TestJob job(1);
  job.base.interface = "127.0.0.0/8";
  job.run({0}, [](Control& control) { CHECK(control.own_address() == "127.0.0.1"); });
}
