#pragma once
// Hugging Face: folders of models and tokenizers, and the interfaces of accelerate and of Transformers' Trainer.
#include "extensions/hugging_face/accelerator.h"
#include "extensions/hugging_face/arguments.h"
#include "extensions/hugging_face/columns.h"
#include "extensions/hugging_face/config.h"
#include "extensions/hugging_face/format.h"
#include "extensions/hugging_face/names.h"
#include "extensions/hugging_face/padding.h"
#include "extensions/hugging_face/pretrained.h"
#include "extensions/hugging_face/tokenizer.h"
#include "extensions/hugging_face/weights.h"
