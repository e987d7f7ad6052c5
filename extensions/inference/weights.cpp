// Loads and saves a model's weights. See weights.h.
#include "extensions/inference/weights.h"

#include <filesystem>
#include <memory>

#include "base/suggest.h"
#include "checkpoint/checkpoint.h"
#include "data/files.h"
#include "data/safetensors.h"
#include "dist/texts.h"
#include "extensions/checkpoint_tools/checkpoint_tools.h"
#include "extensions/hugging_face/config.h"
#include "extensions/hugging_face/pretrained.h"
#include "extensions/hugging_face/weights.h"
#include "nn/init.h"

namespace lockstep::inference {

namespace {

namespace fs = std::filesystem;

/// Runs a function on rank 0 only; its Error is raised on all ranks.
void together(dist::ProcessGroup* group, const char* what, const std::function<void()>& at_rank_0) {
  std::string error;
  try {
    if (!group || group->rank() == 0) at_rank_0();
  } catch (const dist::DistError&) {
    throw;  // all ranks raise it
  } catch (const std::exception& problem) { error = *problem.what() ? problem.what() : "an error; please report it"; }
  if (group && group->size() > 1) error = dist::broadcast_text(error, 0, *group, what);
  LOCKSTEP_CHECK(error.empty(), error);
}

/// Gives the model's parameters the values of a Lockstep checkpoint. Only rank 0 checks the hashes of the files.
void start_with_saved(nn::Module& model, const std::string& folder, dist::ProcessGroup* group,
                      const std::function<void(const std::string&)>& warn) {
  const std::string below = fs::exists(folder + "/checkpoints") ? folder + "/checkpoints" : folder;
  const auto info = checkpoints::inspect(below, group, {.warn = warn});
  LOCKSTEP_CHECK(info, "[init_inference] checkpoint: ", folder,
                 ": expected model.safetensors (Hugging Face's), or checkpoints; it holds neither; check the path");
  together(group, "hashes of a checkpoint", [&] {
    const auto problems = checkpoints::verify_checkpoint(checkpoints::open_checkpoint(info->path, "", warn));
    LOCKSTEP_CHECK(problems.empty(), "[init_inference] checkpoint: ", problems.empty() ? "" : problems[0],
                   "; copy the checkpoint again");
  });
  std::vector<std::string> missing;
  const auto named = model.named_parameters();
  for (const nn::NamedParameter& p : named) {
    const auto found = info->tensors.find("model." + p.name);
    if (found == info->tensors.end()) missing.push_back(p.name);
    else
      LOCKSTEP_CHECK(found->second.shape == p.variable.shape(), "[init_inference] checkpoint: ", info->path,
                     ": expected model.", p.name, " of shape ", p.variable.shape(), ", got ", found->second.shape,
                     "; give a checkpoint of this model");
  }
  const auto buffers = model.named_buffers();
  for (const nn::NamedBuffer& b : buffers)
    if (!info->tensors.contains("model." + b.name)) missing.push_back(b.name);
  LOCKSTEP_CHECK(missing.empty(), "[init_inference] checkpoint: ", info->path,
                 ": missing parameters: ", list_names(missing, 5), "; give a checkpoint of this model");
  for (const nn::NamedParameter& p : named) {
    const std::string name = "model." + p.name;
    const auto& saved = info->tensors.at(name);
    nn::start_with(p.variable, name + " of a checkpoint",
                   [path = info->path, name, shape = saved.shape, dtype = saved.dtype] {
                     const Tensor tensor = empty(shape, {.dtype = dtype, .device = cpu});
                     checkpoints::load(path, {checkpoints::full(name, tensor)}, nullptr,
                                       {.verify = checkpoints::Verify::sizes, .strict = false});
                     return tensor;
                   });
  }
  std::vector<checkpoints::Piece> pieces;
  for (const nn::NamedBuffer& b : buffers) pieces.push_back(checkpoints::full("model." + b.name, b.tensor));
  if (!pieces.empty())
    checkpoints::load(info->path, pieces, nullptr,
                      {.verify = checkpoints::Verify::sizes, .convert = true, .strict = false});
}

/// Gives the parameters the values in safetensors files with Lockstep's names, "model.NAME" or "NAME". Returns false
/// if the files use other names, such as Hugging Face's.
bool start_with_ours(nn::Module& model, const std::vector<std::string>& paths) {
  const auto files = std::make_shared<const nn::Weights>(nn::Weights::of_files(paths, "model."));
  const auto named = model.named_parameters();
  if (named.empty() || !files->contains(named[0].name)) return false;
  const std::string prefix = files->entry(named[0].name).name == named[0].name ? "" : "model.";
  const auto check = [&](const std::string& own, const Shape& wanted) {
    const std::string name = prefix + own;
    LOCKSTEP_CHECK(files->contains(name), "[init_inference] checkpoint: expected a tensor ", name, " in one of ",
                   paths.size(), " files (", paths[0],
                   " ...), there is none; name all files, or build the model with their sizes");
    const Shape& shape = files->entry(name).shape;
    LOCKSTEP_CHECK(shape == wanted, "[init_inference] checkpoint: ", paths[0], ": expected ", name, " of shape ",
                   wanted, ", got ", shape, "; give weights of this model");
  };
  const auto buffers = model.named_buffers();
  for (const nn::NamedParameter& p : named) check(p.name, p.variable.shape());
  for (const nn::NamedBuffer& b : buffers) check(b.name, b.tensor.shape());
  for (const nn::NamedParameter& p : named)
    nn::start_with(p.variable, prefix + p.name + " of a file", [files, name = p.name] { return files->tensor(name); });
  for (const nn::NamedBuffer& b : buffers)
    Tensor(b.tensor).copy_(files->tensor(b.name).to(b.tensor.dtype()).to(b.tensor.device()));
  return true;
}

/// Loads quantized weights. Returns false if the file has none.
bool load_codes(nn::Module& model, const std::string& path) {
  const auto file = data::SafeTensors::open(path);
  if (!file.metadata().count("quantization")) return false;
  nn::State state;
  for (const std::string& name : file.names()) state.emplace_back(name, file.tensor(name));
  nn::fill(model);
  nn::load_quantized(model, state, file.metadata());
  return true;
}

}  // namespace

void start_with_checkpoint(nn::Module& model, const std::vector<std::string>& files, dist::ProcessGroup* group,
                           const std::function<void(const std::string&)>& warn) {
  for (const std::string& file : files) {
    LOCKSTEP_CHECK(fs::exists(file), "[init_inference] checkpoint: ", file, ": no such file or folder; check the path");
    LOCKSTEP_CHECK(fs::is_directory(file) ? files.size() == 1 : file.ends_with(".safetensors"),
                   "[init_inference] checkpoint: expected one folder, or safetensors files, got ", file);
  }
  auto* const gpt = dynamic_cast<nn::GPT*>(&model);
  const auto start_with_files = [&](const std::vector<std::string>& paths) {
    if (paths.size() == 1 && load_codes(model, paths[0])) return;
    if (start_with_ours(model, paths)) return;
    LOCKSTEP_CHECK(gpt, "[init_inference] checkpoint: ", paths[0], ": expected the names of this ", model.kind(),
                   ", such as ", model.named_parameters().empty() ? "none" : model.named_parameters()[0].name,
                   "; write them with save_mp_checkpoint_path, or rename the tensors");
    nn::load_pretrained(*gpt, paths);
  };
  if (!fs::is_directory(files[0])) {
    start_with_files(files);
  } else if (const std::string codes = files[0] + "/" + codes_file; fs::exists(codes)) {
    LOCKSTEP_CHECK(load_codes(model, codes), "[init_inference] checkpoint: ", codes,
                   " lacks the metadata of quantized weights; write it again with save_mp_checkpoint_path");
  } else if (gpt && nn::is_pretrained(files[0])) {
    nn::load_pretrained(*gpt, files[0]);
  } else if (const std::string file = files[0] + "/model.safetensors"; !gpt && fs::exists(file)) {
    start_with_files({file});
  } else {
    start_with_saved(model, files[0], group, warn);
  }
}

void save_model(const nn::GPT::Options& options, const nn::State& state, bool has_experts, const std::string& folder,
                const std::string& tokenizer, dist::ProcessGroup* group) {
  if (has_experts) {
    checkpoints::Contents contents;
    for (const auto& [name, tensor] : state) contents.pieces.push_back(checkpoints::full("model." + name, tensor));
    checkpoints::Saver(folder, group).save("inference", contents);
    return;
  }
  together(group, "a model is saved", [&] {
    std::unique_ptr<nn::GPT> model;
    {
      const nn::BuildEmpty scope;
      model = std::make_unique<nn::GPT>(options);
    }
    const auto named = model->named_parameters();
    for (size_t i = 0; i < named.size(); ++i) Variable(named[i].variable).set_tensor(state[i].second);
    nn::save_pretrained(*model, folder, {.tokenizer = tokenizer});
  });
}

void save_module(nn::Module& model, const nn::State& state, const std::string& folder, dist::ProcessGroup* group) {
  together(group, "a model is saved", [&] {
    fs::create_directories(folder);
    const bool in_codes = nn::is_quantized(model);
    data::save_safetensors(folder + "/" + (in_codes ? codes_file : "model.safetensors"), state,
                           nn::quantized_metadata(model));
  });
}

void save_codes(nn::GPT& model, const nn::State& state, const std::string& folder, dist::ProcessGroup* group) {
  together(group, "a model is saved", [&] {
    fs::create_directories(folder);
    data::save_safetensors(folder + "/" + codes_file, state, nn::quantized_metadata(model));
    const std::string config = nn::config_of(model.o, model.norm.weight.dtype()).dump(2);
    data::write_atomically(folder + "/config.json", config + "\n");
  });
}

}  // namespace lockstep::inference
