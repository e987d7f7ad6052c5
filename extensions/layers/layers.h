#pragma once
// Functions, losses and layers that few models need: #include <lockstep/layers.h>.
#include "extensions/layers/activations.h"
#include "extensions/layers/adaptive_softmax.h"
#include "extensions/layers/composed.h"
#include "extensions/layers/embedding_bag.h"
#include "extensions/layers/functional.h"
#include "extensions/layers/losses.h"
#include "extensions/layers/masked_attention.h"
#include "extensions/layers/norm.h"
#include "extensions/layers/search.h"
#include "extensions/layers/shape_layers.h"
#include "extensions/layers/similarity.h"
#include "extensions/layers/transformer.h"
