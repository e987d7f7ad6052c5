// gpt: trains a GPT on a text, continues texts, and reads and writes Hugging Face's GPT-2 folders.
#include "apps/gpt/sharing.h"

int main(int argc, char** argv) {
  apps::GptOptions o;
  CLI::App app("A GPT that learns from a text and continues it", "gpt");
  CLI::App& train = *app.add_subcommand("train", "train on a text; the last part of it is kept for validation");
  CLI::App& eval = *app.add_subcommand("eval", "loss of a model on a text");
  CLI::App& sample = *app.add_subcommand("sample", "continue a prompt");
  CLI::App& logits = *app.add_subcommand("logits", "write a model's logits for given token ids (for comparing with other programs)");

  const std::string data = "Data", model = "Model", training = "Training", output = "Output";
  train.add_option("--text", o.text, "text to learn (default: this repository's own sources and docs)")->group(data);
  train.add_option("--tokenizer", o.tokenizer, "folder with GPT-2's tokenizer.json, or vocab.json and merges.txt (default: bytes)")->group(data);
  train.add_option("--validation", o.validation, "part of the text, from its end, kept for validation")->check(apps::number(0, 1))->capture_default_str()->group(data);
  train.add_option("--layers", o.layers, "transformer blocks")->check(apps::whole(1, 10000))->capture_default_str()->group(model);
  train.add_option("--width", o.width, "size of the residual stream")->check(apps::whole(1, apps::most_size))->capture_default_str()->group(model);
  train.add_option("--heads", o.heads, "attention heads")->check(apps::whole(1, apps::most_size))->capture_default_str()->group(model);
  train.add_option("--context", o.context, "tokens that the model sees")->check(apps::whole(1, apps::most_size))->capture_default_str()->group(model);
  train.add_option("--dropout", o.dropout, "probability of dropout")->check(apps::number(0, 1))->capture_default_str()->group(model);
  train.add_option("--init", o.init, "Hugging Face GPT-2 folder to start from, with its sizes")->group(model);
  for (const char* size : {"--layers", "--width", "--heads", "--context", "--dropout"}) train.get_option("--init")->excludes(size);
  train.add_option("--config", o.config, "DeepSpeed's configuration file: optimizer, schedule, precision, ZeRO, batch sizes (see lockstep config)")->group(training);
  train.add_option("--batch", o.batch, "sequences of a micro-batch")->check(apps::whole(1, apps::most_size))->capture_default_str()->group(training);
  train.add_option("--steps", o.steps, "optimizer steps")->check(apps::whole(1, apps::most_steps))->capture_default_str()->group(training);
  train.add_option("--lr", o.lr, "peak learning rate; linear warm-up, then cosine")->check(apps::number(0, 1e6))->capture_default_str()->group(training);
  train.add_option("--min-lr-ratio", o.min_lr_ratio, "last learning rate, as a part of --lr")->check(apps::number(0, 1))->capture_default_str()->group(training);
  train.add_option("--warmup", o.warmup, "warm-up steps")->check(apps::whole(0, apps::most_steps))->capture_default_str()->group(training);
  train.add_option("--weight-decay", o.weight_decay, "decoupled decay of matrices (not of biases and norms)")->check(apps::number(0, 1e6))->capture_default_str()->group(training);
  train.add_option("--betas", o.betas, "the optimizer's two betas")->delimiter(',')->expected(2)->default_str("0.9,0.99")->group(training);
  train.add_option("--clip", o.clip, "largest norm of the gradient (0: no clipping)")->check(apps::number(0, 1e30))->capture_default_str()->group(training);
  train.add_option("--precision", o.precision, "of matrix products (tf32: on the CPU the same as f32)")->check(CLI::IsMember({"f32", "tf32", "bf16", "f16"}))->capture_default_str()->group(training);
  apps::add_optimizer_options(train, o.optimizer, training);
  train.add_flag("--checkpoint-blocks", o.checkpoint_blocks, "recompute blocks in backward: less memory, a third more time")->group(training);
  train.add_option("--checkpoint-every", o.checkpoints.every, "only the first of so many blocks")->check(apps::whole(1, 10000))->capture_default_str()->group(training);
  train.add_flag("--checkpoint-cpu", o.checkpoints.cpu_checkpointing, "their inputs wait in host memory")->group(training);
  train.add_flag("--checkpoint-contiguous", o.checkpoints.contiguous_memory_optimization, "their inputs wait in one buffer made in advance")->group(training);
  train.add_flag("--checkpoint-profile", o.checkpoints.profile, "print how long their two runs take")->group(training);
  for (const char* option : {"--checkpoint-every", "--checkpoint-cpu", "--checkpoint-contiguous", "--checkpoint-profile"}) train.get_option(option)->needs("--checkpoint-blocks");
  const std::string pipeline = "Pipeline";
  auto* stages = train.add_option("--pipeline", o.pipeline, "stages of the model, each on a rank; the other ranks train copies of them (--accumulate: micro-batches of each copy)")->check(apps::whole(1, 4096))->group(pipeline);
  train.add_option("--plan", o.plan, "how ranks share the work: dpN copies, ppN stages, cpN parts of sequences, tpN slices of layers, epN of dp share experts, zeroN among copies; dp2+pp2+tp2+zero1")->excludes(stages)->group(pipeline);
  train.add_option("--schedule", o.schedule, "of the pipeline: gpipe, 1f1b, interleaved, zb-h1, dualpipe-v")->capture_default_str()->group(pipeline);
  train.add_option("--chunks", o.chunks, "of layers at each rank (interleaved; default 2)")->check(apps::whole(1, 64))->group(pipeline);
  train.add_option("--split", o.split, "where to cut: parameters, uniform, or type:PATTERN")->capture_default_str()->group(pipeline);
  const std::string tensor = "Tensor parallelism";
  auto* slices = train.add_option("--tensor-parallel", o.tensor_parallel, "ranks that share each copy of the model, every matrix cut over them; the other ranks train further copies")->check(apps::whole(1, 4096))->excludes(stages)->excludes(train.get_option("--plan"))->group(tensor);
  train.add_flag("--sequence-parallel", o.sequence_parallel, "they also share the activations between the matrices, each a part of the sequence")->needs(slices)->group(tensor);
  apps::add_sharing_options(train, o);
  train.add_option("--eval-every", o.eval_every, "steps between looks at the validation loss")->check(apps::whole(1, apps::most_steps))->capture_default_str()->group(output);
  train.add_option("--eval-batches", o.eval_batches, "batches of such a look (the last one takes all)")->check(apps::whole(1, apps::most_steps))->capture_default_str()->group(output);
  train.add_option("--save-every", o.save_every, "steps between checkpoints in --out (0: at the end and on Ctrl-C)")->check(apps::whole(0, apps::most_steps))->capture_default_str()->group(output);
  train.add_option("--export", o.export_to, "write the trained model as a Hugging Face folder")->group(output);

  for (CLI::App* sub : {&eval, &sample, &logits}) sub->add_option("model", o.model, "folder of a run, checkpoint.safetensors, or Hugging Face GPT-2 folder")->required();
  eval.add_option("--text", o.text, "text (default: this repository's own sources and docs)");
  eval.add_option("--batch", o.batch, "sequences at a time")->check(apps::whole(1, apps::most_size))->capture_default_str();
  sample.add_option("--prompt", o.prompt, "text to continue (default: a new line)");
  sample.add_option("--ids", o.ids, "token ids to continue instead of a text: 5,17,3 (prints ids)");
  sample.add_option("--tokens", o.tokens, "tokens to add")->check(apps::whole(1, apps::most_steps))->capture_default_str();
  sample.add_option("--temperature", o.sampling.temperature, "0 takes the likeliest token; higher is wilder")->check(apps::number(0, 1e6))->capture_default_str();
  sample.add_option("--top-k", o.sampling.top_k, "choose among the k likeliest (0: all)")->check(apps::whole(0, apps::most_size))->capture_default_str();
  sample.add_option("--top-p", o.sampling.top_p, "choose among the likeliest that make up this probability")->check(apps::number(0, 1))->capture_default_str();
  sample.add_flag("--greedy", o.greedy, "the likeliest token each time");
  logits.add_option("--ids", o.ids, "token ids: 5,17,3")->required();
  logits.add_option("--to", o.logits_out, "safetensors file to write")->required();

  for (CLI::App* sub : {&train, &eval, &sample, &logits}) apps::add_common_options(*sub, o.common, sub == &train);
  train.callback([&] {
    o.common.parallel.identity = apps::identity_of(train);
    for (const CLI::Option* option : train.get_options()) if (option->count() > 0) o.given.insert(option->get_name());
    apps::gpt_train(o);
  });
  eval.callback([&] { apps::gpt_eval(o); });
  sample.callback([&] { apps::gpt_sample(o); });
  logits.callback([&] { apps::gpt_logits(o); });
  return apps::run_cli(app, argc, argv);
}
