// gpt: trains a GPT on a text, continues texts, and reads and writes Hugging Face's GPT-2 folders.
#include "apps/gpt/options.h"

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
  train.add_option("--batch", o.batch, "sequences of a micro-batch")->check(apps::whole(1, apps::most_size))->capture_default_str()->group(training);
  train.add_option("--steps", o.steps, "optimizer steps")->check(apps::whole(1, apps::most_steps))->capture_default_str()->group(training);
  train.add_option("--lr", o.lr, "peak learning rate of AdamW; linear warm-up, then cosine")->check(apps::number(0, 1e6))->capture_default_str()->group(training);
  train.add_option("--min-lr-ratio", o.min_lr_ratio, "last learning rate, as a part of --lr")->check(apps::number(0, 1))->capture_default_str()->group(training);
  train.add_option("--warmup", o.warmup, "warm-up steps")->check(apps::whole(0, apps::most_steps))->capture_default_str()->group(training);
  train.add_option("--weight-decay", o.weight_decay, "decoupled decay of matrices (not of biases and norms)")->check(apps::number(0, 1e6))->capture_default_str()->group(training);
  train.add_option("--betas", o.betas, "AdamW's two betas")->delimiter(',')->expected(2)->default_str("0.9,0.99")->group(training);
  train.add_option("--clip", o.clip, "largest norm of the gradient (0: no clipping)")->check(apps::number(0, 1e30))->capture_default_str()->group(training);
  train.add_option("--precision", o.precision, "of matrix products (tf32: on the CPU the same as f32)")->check(CLI::IsMember({"f32", "tf32", "bf16", "f16"}))->capture_default_str()->group(training);
  train.add_flag("--checkpoint-blocks", o.checkpoint_blocks, "recompute blocks in backward: less memory, a third more time")->group(training);
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
  train.callback([&] { o.common.parallel.identity = apps::identity_of(train); apps::gpt_train(o); });
  eval.callback([&] { apps::gpt_eval(o); });
  sample.callback([&] { apps::gpt_sample(o); });
  logits.callback([&] { apps::gpt_logits(o); });
  return apps::run_cli(app, argc, argv);
}
