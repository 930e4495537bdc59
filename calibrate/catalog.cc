// A walk over the bodies that are called, each once as a first and once as a later micro-batch's,
// times how often it is.
#include "calibrate/catalog.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "sim/base/error.h"

namespace stepcast {

namespace {

std::size_t combine(std::size_t seed, std::size_t value) {
  return seed ^ (value + 0x9e3779b97f4a7c15u + (seed << 6) + (seed >> 2));
}

WorkKey transfer_key(const Job& job, TransferId id, bool receives) {
  const Transfer& transfer = job.transfers[static_cast<std::size_t>(id)];
  const int stages = job.mesh.stages();
  const int ranks = transfer.ends_only ? std::min(2, stages) : job.mesh.group_size(transfer.axes);
  const bool shifts =
      transfer.kind == TransferKind::kSendReceive && !transfer.axes.has(Axis::kPipeline);
  return TransferKey{transfer.kind, receives, ranks, transfer.bytes, shifts};
}

bool takes_part(const Instruction& instruction) {
  return match(
      instruction, [](const Compute&) { return true; }, [](const Collective&) { return true; },
      [](const Send&) { return true; }, [](const Receive&) { return true; },
      [](const auto&) { return false; });
}

}  // namespace

std::string transfer_key_name(const TransferKey& key) {
  if (key.shifts) return "shift";
  if (key.kind == TransferKind::kSendReceive) return key.receives ? "receive" : "send";
  std::string name(transfer_name(key.kind));
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

std::string to_text(const WorkKey& key) {
  return match(
      key,
      [](const KernelKey& kernel) {
        return fmt::format("{}, {}, {} micro-batch", to_text(kernel.op), phase_name(kernel.phase),
                           kernel.first ? "first" : "later");
      },
      [](const TransferKey& transfer) {
        return fmt::format("{} of {} bytes over {} ranks", transfer_key_name(transfer),
                           transfer.bytes.count, transfer.ranks);
      });
}

WorkKey work_key(const Job& job, const Call& call, const Instruction& instruction) {
  return match(
      instruction,
      [&](const Compute& c) -> WorkKey {
        return KernelKey{job.ops[static_cast<std::size_t>(c.op)], c.phase, call.micro_batch == 0};
      },
      [&](const Collective& c) -> WorkKey { return transfer_key(job, c.transfer, false); },
      [&](const Send& s) -> WorkKey { return transfer_key(job, s.transfer, false); },
      [&](const Receive& r) -> WorkKey { return transfer_key(job, r.transfer, true); },
      [](const auto&) -> WorkKey { STEPCAST_CHECK(false, "an instruction that takes no time"); });
}

std::size_t Catalog::Hash::operator()(const WorkKey& key) const {
  return match(
      key,
      [](const KernelKey& kernel) {
        const auto phase = static_cast<std::size_t>(kernel.phase);
        return combine(hash_value(kernel.op), 2 * phase + (kernel.first ? 1 : 0));
      },
      [](const TransferKey& transfer) {
        const auto kind = 4 * static_cast<std::size_t>(transfer.kind) + (transfer.shifts ? 2 : 0) +
                          (transfer.receives ? 1 : 0);
        return combine(combine(static_cast<std::size_t>(transfer.bytes.count), kind),
                       static_cast<std::size_t>(transfer.ranks));
      });
}

std::optional<std::size_t> Catalog::find(const WorkKey& key) const {
  const auto found = index_.find(key);
  return found == index_.end() ? std::nullopt : std::optional(found->second);
}

std::size_t Catalog::index(const WorkKey& key) {
  const auto [found, fresh] = index_.emplace(key, keys_.size());
  if (fresh) {
    keys_.push_back(key);
    instances_.push_back(0);
  }
  return found->second;
}

void Catalog::add(const Job& job) {
  const std::int64_t ranks = job.mesh.ranks() / job.mesh.stages();
  std::map<std::pair<BodyId, bool>, std::int64_t> calls;  // of a body in first and in later ones
  for (const Program& program : job.programs) {
    for (const Call& call : program.schedule) ++calls[{call.body, call.micro_batch == 0}];
  }
  for (const auto& [called, count] : calls) {
    const Call call{called.first, 0, called.second ? 0 : 1};
    for (const Instruction& instruction : job.bodies[static_cast<std::size_t>(call.body)].code) {
      if (!takes_part(instruction)) continue;
      const std::size_t i = index(work_key(job, call, instruction));
      instances_[i] += count * ranks;
    }
  }
}

}  // namespace stepcast
