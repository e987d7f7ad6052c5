#pragma once
// Everything in nn/.
#include "nn/activation.h"
#include "nn/attention.h"
#include "nn/build_empty.h"
#include "nn/container.h"
#include "nn/conv.h"
#include "nn/cut.h"
#include "nn/init.h"
#include "nn/layer_list.h"
#include "nn/linear.h"
#include "nn/models/gpt.h"
#include "nn/module.h"
#include "nn/norm.h"
