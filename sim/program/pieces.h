// Collectives in pieces (Collective::pieces): which product goes on beside one, and what a part of
// it and a piece of what is moved are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "sim/program/program.h"

namespace stepcast {

inline constexpr std::int16_t kPiecesMax = 64;

// A linear layer's product on rows of activations: its parts are rows.
bool is_product_of_rows(const Gemm& product);

// Index of the product's Compute in the body's code; -1 where no product stands on that side.
// REQUIRES: code[collective] is an all-gather or a reduce-scatter. O(distance).
std::int32_t product_beside(const Job& job, const Body& body, std::size_t collective);

// "" if code[collective] may be in pieces: its kind, and a linear layer's product on the
// activations that it moves, with rows for as many parts. O(distance).
std::string pieces_fault(const Job& job, const Body& body, std::size_t collective);

// A part of the product: of its rows, one in n. REQUIRES: n divides them.
Gemm part_of(const Gemm& product, std::int16_t pieces);

// How many pieces are moved, and one of them, rounded up.
int pieces_moved(const Transfer& transfer, std::int16_t pieces);
Transfer piece_of(const Transfer& transfer, std::int16_t pieces);

}  // namespace stepcast
