// Without CUDA at hand when this was built, there is only a reason to give.
#include "execute/cuda/cuda_device.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include <fmt/format.h>

#include "sim/base/error.h"

namespace stepcast {

int cuda_device_of_process(int rank) {
  int number = rank;
  for (const char* name : {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"}) {
    const char* text = std::getenv(name);
    if (text == nullptr) continue;
    const std::string_view word(text);
    int local = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), local);
    if (error != std::errc() || local < 0) continue;
    number = local;
    break;
  }
  return number % std::max(1, cuda_devices());
}

std::string cuda_unsupported(const Job& job) {
  const auto of_context = [](const Op& op) {
    const auto* attention = std::get_if<Attention>(&op);
    return std::holds_alternative<ShareHeads>(op) ||
           (attention != nullptr && attention->source != KeySource::kOwn);
  };
  const auto of_experts = [](const Op& op) {
    return std::holds_alternative<Route>(op) || std::holds_alternative<Permute>(op) ||
           std::holds_alternative<OwnSlots>(op);
  };
  if (std::any_of(job.ops.begin(), job.ops.end(), of_experts)) {
    return "experts are not carried out on GPUs yet; say --device cpu";
  }
  const auto sliding = [](const Op& op) {
    const auto* attention = std::get_if<Attention>(&op);
    return attention != nullptr && attention->window > 0;
  };
  if (std::any_of(job.ops.begin(), job.ops.end(), sliding)) {
    return "sliding windows are not carried out on GPUs yet; say --device cpu";
  }
  const auto of_gpt_oss = [](const Op& op) {
    const auto* attention = std::get_if<Attention>(&op);
    const auto* pointwise = std::get_if<Pointwise>(&op);
    return (attention != nullptr && attention->sinks) ||
           (pointwise != nullptr && pointwise->kind == PointwiseKind::kSwigluOai);
  };
  if (std::any_of(job.ops.begin(), job.ops.end(), of_gpt_oss)) {
    return "attention's sinks and gpt-oss's activation are not carried out on GPUs yet; say "
           "--device cpu";
  }
  const auto latent = [](const Op& op) { return std::holds_alternative<LatentKeys>(op); };
  if (std::any_of(job.ops.begin(), job.ops.end(), latent)) {
    return "latent attention is not carried out on GPUs yet; say --device cpu";
  }
  const bool whole = std::none_of(job.ops.begin(), job.ops.end(), of_context);
  if (whole && job.mesh.degree(Axis::kContext) == 1) return "";
  return "context parallelism is not carried out on GPUs yet; set parallel.context to 1, or say "
         "--device cpu";
}

void ClockRange::add(const CudaMachine& look) {
  if (look.clock_mhz == 0) return;  // NVML is not there
  least_mhz = looks == 0 ? look.clock_mhz : std::min(least_mhz, look.clock_mhz);
  most_mhz = std::max(most_mhz, look.clock_mhz);
  limit_mhz = look.clock_mhz_max;
  limit_watts = look.power_limit_watts;
  ++looks;
  mean_mhz += (static_cast<double>(look.clock_mhz) - mean_mhz) / static_cast<double>(looks);
  most_watts = std::max(most_watts, look.power_watts);
  most_celsius = std::max(most_celsius, look.temperature_celsius);
  for (const std::string& reason : look.throttled_by) ++throttled_by[reason];
}

std::string to_text(const ClockRange& clocks) {
  if (clocks.looks == 0) return "";
  std::string text =
      fmt::format("{} to {} MHz, {:.0f} in the mean, of {}; up to {:.0f} W of {:.0f}, {} C",
                  clocks.least_mhz, clocks.most_mhz, clocks.mean_mhz, clocks.limit_mhz,
                  clocks.most_watts, clocks.limit_watts, clocks.most_celsius);
  for (const auto& [reason, count] : clocks.throttled_by) {
    text += fmt::format("; held down by {} in {:.0f} % of {} looks", reason,
                        100.0 * static_cast<double>(count) / static_cast<double>(clocks.looks),
                        clocks.looks);
  }
  return text;
}

#ifndef STEPCAST_CUDA

struct CudaWatch::Watcher {};
CudaWatch::CudaWatch(int) {}
CudaWatch::~CudaWatch() = default;
ClockRange CudaWatch::seen() const { return {}; }

std::string cuda_missing() {
  return "this stepcast was built without CUDA; install the CUDA toolkit (nvcc, cuBLASLt) and "
         "NCCL, "
         "and build again with --preset cuda";
}
int cuda_devices() { return 0; }
CudaMachine cuda_machine(int) { throw Error("cuda", cuda_missing()); }
CudaRun run_cuda_rank(const Job&, const ExecuteOptions&, const Corpus&, Transport&, int,
                      const CudaOptions&) {
  throw Error("cuda", cuda_missing());
}
std::vector<CudaRun> run_cuda_threads(const Job&, const ExecuteOptions&, const Corpus&,
                                      const CudaOptions&) {
  throw Error("cuda", cuda_missing());
}
std::unique_ptr<Bench> make_cuda_bench(const Job*, Transport&, int, const std::atomic<bool>&) {
  throw Error("cuda", cuda_missing());
}
void bench_cuda_threads(const Job&, const std::function<void(Bench&, Transport&)>&) {
  throw Error("cuda", cuda_missing());
}

#endif

}  // namespace stepcast
