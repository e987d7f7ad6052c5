// What `lockstep checkpoint` does with intact and damaged checkpoints.
#include "extensions/checkpoint_tools/checkpoint_tools.h"
#include "data/safetensors.h"
#include "tests/checkpoint/saved.h"

using namespace lockstep;
using namespace lockstep::checkpoints;

TEST_CASE("verify names everything that is wrong, also files that do not belong to the checkpoint") {
  const Saved saved;
  auto opened = open_checkpoint(saved.dir.str(), "", quiet);
  CHECK(opened.manifest.tag == "new");
  CHECK(verify_checkpoint(opened).empty());
  fs::resize_file(saved.file(rank_files[0]), 10);
  put(saved.file("rank-00009.safetensors"), "x");
  std::string bad = content(saved.file(rank_files[2]));
  bad[200] = char(bad[200] ^ 1);
  put(saved.file(rank_files[2]), bad);
  const auto problems = verify_checkpoint(opened);
  REQUIRE(problems.size() == 3);
  CHECK(contains(problems[0], "(truncated)"));
  CHECK(contains(problems[1], rank_files[2]));
  CHECK(contains(problems[2], "rank-00009.safetensors: the manifest does not list it"));
  CHECK_ERROR(open_checkpoint(saved.dir / "none", "", quiet), "holds no checkpoint");
}

TEST_CASE("export: in f32, master weights in place of the parameters of 16 bits") {
  const TempDir dir;
  const Tensor weight = randn({5, 3}), count = Tensor::from<int64_t>({7}, {1});
  save(dir.str(), "new",
       {.pieces = {full("model.w", weight.to(bf16)), full("model.n", count), full("optimizer.master.w", weight)}});
  auto opened = open_checkpoint(dir.str(), "", quiet);
  for (const DType dtype : {f32, bf16, f64}) {
    CHECK(export_checkpoint(opened, dir / "w", {.dtype = dtype}) == 2);
    const auto file = data::SafeTensors::open(dir / "w");
    CHECK(equal(file.tensor("w"), dtype == f32 ? weight : weight.to(bf16).to(dtype)));
    CHECK(equal(file.tensor("n"), count));
  }
}

TEST_CASE("merge: the same in one file; export: plain safetensors") {
  const Saved saved;
  auto opened = open_checkpoint(saved.dir.str(), "", quiet);
  CHECK(merge_checkpoint(opened, saved.dir / "merged", quiet) == saved.dir / "merged/new");
  CHECK(saved.dir.list("merged/new") == "manifest.json rank-00000.safetensors");
  CHECK(load_version(saved.dir / "merged") == 2);
  auto merged = open_checkpoint(saved.dir / "merged", "", quiet);
  CHECK(merged.manifest.numbers == opened.manifest.numbers);
  CHECK(merged.manifest.aliases == opened.manifest.aliases);
  CHECK(merged.manifest.plan == "test");
  for (const auto& [name, tensor] : merged.manifest.tensors)
    CHECK((tensor.parts.size() == 1 && tensor.parts[0].name == name));
  const auto file = data::SafeTensors::open(saved.dir / "merged/new/rank-00000.safetensors");
  // any safetensors reader can read it
  for (const Entry& e : small_model()) CHECK(file.tensor(e.name).shape() == e.shape);
  CHECK_ERROR(merge_checkpoint(opened, saved.dir.str(), quiet), "expected another folder to merge into");

  for (const DType dtype : {f32, bf16}) {
    CHECK(export_checkpoint(opened, saved.dir / "model.safetensors", {.dtype = dtype}) == 8);
    const auto plain = data::SafeTensors::open(saved.dir / "model.safetensors");
    CHECK(plain.metadata().at("format") == "pt");
    CHECK(plain.metadata().at("head") == "h.0.attn.weight");
    CHECK(!plain.contains("head"));
    for (const Entry& e : small_model()) {
      const std::string name = e.name;
      if (!name.starts_with("model.")) continue;
      const Tensor tensor = plain.tensor(name.substr(6)), expected = make_piece(e, 0, numel_of(e.shape), 2).tensor;
      CHECK(tensor.shape() == e.shape);
      CHECK(tensor.dtype() == (is_floating(e.dtype) ? dtype : e.dtype));
      const Tensor converted = expected.to(tensor.dtype());
      if (tensor.numel())
        CHECK(std::memcmp(tensor.raw_data(), converted.raw_data(), size_t(tensor.numel() * size_of(tensor.dtype()))) ==
              0);
    }
  }
  export_checkpoint(opened, saved.dir / "model.safetensors", {.prefix = "data.", .rename = [](const std::string& name) {
                                                                return std::pair(name + ".t", true);
                                                              }});
  const Tensor turned = data::SafeTensors::open(saved.dir / "model.safetensors").tensor("order.t");
  CHECK(turned.to_vector<int64_t>() ==
        make_piece(small_model()[7], 0, 9, 2).tensor.view({3, 3}).t().to_vector<int64_t>());
  const std::string before = content(saved.dir / "model.safetensors");
  CHECK_ERROR(export_checkpoint(opened, saved.dir / "model.safetensors", {.prefix = "weights."}),
              "expected tensors whose names begin with \"weights.\", there are none among 10");
  CHECK_ERROR(export_checkpoint(opened, saved.dir / "x",
                                {.rename = [](const std::string&) { return std::pair(std::string("w"), false); }}),
              "two tensors would be called w");
  CHECK_ERROR(export_checkpoint(opened, saved.dir / "x", {.dtype = i64}), "expected a floating dtype");
  CHECK_ERROR(export_checkpoint(opened, saved.dir / "no/x"), "cannot create");
  CHECK(content(saved.dir / "model.safetensors") == before);
  CHECK(saved.dir.list() == "latest merged model.safetensors new old");
}
