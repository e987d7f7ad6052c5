// The launcher's parts that need no processes: hosts, cores, environment, output. commands.py tests the launcher as a
// whole.
#include <doctest/doctest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "extensions/launcher/launch.h"
#include "extensions/launcher/scratch.h"
#include "tests/environment.h"
#include "tests/messages.h"
#include "tests/temp_dir.h"

using namespace lockstep;
using namespace lockstep::dist;
using testing::EnvironmentVariable, testing::TempDir;

namespace {

std::vector<int> up_to(int n) {
  std::vector<int> all;
  for (int i = 0; i < n; ++i) all.push_back(i);
  return all;
}

std::string text_of(const std::vector<Host>& hosts) {
  std::string text;
  for (const Host& host : hosts) {
    text += host.name + ":";
    for (const int slot : host.slots) text += std::to_string(slot);
    text += " ";
  }
  return text;
}

std::string text_of(const Environment& environment) {
  std::string text;
  for (const auto& [name, value] : environment) text += name + "=" + value + " ";
  return text;
}

const std::vector<Host> abc = {{"a", up_to(4)}, {"b", up_to(4)}, {"c", up_to(2)}};

}  // namespace

TEST_CASE("a hostfile has one host a line") {
  CHECK(text_of(parse_hostfile("# all\n\n  a  slots=2 # two\r\nb\tslots=1\n   \nc slots=3", "f")) == "a:01 b:0 c:012 ");
  const std::pair<const char*, const char*> wrong[] = {
      {"", "f: expected at least one line 'host slots=N'"},
      {"# nothing\n\n", "f: expected at least one line"},
      {"a slots=1\nb\n", "f:2: expected 'host slots=N', got 'b'"},
      {"a slots=\n", "f:1: expected 'host slots=N'"},
      {"a slots=x\n", "f:1: expected 'host slots=N', got 'a slots=x'"},
      {"a slots=-1\n", "f:1: expected 'host slots=N'"},
      {"a slots=2 extra\n", "f:1: expected 'host slots=N'"},
      {"a slots=99999999999\n", "f:1: expected 'host slots=N'"},
      {"\na slots=0\n", "f:2: expected 1 to 4096 slots for host 'a', got 0"},
      {"a slots=4097\n", "f:1: expected 1 to 4096 slots"},
      {"a slots=1\nb slots=1\na slots=2\n", "f:3: host 'a' occurs already in line 1"},
      {"-oProxyCommand=touch slots=1\n", "f:1: expected a host's name of letters, digits"},
      {"a slots=1\n-v slots=1\n", "f:2: expected a host's name"},
      {"user@-v slots=1\n", "f:1: expected a host's name"},
      {"a;b slots=1\n", "f:1: expected a host's name of letters, digits, '.', '_', ':' and '-' (not first), got 'a;b'"},
  };
  for (const auto& [text, expected] : wrong) {
    CAPTURE(text);
    CHECK_ERROR(parse_hostfile(text, "f"), expected);
  }
  CHECK_ERROR(read_hostfile("/nonexistent/hosts"), "cannot read the hostfile '/nonexistent/hosts': No such file");
  CHECK_ERROR(read_hostfile(TempDir().write("empty", "")), "at least one line");
}

TEST_CASE("include and exclude choose hosts and slots") {
  const char* const rows[][3] = {
      {"", "", "a:0123 b:0123 c:01 "}, {"c@a", "", "a:0123 c:01 "},   {"a:2,0@c", "", "a:02 c:01 "},
      {"", "b", "a:0123 c:01 "},       {"", "b:0,3@a", "b:12 c:01 "}, {"", "c:0,1", "a:0123 b:0123 "},
  };
  for (const auto& [include, exclude, kept] : rows) CHECK(text_of(filter_hosts(abc, include, exclude)) == kept);
  const char* const wrong[][3] = {
      {"a", "b", "got both"},
      {"d", "", "--include names host 'd', which is not among: a, b, c"},
      {"", "d", "--exclude names host 'd'"},
      {"c:2", "", "--include names slot 2 of host 'c', which has slots 0 to 1"},
      {"c:x", "", "got slot 'x' of host 'c'"},
      {"c:", "", "got slot '' of host 'c'"},
      {"c:-1", "", "got slot '-1'"},
      {"c:1,1", "", "slot 1 of host 'c' twice"},
      {"a@@b", "", "expected --include to be NAME"},
      {"a@a", "", "host 'a' twice"},
      {"", "a@b@c", "leaves no slot on any host"},
      {"", "a@b@c:0,1", "leaves no slot"},
  };
  for (const auto& [include, exclude, expected] : wrong) CHECK_ERROR(filter_hosts(abc, include, exclude), expected);
  CHECK(text_of(limit_hosts(abc, 2, 3)) == "a:012 b:012 ");
  CHECK(limit_hosts(abc, 0, 0) == abc);
  CHECK_ERROR(limit_hosts(abc, 4, 0), "--num-nodes of at most 3");
  CHECK_ERROR(limit_hosts(abc, 0, 3), "--num-gpus of at most 2, the slots of host 'c', got 3");
}

TEST_CASE("lists of cores") {
  CHECK(parse_cores("0-3,8") == std::vector<int>{0, 1, 2, 3, 8});
  CHECK(parse_cores("5") == std::vector<int>{5});
  for (const char* text : {"0-3,8", "5", "1,3,5-6"}) CHECK(format_cores(parse_cores(text)) == text);
  CHECK(format_cores({}).empty());
  for (const char* text : {"", ",", "1,", "a", "3-1", "1-", "-1", "1--2", "1;2", "99999999", "1,1", "0-2,1", "1 2"}) {
    CAPTURE(text);
    CHECK_ERROR(parse_cores(text), "got '" + std::string(text) + "'");
  }
}

TEST_CASE("cores are dealt to ranks") {
  // Two sockets of two NUMA nodes of two cores with two hardware threads each, whose numbers differ by 8.
  std::vector<Core> cores;
  for (int id = 0; id < 16; ++id)
    cores.push_back({.id = id, .unit = id % 8, .socket = id % 8 / 4, .node = id % 8 / 2, .cache = id % 8 / 4 * 4});
  const auto text = [&](Binding binding, int ranks) {
    std::string all;
    for (const auto& part : deal_cores(binding, ranks, cores)) all += format_cores(part) + " ";
    return all;
  };
  CHECK(text(Binding::none, 2) == "  ");
  CHECK(text(Binding::cores, 1) == "0-15 ");
  CHECK(text(Binding::cores, 2) == "0-3,8-11 4-7,12-15 ");
  CHECK(text(Binding::cores, 8) == "0,8 1,9 2,10 3,11 4,12 5,13 6,14 7,15 ");
  CHECK(text(Binding::cores, 3) == "0-2,8-10 3-5,11-12 6-7,13-15 ");
  CHECK(text(Binding::node, 4) == "0-1,8-9 2-3,10-11 4-5,12-13 6-7,14-15 ");
  CHECK(text(Binding::node, 2) == "0-1,8-9 4-5,12-13 ");
  CHECK(text(Binding::socket, 4) == "0-3,8-11 0-3,8-11 4-7,12-15 4-7,12-15 ");
  CHECK(text(Binding::core_complex, 2) == "0-3,8-11 4-7,12-15 ");
  CHECK(text(Binding::exclusive, 8) == "0,8 1,9 2,10 3,11 4,12 5,13 6,14 7,15 ");
  CHECK_ERROR(text(Binding::cores, 17), "got 16 for 17 ranks");
  CHECK_ERROR(text(Binding::exclusive, 17), "got 4 for 5 ranks");
  CHECK_ERROR(deal_cores(Binding::cores, 1, {}), "got none");
  CHECK_ERROR(parse_binding("die"), "'die'");
  // This machine has at least the core that this test runs on.
  const auto here = allowed_cores();
  CHECK(!here.empty());
  CHECK(usable_cores() >= 1);
  CHECK(usable_cores() <= int(here.size()));
  CHECK(threads_of_rank(8, 3) == 2);
  CHECK(threads_of_rank(2, 8) == 1);
}

TEST_CASE("the environment of a rank") {
  LaunchOptions o{.ranks = 2, .nodes = 3, .node = 1, .ranks_of_nodes = {3, 2, 1}, .role = "trainer", .max_restarts = 4};
  const Attempt attempt{.number = 1, .address = "host", .token = "secret", .job = "j", .port = 1234, .folder = "/logs"};
  Environment e =
      rank_environment(o, attempt, 1, {{"RANK", "stale"}, {"OTHER", "kept"}, {"LOCKSTEP_FLIGHT_DIR", "/mine"}}, 7);
  CHECK(text_of(e) ==
        "CROSS_RANK=1 CROSS_SIZE=3 GROUP_RANK=1 GROUP_WORLD_SIZE=3 LOCAL_RANK=1 LOCAL_SIZE=2 LOCAL_WORLD_SIZE=2 "
        "LOCKSTEP_ERROR_FILE=/logs/4/error.json LOCKSTEP_FLIGHT_DIR=/mine LOCKSTEP_JOB=j LOCKSTEP_TOKEN=secret "
        "MASTER_ADDR=host MASTER_PORT=1234 OMP_NUM_THREADS=7 OTHER=kept RANK=4 ROLE_NAME=trainer ROLE_RANK=4 "
        "ROLE_WORLD_SIZE=6 TORCHELASTIC_ERROR_FILE=/logs/4/error.json TORCHELASTIC_MAX_RESTARTS=4 "
        "TORCHELASTIC_RESTART_COUNT=1 TORCHELASTIC_RUN_ID=j WORLD_SIZE=6 ");
  CHECK(first_rank(o) == 3);
  o.ranks_of_nodes.clear();
  CHECK(first_rank(o) == 2);
  CHECK(world_size(o) == 6);
  o.devices = "1,3";
  e = rank_environment(o, attempt, 0, {{"OMP_NUM_THREADS", "2"}, {"CUDA_VISIBLE_DEVICES", "0"}}, 7);
  CHECK(e["OMP_NUM_THREADS"] == "2");
  CHECK(e["CUDA_VISIBLE_DEVICES"] == "1,3");
  CHECK(e["LOCKSTEP_FLIGHT_DIR"] == "/logs");
}

TEST_CASE("tokens") {
  const TempDir folder;
  const std::string file = folder / "token";
  CHECK_ERROR(read_token(file), "No such file");
  folder.write("token", "0123456789abcdef\n");
  CHECK_ERROR(read_token(file), "chmod 600");
  std::filesystem::permissions(file, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  CHECK(read_token(file) == "0123456789abcdef");
  for (const char* text : {"", "short", "two words that are long enough"})
    CHECK_ERROR(read_token(folder.write("token", text)), "16 to 1024 characters");
}

TEST_CASE("a port is kept from others, and one in use is refused") {
  const Port any("127.0.0.1", 0), other("127.0.0.1", 0);
  CHECK(any.number() > 0);
  CHECK(any.number() != other.number());
  const Port same("127.0.0.1", any.number());  // reserved but not listened on, so rank 0 can still bind it
  CHECK(same.number() == any.number());
  CHECK_ERROR(Port("127.0.0.1", 65536), "65536");
  CHECK_ERROR(Port("192.0.2.1", 0), "not an address of this machine");
}

TEST_CASE("streams by rank") {
  const OutputStreams all = OutputStreams::parse("2", 2, "--tee"), some = OutputStreams::parse("0:1,1:3", 3, "--tee");
  CHECK((!all.covers(0, 1) && all.covers(1, 2) && all.any()));
  CHECK((some.covers(0, 1) && !some.covers(0, 2) && some.covers(1, 2) && !some.covers(2, 1)));
  CHECK(!OutputStreams::parse("0", 1, "--tee").any());
  for (const char* text : {"", "4", "-1", "x", "1,2", "0:4", "0:", ":1", "0:1,", "0:1;1:2"}) {
    CAPTURE(text);
    CHECK_ERROR(OutputStreams::parse(text, 2, "--tee"), "expected --tee");
  }
  CHECK_ERROR(OutputStreams::parse("2:1", 2, "--tee"), "local rank 2; there are ranks 0 to 1");
  CHECK_ERROR(OutputStreams::parse("1:1,1:2", 2, "--tee"), "twice");
  CHECK(line_prefix("[${role_name}${rank}.${local_rank}] $ {x} ", 5, 1, "w") == "[w5.1] $ {x} ");
  CHECK(line_prefix("${rank", 5, 1, "w") == "${rank");
  CHECK_ERROR(line_prefix("${ranks}", 0, 0, ""), "'${ranks}'");
}

TEST_CASE("the last lines of a stream") {
  Console console;
  Relay relay(&console, 2, "", false, "");
  CHECK(relay.tail(3).empty());
  relay.take("one\ntwo\nthr"), relay.take("ee\nfour\n");
  CHECK(relay.tail(2) == "three\nfour");
  CHECK(relay.tail(9) == "one\ntwo\nthree\nfour");
  relay.take(std::string(100000, 'x')), relay.take("\n\n");
  CHECK(relay.tail(3).size() <= 4096);
  CHECK(relay.tail(1) == relay.tail(3));
}

TEST_CASE("what ranks print through ssh") {
  CHECK(shell_quote("a-b_c/d.e=f:1") == "a-b_c/d.e=f:1");
  CHECK(shell_quote("") == "''");
  CHECK(shell_quote("it's $HOME; `x`") == "'it'\\''s $HOME; `x`'");
  LaunchOptions o{.command = {"train", "a b", "--x"}, .hosts = {{"far", {0, 2}}, {"localhost", {0}}}};
  Attempt attempt{.number = 2, .address = "far", .token = "secret", .job = "j", .port = 7};
  const std::string greeting = agent_greeting(
      o, attempt, {{"LOCKSTEP_TIMEOUT", "9"}, {"LOCKSTEP_TOKEN", "old"}, {"HOME", "/h"}, {"OMP_X", "two\nlines"}});
  CHECK(greeting == "token secret\nattempt 2\nrestarts 0\nenv LOCKSTEP_TIMEOUT=9\ngo\n");
  const std::vector<std::string> local = agent_command(o, attempt, 1, "/bin/lockstep", "/work dir");
  CHECK(local.front() == "/bin/lockstep");
  CHECK(std::vector<std::string>(local.end() - 3, local.end()) == o.command);
  const TempDir folder;  // a stand-in for ssh, so that the test does not need one
  folder.write("ssh", "#!/bin/sh\n");
  std::filesystem::permissions(folder.path / "ssh", std::filesystem::perms::owner_all);
  const EnvironmentVariable path("PATH", folder.str());
  o.ssh_port = 2222, o.ssh_arguments = {"-i", "key"};
  const std::vector<std::string> ssh = agent_command(o, attempt, 0, "/bin/lockstep", "/work dir");
  CHECK(ssh.front() == folder / "ssh");
  CHECK(ssh[ssh.size() - 2] == "far");
  CHECK(contains(
      ssh.back(),
      "cd '/work dir' && exec /bin/lockstep run --agent --nnodes 2 --node-rank 0 --ranks-per-node 2,1 --nproc 2 "));
  CHECK(contains(ssh.back(), " -- train 'a b' --x"));
  CHECK(!contains(ssh.back(), "secret"));
}

TEST_CASE("error files") {
  const TempDir folder;
  const std::string file = folder / "error.json";
  CHECK(read_error_file(file).empty());
  const std::pair<std::string, std::string> rows[] = {{"plain\n\n", "plain"},
                                                      {R"({"message": "m", "rank": 1})", "m"},
                                                      {R"({"message": {"message": "deep"}})", "deep"},
                                                      {R"({"message": 3})", "3"},
                                                      {"{broken", "{broken"},
                                                      {"[1]", "[1]"},
                                                      {std::string(1 << 20, 'x'), std::string(8192, 'x')}};
  for (const auto& [text, expected] : rows) CHECK(read_error_file(folder.write("error.json", text)) == expected);
  std::filesystem::remove(file);
  REQUIRE(mkfifo(file.c_str(), 0600) == 0);
  CHECK(read_error_file(file).empty());  // without waiting for a writer
}

TEST_CASE("the first cause is the rank that all errors name, if it failed") {
  const TempDir folder;
  std::filesystem::create_directory(folder / "0");
  const LaunchOptions o{.ranks = 3};
  const Attempt attempt{.folder = folder.path};
  const struct {
    const char* error;
    bool other_failed, other_stopped;
    int cause;
  } rows[] = {{"", true, false, 0},
              {"disk full", true, false, 0},
              {"[rank 2] disk full", true, false, 2},
              {"rank 2 (pid 7 on h) died; it was last seen in step 3", true, false, 2},
              {"[rank 2] x", false, false, 0},
              {"[rank 2] x", true, true, 0},
              {"[rank 0] x", true, false, 0},
              {"[rank 9] x", true, false, 0},
              {"rank two", true, false, 0},
              {"rank 0: [rank 2] x", true, false, 2},
              {"rank 0: rank 2 (pid 7 on h) died", true, false, 2},
              {"rank 2: x", true, false, 0},
              {"rank 0: x: y", true, false, 0},
              {"ranks 2", true, false, 0}};
  for (const auto& row : rows) {
    CAPTURE(row.error);
    folder.write("0/error.json", row.error);
    Outcome outcome{.members = std::vector<Ended>(3), .first = 0};
    for (Ended& ended : outcome.members) ended.status = 1 << 8;
    outcome.members[2].status = row.other_failed ? 2 << 8 : 0, outcome.members[2].stopped = row.other_stopped;
    CHECK(find_cause(o, attempt, outcome) == row.cause);
  }
}

TEST_CASE("folders for temporary files: a missing one is named, and of those that failed jobs keep the last ten stay") {
  const TempDir folder;
  {
    const EnvironmentVariable nowhere("TMPDIR", "/no/such");
    CHECK_ERROR(ScratchFolder(), "TMPDIR=/no/such: the folder for temporary files does not exist");
  }
  const EnvironmentVariable here("TMPDIR", folder.str());
  std::vector<std::string> all;
  for (int i = 0; i < 13; ++i) {
    ScratchFolder scratch;
    all.push_back(scratch.path());
    if (i != 1) scratch.keep(i != 2);  // 2: its logs were requested by the user
  }

  for (int i = 0; i < 13; ++i) CHECK(std::filesystem::exists(all[size_t(i)]) == (i == 2 || i > 2));
  CHECK(!std::filesystem::exists(all[0]));
}
