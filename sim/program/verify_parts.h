// The three proofs that make up verify(), in the order in which they rest on each other. Internal
// to sim/program. Each returns "" or the first fault as one line.
#pragma once

#include <string>

#include "sim/program/program.h"

namespace stepcast {

// Numbers are in range, operands fit their op, streams and transfers fit their instruction.
std::string verify_tables(const Job& job);

// Tensors and events, one stage after the other. REQUIRES: verify_tables(job) is "".
std::string verify_lifetimes(const Job& job);

// Messages and collectives between stages, and no deadlock. REQUIRES: verify_tables(job) is "".
std::string verify_messages(const Job& job);

// What is wrong with the number of an op's operands; "" if nothing.
std::string operand_fault(const Op& op, int reads, int writes);

// "stage 2, call 5 (backward, chunk 0, micro-batch 3), instruction 17: ".
std::string place_text(const Job& job, std::size_t stage, std::size_t call,
                       std::size_t instruction);
// "%12 "layer1.q"".
std::string tensor_text(const Job& job, TensorId tensor);

}  // namespace stepcast
