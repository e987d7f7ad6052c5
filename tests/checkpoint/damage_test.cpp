// Damaged checkpoints: flipped bits, and files that are truncated, missing, swapped or foreign. Each one is rejected
// with the name of the file. Case 36 of docs/faults.md.
#include "checkpoint/hash.h"
#include "data/safetensors.h"
#include "tests/checkpoint/saved.h"

using namespace lockstep;
using namespace lockstep::checkpoints;

namespace {

/// The error when one process loads the folder; two ranks must get the same.
std::string refused(const std::string& dir, const LoadOptions& options = {}) {
  const std::vector<Piece> wanted = pieces_of(Cut::replicated, 1, 0, -1);
  const std::string single = message([&] { load(dir, wanted, nullptr, options); });
  const auto texts = testing::on_ranks<std::string>(2, [&](int rank) {
    return message([&] { load(dir, pieces_of(Cut::flat, 2, rank, -1), &dist::world(), options); });
  });
  CHECK(texts[0] == texts[1]);
  CHECK((texts[0] == "(no error)") == (single == "(no error)"));
  for (const Piece& piece : wanted)  // nothing is partially loaded
    CHECK((single == "(no error)" || equal(piece.tensor, zeros_like(piece.tensor))));
  return single;
}

}  // namespace

TEST_CASE("36: a flipped bit anywhere in any file is seen, and the file is named") {
  const Saved saved;
  CHECK(load_version(saved.dir.str()) == 2);
  for (const char* name : {rank_files[0], rank_files[1], rank_files[2], "manifest.json"}) {
    const std::string good = content(saved.file(name));
    const size_t step = good.size() / 97 + 1;
    for (size_t at = 0; at < good.size(); at += at < 16 ? 1 : step) {
      INFO("name ", name, ", at ", at);
      std::string bad = good;
      bad[at] = char(bad[at] ^ (1 << (at % 8)));
      put(saved.file(name), bad);
      CHECK_ERROR(load_version(saved.dir.str()), saved.file(name));
    }
    put(saved.file(name), good);
  }
  CHECK(load_version(saved.dir.str()) == 2);
}

TEST_CASE("36: what differs is said") {
  const Saved saved;
  const std::string dir = saved.dir.str(), file = saved.file(rank_files[0]), other = saved.file(rank_files[1]),
                    manifest = saved.file("manifest.json");
  const std::string good = content(file), good_other = content(other), good_manifest = content(manifest);
  const auto restore = [&] {
    put(file, good);
    put(other, good_other);
    put(manifest, good_manifest);
    CHECK(load_version(dir) == 2);
  };
  std::string bad = good;
  bad.back() = char(bad.back() ^ 4);
  put(file, bad);
  const std::string last = data::SafeTensors::open(file).entries().back().name;
  check_each({refused(dir)}, {file + ": its content has changed since it was saved: expected BLAKE2b ",
                              "; damaged: " + last, "set fall_back to load the previous checkpoint"});
  CHECK(load_version(dir, {.verify = Verify::sizes}) == -1);  // comparing only sizes does not notice it
  Warnings warnings;
  CHECK(load_version(dir, {.fall_back = true, .warn = warnings.sink()}) == 1);
  check_each({warnings.take()}, {"new is damaged:", "taking " + saved.dir / "old"});
  // With an explicit tag there is no fallback.
  CHECK_ERROR(load_version(dir, {.tag = "new", .fall_back = true}), "its content has changed");
  restore();

  for (const size_t size : {size_t(0), size_t(7), size_t(100), good.size() - 1}) {
    put(file, good.substr(0, size));
    check_each({refused(dir), refused(dir, {.verify = Verify::sizes})},
               {str(file, ": expected ", good.size(), " bytes, got ", size, " (truncated)")});
  }
  put(file, good + "x");
  CHECK(contains(refused(dir), str("expected ", good.size(), " bytes, got ", good.size() + 1)));
  fs::remove(file);
  CHECK(contains(refused(dir), str(file, ": expected a file of ", good.size(), " bytes, got: No such file")));
  fs::create_directory(file);
  CHECK(contains(refused(dir), file));
  fs::remove(file);
  restore();

  // The file has the right tensors, but belongs to another checkpoint.
  put(other, content(saved.dir / "old/rank-00001.safetensors"));
  CHECK(contains(refused(dir), other + ": expected a file of checkpoint "));
  CHECK(contains(refused(dir, {.verify = Verify::sizes}), "(old)"));
  restore();
  put(manifest, content(saved.dir / "old/manifest.json"));
  CHECK(contains(refused(dir), "expected a file of checkpoint "));
  restore();
  put(manifest, good_manifest.substr(0, good_manifest.size() / 2));
  CHECK(contains(refused(dir), manifest + ": the manifest is damaged"));
  CHECK(load_version(dir, {.fall_back = true}) == 1);
  put(manifest, "{}");
  CHECK(contains(refused(dir), "expected the manifest of a checkpoint"));
  restore();
  CHECK_ERROR(load_version(saved.dir / "new", {.tag = "old"}), "this is a checkpoint of tag new, not old");
}

TEST_CASE("36: swapped files") {
  TempDir dir;
  dist::spawn(2, [&](int rank) {  // two ranks write files of the same size
    save(dir.str(), "a", {.pieces = {part_of("w", {8}, 4 * rank, Tensor::from({1.f + float(rank), 2.f, 3.f, 4.f}))}},
         &dist::world());
  });
  const std::string zero = dir / "a/rank-00000.safetensors", one = dir / "a/rank-00001.safetensors";
  REQUIRE(fs::file_size(zero) == fs::file_size(one));
  fs::rename(zero, dir / "x");
  fs::rename(one, zero);
  fs::rename(dir / "x", one);
  const Tensor w = bytes_tensor(8, f32);
  const std::string text = message([&] { load(dir.str(), {full("w", w)}); });
  CHECK(contains(text, zero + ": holds the content of rank-00001.safetensors; were files swapped?"));
  CHECK(contains(text, one + ": holds the content of rank-00000.safetensors"));
  CHECK_ERROR(load(dir.str(), {full("w", w)}, nullptr, {.verify = Verify::sizes}),
              zero + ": this is rank-00001.safetensors, under another name");
}

TEST_CASE("hashes equal b2sum -l 256") {
  CHECK(hash_of(data::as_bytes("")) == "0e5751c026e543b2e8ab2eb06099daa1d1e5df47778f7787faab45cdf12fe3a8");
  CHECK(hash_of(data::as_bytes("abc")) == "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319");
  Hash in_parts;
  in_parts.update(data::as_bytes("a"));
  in_parts.update(data::as_bytes("bc"));
  CHECK(in_parts.hex() == hash_of(data::as_bytes("abc")));
}
