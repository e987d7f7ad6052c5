// Saving and loading: resharding between any numbers of ranks, rejected calls, tags, latest, keep, async, the lock.
#include <chrono>
#include <cmath>
#include <thread>

#include "checkpoint/folder.h"
#include "checkpoint/layout.h"
#include "tests/checkpoint/util.h"

using namespace lockstep;
using namespace lockstep::checkpoints;
using dist::Seconds;

namespace {

/// Runs fn on n ranks in threads; returns each rank's error, "" for none.
std::vector<std::string> errors_of(int n, const std::function<void(int rank)>& fn) {
  std::vector<std::string> errors(static_cast<size_t>(n));
  try {
    dist::spawn(n,
                [&](int rank) {
                  try {
                    fn(rank);
                  } catch (const dist::DistError& e) {
                    errors[size_t(rank)] = e.what();
                    throw;
                  } catch (const std::exception& e) { errors[size_t(rank)] = e.what(); }
                },
                {.timeout = Seconds(20), .heartbeat = Seconds(0.2)});
  } catch (const Error&) {  // already in `errors`
  }
  return errors;
}

}  // namespace

TEST_CASE("save and load: any number of ranks, any cut, to any other") {
  const int limit = thread_sanitized ? 3 : 8;
  for (const Cut cut : all_cuts) {
    for (int from = 1; from <= limit; ++from) {
      INFO("cut ", int(cut), ", from ", from);
      TempDir dir;
      testing::on_ranks(from,
                        [&](int rank) { save(dir / "run", "a", contents_of(cut, from, rank, 3), &dist::world()); });
      CHECK(dir.list("run") == "a latest");
      CHECK(load_version(dir / "run") == 3);
      for (int to = 1; to <= limit; ++to) {
        CAPTURE(to);
        const Cut other = all_cuts[size_t(from + to) % 4];
        testing::on_ranks(to, [&](int rank) {
          const std::vector<Piece> wanted = pieces_of(other, to, rank, -1);
          const auto loaded = load(dir / "run", wanted, &dist::world());
          LOCKSTEP_CHECK(loaded && is_version(wanted, 3), "other bits");
          LOCKSTEP_CHECK(loaded->world == from && loaded->plan == "test" && loaded->tag == "a" &&
                             loaded->unused.empty() && integer(loaded->numbers, "step") == 3,
                         "other facts");
        });
      }
    }
  }
}

TEST_CASE("save: replicated state is written once, and the replicas share the work") {
  TempDir dir;
  const int64_t n = 100'003;
  testing::on_ranks(4, [&](int) {
    const Tensor w = bytes_tensor(n, f32), b = bytes_tensor(3, f64);
    w.zero_();
    b.zero_();
    save(dir.str(), "a", {.pieces = {full("w", w), full("b", b)}}, &dist::world());
  });
  uintmax_t bytes = 0, largest = 0;
  int files = 0;
  for (const auto& entry : fs::directory_iterator(dir / "a")) {
    if (entry.path().filename() == "manifest.json") continue;
    bytes += entry.file_size();
    largest = std::max(largest, entry.file_size());
    ++files;
  }
  CHECK(files == 4);
  CHECK(bytes < uintmax_t(4 * n + 24 + 4 * 400));
  CHECK(largest < uintmax_t(n + 500));
  const Tensor w = bytes_tensor(n, f32);
  CHECK(load(dir.str(), {full("w", w)}, nullptr, {.skip = {"b"}})->unused == std::vector<std::string>{"b"});
}

TEST_CASE("numbers come back to the bit; ranks may give different ones, not different values") {
  TempDir dir;
  const double odd = std::nextafter(0.1, 1);
  const Numbers numbers = {{"a", odd},
                           {"minus zero", -0.0},
                           {"tiny", 5e-324},
                           {"huge", 1.7976931348623157e308},
                           {"nan", std::nan("")},
                           {"inf", INFINITY},
                           {"-inf", -INFINITY},
                           {"seed", int64_t(UINT64_C(0xfedcba9876543210))},
                           {"text", "é \"\n\\"},
                           {"one", 1.0},
                           {"whole", int64_t(1)},
                           {"least", INT64_MIN}};
  testing::on_ranks(2, [&](int rank) {
    Numbers mine = numbers;
    mine[str("of rank ", rank)] = int64_t(rank);
    save(dir.str(), "a", {.numbers = mine, .client_state = data::Json(data::Json::Object{{"epoch", 3}})},
         &dist::world());
  });
  const auto loaded = load(dir.str(), {});
  REQUIRE(loaded);
  for (const auto& [name, value] : numbers) {
    CAPTURE(name);
    const data::Json& found = loaded->numbers.at(name);
    REQUIRE(std::string(found.kind()) == value.kind());
    if (!value.is_number() || value.is_int()) {
      CHECK(found == value);
      continue;
    }
    const double before = value.as_number(), after = found.as_number();
    CHECK((std::isnan(before) ? std::isnan(after) : std::memcmp(&before, &after, 8) == 0));
  }
  CHECK(integer(loaded->numbers, "of rank 1") == 1);
  CHECK(loaded->client_state.at("epoch").as_int() == 3);
  CHECK(number(loaded->numbers, "whole") == 1.0);
  CHECK(loaded->numbers.at("text").as_string() == "é \"\n\\");
  CHECK_ERROR(integer(loaded->numbers, "a"), "expected \"a\" to be a whole number, got 0.10000000000000002");
  CHECK_ERROR(number(loaded->numbers, "lr"), "expected a number \"lr\", the checkpoint has none");
  const auto errors = errors_of(2, [&](int rank) {
    save(dir.str(), "b", {.numbers = {{"lr", rank == 0 ? 0.1 : 0.2}}}, &dist::world());
  });
  check_each(errors, {"number \"lr\" is 0.1 at rank 0 and 0.2 at rank 1"});
  CHECK(dir.list() == "a latest");
}

TEST_CASE("tied tensors are saved once and found under every name") {
  TempDir dir;
  const Tensor w = Tensor::from({1.f, 2.f, 3.f});
  Contents c{.pieces = {full("embedding", w)}, .aliases = {{"head", "embedding"}}};
  save(dir.str(), "a", c);
  const Tensor e = bytes_tensor(3, f32), h = bytes_tensor(3, f32);
  CHECK(load(dir.str(), {full("embedding", e), full("head", h)})->unused.empty());
  CHECK(e.to_vector<float>() == std::vector<float>{1, 2, 3});
  CHECK(h.to_vector<float>() == std::vector<float>{1, 2, 3});
  CHECK(load(dir.str(), {full("head", h)})->unused.empty());
  c.aliases["other"] = "none";
  CHECK_ERROR(save(dir.str(), "b", c), "got \"other\" for \"none\"");
  c.aliases = {{"embedding", "embedding"}};
  CHECK_ERROR(save(dir.str(), "b", c), "expected an alias of a tensor that is saved, which is not saved itself");
}

TEST_CASE("save: the state of all ranks is checked before anything is written") {
  const Tensor three = Tensor::from({1.f, 2.f, 3.f}), doubles = Tensor::from({1., 2., 3.});
  const Shape six = {6};
  const Piece w = full("w", three), first = part_of("w", six, 0, three), second = part_of("w", six, 3, three);
  const struct {
    const char* what;
    std::vector<Piece> of[2];  // what each rank saves
    const char* expected;
    std::string alias[2] = {};  // the tensor that the name "a" stands for
  } rows[] = {
      {"gap", {{first}, {}}, "w f32(6): no rank has elements [3, 6)"},
      {"gap at the start", {{}, {second}}, "w f32(6): no rank has elements [0, 3)"},
      {"overlap", {{first}, {part_of("w", six, 2, three), second}}, "the ranges of ranks 0 and 1 overlap at element 2"},
      {"shapes", {{first}, {part_of("w", {2, 3}, 3, three)}}, "w: rank 0 has a part of f32(6), rank 1 of f32(2, 3)"},
      {"dtypes", {{first}, {part_of("w", six, 3, doubles)}}, "w: rank 0 has a part of f32(6), rank 1 of f64(6)"},
      {"twice", {{w}, {w, w}}, "w: rank 1 gives elements [0, 3) twice"},
      {"past the end",
       {{}, {part_of("w", six, 5, three)}},
       "rank 1: piece \"w\": expected a range of the 6 elements of (6), got [5, 8)"},
      {"undefined",
       {{w}, {{.name = "v", .shape = six, .end = 6}}},
       "rank 1: piece \"v\": expected a tensor, got an undefined one"},
      {"name", {{full("w[0]", three)}, {}}, "rank 0: piece \"w[0]\": expected names of tensors without '['"},
      {"no name", {{full("", three)}, {}}, "got \"\""},
      {"not UTF-8", {{full("w\xff", three)}, {}}, ""},
      {"aliases",
       {{w, full("v", three)}, {}},
       "alias \"a\" is for \"w\" at rank 0 and for \"v\" at rank 1",
       {"w", "v"}},
      {"strides",
       {{{"w", {2, 2}, f32, 0, 4, Tensor::from({1.f, 2.f, 3.f, 4.f}, {2, 2}).t()}}, {}},
       "expected a contiguous tensor"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.what);
    TempDir dir;
    const auto errors = errors_of(2, [&](int rank) {
      Contents c{.pieces = row.of[rank]};
      if (!row.alias[rank].empty()) c.aliases["a"] = row.alias[rank];
      const std::string error = message([&] { save(dir / "run", "a", c, &dist::world()); });
      LOCKSTEP_CHECK(error == "(no error)", error);
    });
    check_each(errors, {"[checkpoint] a was not saved into ", row.expected});
    CHECK(!fs::exists(dir / "run/a"));
    CHECK(!fs::exists(dir / "run/latest"));
  }
}

TEST_CASE("save: tags and folders that differ; invalid tags") {
  TempDir dir;
  Warnings warnings;
  const auto attempt = [&](TagValidation validation) {
    return errors_of(2, [&](int rank) {
      save(dir.str(), rank == 0 ? "a" : "b", contents_of(Cut::flat, 2, rank, 1), &dist::world(),
           {.tag_validation = validation, .warn = warnings.sink()});
    });
  };
  check_each(attempt(TagValidation::fail),
             {"expected the same tag on all ranks, got \"a\" at rank 0 and \"b\" at rank 1"});
  CHECK(dir.list() == "");
  CHECK(attempt(TagValidation::ignore) == std::vector<std::string>(2));
  CHECK(warnings.take() == "");
  CHECK(attempt(TagValidation::warn) == std::vector<std::string>(2));
  CHECK(contains(warnings.take(), "using that of rank 0"));
  CHECK(dir.list() == "a~2 latest");
  const auto errors = errors_of(2, [&](int rank) { save(dir / (rank == 0 ? "x" : "y"), "a", {}, &dist::world()); });
  check_each(errors, {"expected the same dir on all ranks"});
  for (const char* tag : {"", "a/b", "..", ".a", "latest", "lock", "manifest.json", "a~2", "a.tmp-1", "a b", "é"}) {
    CAPTURE(tag);
    CHECK_ERROR(save(dir.str(), tag, {}), "expected a tag of letters");
  }
  CHECK_ERROR(Saver("", nullptr), "expected a folder");
  CHECK_ERROR(Saver("x", nullptr, {.keep = -1}), "expected keep >= 0");
}

TEST_CASE("load: everything that does not fit is listed, and nothing is loaded") {
  TempDir dir;
  save(dir.str(), "a",
       {.pieces = {full("w", Tensor::from({1.f, 2.f})), full("v", Tensor::from({1.f})),
                   full("u", Tensor::from({1., 2.}))}});
  const Tensor w = Tensor::from({7.f, 7.f}), u = Tensor::from({7.f, 7.f});
  for (int n : {1, 2}) {
    const auto errors = errors_of(n, [&](int) {
      load(dir.str(),
           {full("w", w),
            full("x", w),
            full("u", u),
            {"v", {1, 1}, f32, 0, 1, bytes_tensor(1, f32)},
            part_of("y", {4}, 3, w)},
           &dist::world());
    });
    check_each(errors,
               {"a does not fit, nothing was loaded:", "missing: x", "shape: v is (1) in the checkpoint, (1, 1) here",
                "dtype: u is f64 in the checkpoint, f32 here; set convert to convert it",
                "piece \"y\": expected a range", "unexpected: u f64(2)", "unexpected: v f32(1)"});
    for (const std::string& error : errors) CHECK(!contains(error, ": w"));
  }
  CHECK(w.to_vector<float>() == std::vector<float>{7, 7});
  CHECK_ERROR(load(dir.str(), {full("w", w)}), "unexpected: u f64(2)");
  CHECK(load(dir.str(), {full("w", w)}, nullptr, {.skip = {"u", "v"}})->unused.size() == 2);
  CHECK(load(dir.str(), {full("w", w), full("u", u)}, nullptr, {.convert = true, .strict = false})->unused ==
        std::vector<std::string>{"v"});
  CHECK(u.to_vector<float>() == std::vector<float>{1, 2});
  CHECK(w.to_vector<float>() == std::vector<float>{1, 2});
}

TEST_CASE("latest, tags and keep") {
  TempDir dir;
  Warnings warnings;
  CHECK(!load(dir.str(), {}, nullptr, {.warn = warnings.sink()}));
  CHECK(contains(warnings.take(), "holds no checkpoint"));
  CHECK(!load(dir / "nowhere", {}, nullptr, {.warn = warnings.sink()}));
  CHECK_ERROR(load(dir.str(), {}, nullptr, {.tag = "a"}), "expected a checkpoint of tag a, there are no checkpoints");
  {
    Saver saver(dir.str(), nullptr, {.keep = 2, .warn = warnings.sink()});
    CHECK(saver.committed() == "");
    for (int v = 1; v <= 4; ++v) saver.save(str("step-", v), of_one_rank(v));
    CHECK(saver.committed() == dir / "step-4");
    CHECK(dir.list() == "latest lock step-3 step-4");
    saver.save("step-4", of_one_rank(5));  // a resumed run reaches the same step again
    CHECK(dir.list() == "latest lock step-3 step-4~2");
  }
  CHECK(dir.list() == "latest step-3 step-4~2");
  CHECK(load_version(dir.str()) == 5);
  CHECK(load_version(dir.str(), {.tag = "step-3"}) == 3);
  CHECK(load_version(dir.str(), {.tag = "step-4"}) == 5);
  CHECK(load_version(dir / "step-3") == 3);
  CHECK_ERROR(load_version(dir.str(), {.tag = "step-2"}),
              "expected a checkpoint of tag step-2, there are step-3, step-4");
  save(dir.str(), "side", of_one_rank(6), nullptr, {.latest = false});
  CHECK(load_version(dir.str()) == 5);
  CHECK(load_version(dir.str(), {.tag = "side"}) == 6);
  // The checkpoint that `latest` names is kept, however old it is.
  save(dir.str(), "next", of_one_rank(7), nullptr, {.keep = 1, .latest = false});
  CHECK(dir.list() == "latest next step-4~2");
  CHECK(load_version(dir.str()) == 5);
  fs::create_directory(dir / "mine");  // not a checkpoint of ours, so never touched
  std::ofstream(dir / "mine/notes") << "text";
  std::ofstream(dir / "a.tmp-notes") << "text";
  save(dir.str(), "last", of_one_rank(8), nullptr, {.keep = 1});
  CHECK(dir.list() == "a.tmp-notes last latest mine");
  CHECK(warnings.take() ==
        str("[checkpoint] ", dir / "nowhere", ": holds no checkpoint; save one, or give another folder\n"));
}

TEST_CASE("folders of any name") {
  TempDir dir;
  const fs::path before = fs::current_path();
  fs::current_path(dir.str());
  for (const char* name : {"a\nb", "!a", "=a", "caf\xe9", " ", "\x1b[31m"}) {
    save(name, "step-1", of_one_rank(3));
    CHECK(load_version(name) == 3);
  }
  fs::current_path(before);
}

TEST_CASE("a lock that is a link to another file: nothing is written there") {
  TempDir dir;
  std::ofstream(dir / "target") << "kept";
  fs::create_symlink(dir / "target", dir / "lock");
  CHECK_ERROR(save(dir.str(), "a", of_one_rank(1)), "(a symbolic link is not followed: remove it)");
  CHECK(data::read_file(dir / "target", 100) == "kept");
}

TEST_CASE("latest that is missing or broken: the newest complete one, with a warning") {
  TempDir dir;
  Warnings warnings;
  // The newest is not the last by name.
  for (int v = 1; v <= 3; ++v) save(dir.str(), str("z", 4 - v), of_one_rank(v));
  fs::remove(dir / "latest");
  for (const std::string& content :
       std::vector<std::string>{"missing", "", "gone\n", "../z1\n", std::string(1000, 'x')}) {
    if (content != "missing") dir.write("latest", content);
    CHECK(load_version(dir.str(), {.warn = warnings.sink()}) == 3);
    CHECK(contains(warnings.take(), "z1, the newest complete one"));
  }
  fs::resize_file(dir / "z1/rank-00000.safetensors", 100);
  CHECK(load_version(dir.str(), {.warn = warnings.sink()}) == 2);
  CHECK(contains(warnings.take(), "z2, the newest complete one"));
  for (const char* name : {"z2", "z3"}) fs::resize_file(dir.path / name / "manifest.json", 100);
  CHECK_ERROR(load_version(dir.str()), "expected a complete checkpoint, none of the 3 is");
}

TEST_CASE("async: saves the state at the call; one save at a time; errors come with the next call") {
  for (int n : {1, 3}) {
    TempDir dir;
    testing::on_ranks(n, [&](int rank) {
      Saver saver(dir.str(), &dist::world(), {.async = true});
      Contents c = contents_of(Cut::mixed, n, rank, 1);
      for (int v = 1; v <= 3; ++v) {
        if (v > 1) c = contents_of(Cut::mixed, n, rank, v);
        saver.save(str("step-", v), c);
        for (const Piece& p : c.pieces)
          if (p.tensor.numel()) std::memset(p.tensor.raw_data(), 0, size_t(p.tensor.numel() * size_of(p.dtype)));
        dist::world().all_reduce(Tensor::from({1.f}));  // training continues during the save
      }
      saver.wait();
      saver.wait();
      LOCKSTEP_CHECK(saver.committed() == dir / "step-3", "committed ", saver.committed());
    });
    CHECK(load_version(dir.str()) == 3);
    CHECK(load_version(dir.str(), {.tag = "step-1"}) == 1);
    // Rank n - 1 cannot write. All ranks get the error at their next call, which then does nothing; the call after that
    // works.
    FaultyCalls calls(FaultyCalls::Fault::fail, n == 1 ? 12 : 1, ENOSPC);
    const auto errors = errors_of(n, [&](int rank) {
      Saver saver(dir.str(), &dist::world(), {.async = true, .calls = rank == n - 1 ? &calls : nullptr});
      const Contents c = contents_of(Cut::flat, n, rank, 4);
      saver.save("step-4", c);
      const std::string error = message([&] { saver.save("step-5", c); });
      saver.save("step-6", c);
      saver.wait();
      fail(error);
    });
    check_each(errors,
               {"[checkpoint] step-4 was not saved into ", "No space left on device (free space, then save again)"});
    CHECK(load_version(dir.str()) == 4);
    CHECK(dir.list() == "latest step-1 step-2 step-3 step-6");
  }
}

TEST_CASE("async: an error that nobody asks for is told when the saver goes") {
  TempDir dir;
  Warnings warnings;
  FaultyCalls calls(FaultyCalls::Fault::fail_from, 1, EROFS);
  { Saver(dir / "run", nullptr, {.async = true, .calls = &calls, .warn = warnings.sink()}).save("a", {}); }
  CHECK(contains(warnings.take(), "a was not saved into"));
}

TEST_CASE("0b: a rank that does not come is named; a rank that does something else too") {
  TempDir dir;
  auto errors = errors_of(3, [&](int rank) {
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::seconds(3));
      return;
    }
    save(dir.str(), "a", {}, &dist::world(), {.timeout = Seconds(0.5)});
  });
  check_each({errors[0], errors[2]}, {"missing ranks: 1"});
  // only rank 0 saves, a mistake that the guide describes
  errors = errors_of(2, [&](int rank) {
    if (rank == 0) save(dir.str(), "a", {}, &dist::world());
    else dist::world().all_reduce(Tensor::from({1.f}), {.tag = "gradient"});
  });
  check_each(errors, {"checkpoint save", "all_reduce f32 x 1"});
  errors = errors_of(2, [&](int rank) {
    if (rank == 0) save(dir.str(), "a", {}, &dist::world());
    else load(dir.str(), {}, &dist::world());
  });
  check_each(errors, {"checkpoint save", "checkpoint load"});
  errors = errors_of(2, [&](int rank) {
    if (rank == 0) save(dir.str(), "a", {}, &dist::world());
  });
  CHECK(contains(errors[0], "rank 1 has left"));
  CHECK(dir.list() == "");
}

TEST_CASE("inspect lists a checkpoint's tensors with their shapes") {
  TempDir dir;
  testing::on_ranks(2, [&](int rank) {
    save(dir.str(), "a", contents_of(Cut::flat, 2, rank, 4), &dist::world());
    const auto info = inspect(dir.str(), &dist::world());
    LOCKSTEP_CHECK(
        info && info->path == dir / "a" && info->tensors.size() == small_model().size() && info->aliases.size() == 1,
        "other facts");
    std::vector<Piece> wanted;
    for (const auto& [name, tensor] : info->tensors)
      wanted.push_back({name, tensor.shape, tensor.dtype, 0, numel_of(tensor.shape),
                        bytes_tensor(numel_of(tensor.shape), tensor.dtype)});
    LOCKSTEP_CHECK(load(info->path, wanted, &dist::world()) && is_version(wanted, 4), "other bits");
  });
  CHECK(!inspect(dir / "none", nullptr, {.warn = [](const std::string&) {}}));
}

TEST_CASE("folder names") {
  CHECK(parse_folder("step-1")->number == 1);
  CHECK(parse_folder("step-1~12")->number == 12);
  CHECK(parse_folder("step-1~12")->tag == "step-1");
  for (const char* name :
       {"", "a~", "a~1", "a~x", "a~2x", "~2", "a~99999999999999999999", ".a", "a.tmp-0123456789abcdef"})
    CHECK(!parse_folder(name));
  for (const char* name : {"a.tmp-0123456789abcdef", "a~2.tmp-0123456789abcdef"}) CHECK(is_temporary(name));
  for (const char* name : {"a.tmp-0123456789abcdeX", "a.tmp-1"}) CHECK(!is_temporary(name));
}

TEST_CASE("layout: sharing is even to the byte, and every element has one writer") {
  for (const int world : {1, 2, 3, 7}) {
    Offer offer;
    for (int i = 0; i < 9; ++i) offer.pieces.push_back({str("t", i), {i * 11}, i % 2 ? f64 : u8, 0, i * 11, {}});
    const Assignment layout = make_layout({offer}, std::vector<size_t>(size_t(world), 0));
    std::vector<int64_t> bytes(static_cast<size_t>(world));
    int64_t total = 0;
    for (int r = 0; r < world; ++r) {
      for (const auto& w : layout.writes[size_t(r)]) {
        const LogicalTensor& tensor = layout.manifest.tensors.at(w.tensor);
        const StoredPiece& part = tensor.parts[w.part];
        CHECK(part.file == file_of_rank(r));
        bytes[size_t(r)] += (part.end - part.begin) * size_of(tensor.dtype);
      }
      total += bytes[size_t(r)];
    }
    for (const int64_t b : bytes) CHECK(std::abs(b - total / world) <= 16);
    for (const auto& [name, tensor] : layout.manifest.tensors) {
      int64_t reached = 0;
      for (const StoredPiece& part : tensor.parts) {
        CHECK(part.begin == reached);
        reached = part.end;
      }
      CHECK(reached == tensor.numel());
    }
  }
  CHECK(file_of_rank(7) == "rank-00007.safetensors");
  CHECK(file_of_rank(123456) == "rank-123456.safetensors");
}
