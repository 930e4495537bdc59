// The proof that a Job means something, in three parts that stand in files of their own:
//   verify_tables     every number and operand list by itself; linear in the text
//   verify_lifetimes  tensors and events, each body once per state in which it is entered
//   verify_messages   all stages together, untimed; linear in the calls and their messages

#include "sim/program/text.h"
#include "sim/program/verify_parts.h"

namespace stepcast {

std::string verify(const Job& job) {
  std::string fault = verify_tables(job);
  if (fault.empty()) fault = verify_lifetimes(job);
  if (fault.empty()) fault = verify_messages(job);
  return fault;
}

std::string place_text(const Job& job, std::size_t stage, std::size_t call,
                       std::size_t instruction) {
  const Call& c = job.programs[stage].schedule[call];
  std::string text;
  append(text, "stage ", static_cast<std::int64_t>(stage), ", call ",
         static_cast<std::int64_t>(call), " (", job.bodies[static_cast<std::size_t>(c.body)].name);
  append(text, ", chunk ", c.chunk, ", micro-batch ", c.micro_batch, "), instruction ",
         static_cast<std::int64_t>(instruction), ": ");
  return text;
}

std::string tensor_text(const Job& job, TensorId tensor) {
  std::string text;
  append(text, '%', tensor, " \"",
         label_text(job, job.tensors[static_cast<std::size_t>(tensor)].label), '"');
  return text;
}

}  // namespace stepcast
