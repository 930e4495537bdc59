// Stack: what the layers save for backward where they are one loop (jax.lax.scan).
//
// A loop over layers keeps each saved activation of all of them in one tensor. Kernels of a library
// (a matrix product) write where they are told, not into a slice of another tensor, so the result
// is copied there once it is made (NVIDIA/JAX-Toolbox, docs/frameworks/maxtext/README.md: "extra
// copies introduced by DUS", XLA's dynamic-update-slice). Backward reads slices where they are.
#pragma once

#include "models/backward.h"

namespace stepcast {

// Every saved activation is copied, behind the last forward node that writes it (the block's input
// in front of all), and the copy is kept in its stead. Values of 8 bits (masks, copies for 8-bit
// products) stay as they are. Cost: nodes times saved values.
void stack_saved(Differentiated& derived);

}  // namespace stepcast
