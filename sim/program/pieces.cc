// A search in the body's text from the collective on, or back.
#include "sim/program/pieces.h"

#include <algorithm>

#include "sim/base/error.h"

namespace stepcast {

namespace {

const Collective& collective_at(const Body& body, std::size_t index) {
  const auto* collective = std::get_if<Collective>(&body.code[index]);
  STEPCAST_CHECK(collective != nullptr, "a collective stands there");
  return *collective;
}

bool gathers(const Job& job, const Collective& collective) {
  const auto id = static_cast<std::size_t>(collective.transfer);
  return job.transfers[id].kind == TransferKind::kAllGather;
}

// Fills of new tensors may stand between.
bool is_product(const Job& job, const Instruction& instruction) {
  const auto* compute = std::get_if<Compute>(&instruction);
  return compute != nullptr &&
         std::holds_alternative<Gemm>(job.ops[static_cast<std::size_t>(compute->op)]);
}

}  // namespace

bool is_product_of_rows(const Gemm& product) {
  return product.role != GemmRole::kWeightGradient && product.batch == 1;
}

std::int32_t product_beside(const Job& job, const Body& body, std::size_t collective) {
  const auto here = body.code.begin() + static_cast<std::ptrdiff_t>(collective);
  const auto found_by = [&](const Instruction& i) { return is_product(job, i); };
  if (gathers(job, collective_at(body, collective))) {
    const auto found = std::find_if(here, body.code.end(), found_by);
    return found == body.code.end() ? -1 : static_cast<std::int32_t>(found - body.code.begin());
  }
  const auto found = std::find_if(std::make_reverse_iterator(here), body.code.rend(), found_by);
  return static_cast<std::int32_t>(body.code.rend() - found) - 1;
}

std::string pieces_fault(const Job& job, const Body& body, std::size_t collective) {
  const Collective& moved = collective_at(body, collective);
  const TransferKind kind = job.transfers[static_cast<std::size_t>(moved.transfer)].kind;
  if (kind != TransferKind::kAllGather && kind != TransferKind::kReduceScatter) {
    return "only an all-gather or a reduce-scatter is moved in pieces";
  }
  const std::int32_t beside = product_beside(job, body, collective);
  if (beside < 0) return "in pieces, but no product stands next to it";
  const auto& compute = std::get<Compute>(body.code[static_cast<std::size_t>(beside)]);
  const auto& product = std::get<Gemm>(job.ops[static_cast<std::size_t>(compute.op)]);
  if (!is_product_of_rows(product)) {
    return "in pieces, but the product next to it is not of rows of activations";
  }
  if (product.m % moved.pieces != 0) return "in pieces that do not divide the product's rows";
  const auto operand = [&](const Operands& operands, std::int32_t at) {
    return body.operands[static_cast<std::size_t>(operands.first + at)];
  };
  const bool gather = kind == TransferKind::kAllGather;
  const TensorId passed =
      gather ? operand(moved.operands, moved.operands.reads) : operand(moved.operands, 0);
  const TensorId taken =
      gather ? operand(compute.operands, 0) : operand(compute.operands, compute.operands.reads);
  if (passed != taken) return "in pieces, but the product next to it is of another tensor";
  return "";
}

Gemm part_of(const Gemm& product, std::int16_t pieces) {
  STEPCAST_CHECK(pieces > 0 && product.m % pieces == 0, "parts of a product are equal");
  Gemm part = product;
  part.m /= pieces;
  return part;
}

int pieces_moved(const Transfer& transfer, std::int16_t pieces) {
  return transfer.kind == TransferKind::kAllGather ? pieces - 1 : pieces;
}

Transfer piece_of(const Transfer& transfer, std::int16_t pieces) {
  const int moved = pieces_moved(transfer, pieces);
  STEPCAST_CHECK(moved > 0, "a piece is moved");
  Transfer piece = transfer;
  piece.bytes = Bytes((transfer.bytes.count + moved - 1) / moved);
  return piece;
}

}  // namespace stepcast
