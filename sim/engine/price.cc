// Prices: every distinct Op and Transfer of a Job once, rounded to picoseconds here and nowhere
// else, and every Op once more beside the transfers of each stream. Cost: linear in Job::ops times
// streams in use, Job::transfers and the text of the bodies.
#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "sim/base/error.h"
#include "sim/cost/cost.h"
#include "sim/cost/timed.h"
#include "sim/engine/overlap.h"
#include "sim/engine/pace.h"
#include "sim/engine/simulate.h"
#include "sim/hardware/profile.h"
#include "sim/network/measured.h"
#include "sim/network/network.h"
#include "sim/program/pieces.h"

namespace stepcast {
namespace {

constexpr Seconds kLongest{9e6};  // what fits into a Duration

Duration rounded(Seconds time, const std::string& what) {
  STEPCAST_CHECK(!std::isnan(time.value) && time >= Seconds(0), what);
  if (time < kLongest) return to_duration(time);
  throw Error("cluster", what + " takes longer than 100 days; check its rates and latencies");
}

// Bytes that pass through memory for each byte on a wire. A user's A100 with an all-gather beside
// lost more than this gives (NVIDIA/nccl#1428): products and attention took 1.8 times as long,
// elementwise kernels 2.5 times, where this says 1.3 and 1.4. One report does not say why.
constexpr double kMemoryBytes = 2.5;
// The host's time for a fill within a pass: ATen's dispatch and cudaLaunchKernel, a microsecond or
// three each, in the midst of another op's call; a framework's Python and autograd pass once for
// both. An assumption, from what profiles of eager PyTorch commonly show.
constexpr Seconds kFillLaunch{5e-6};
constexpr int kMessageBlocks = 2;     // of a send and whatever else's channels are not known

// Through which port a transfer of the Job goes.
enum class Port : std::uint8_t { kNone, kInNode, kBetweenNodes };

std::vector<Port> ports_of(const Job& job, const Cluster& cluster) {
  std::vector<Port> ports;
  for (const Transfer& transfer : job.transfers) {
    if (sent_bytes(transfer, job.mesh) == Bytes(0)) {
      ports.push_back(Port::kNone);
    } else {
      const int nodes = place(job.mesh, transfer.axes, transfer.ends_only, cluster).nodes;
      ports.push_back(nodes > 1 ? Port::kBetweenNodes : Port::kInNode);
    }
  }
  return ports;
}

// By stream: the transfer with the most bytes on it; -1 where nothing is sent.
std::array<TransferId, kStreams> largest_transfers(const Job& job, const std::vector<Port>& ports) {
  std::array<TransferId, kStreams> largest;
  largest.fill(-1);
  const auto see = [&](Stream stream, TransferId id) {
    const auto t = static_cast<std::size_t>(id);
    if (stream == Stream::kCompute || ports[t] == Port::kNone) return;
    TransferId& known = largest[static_cast<std::size_t>(stream)];
    if (known < 0 ||
        job.transfers[t].bytes > job.transfers[static_cast<std::size_t>(known)].bytes) {
      known = id;
    }
  };
  for (const Body& body : job.bodies) {
    for (const Instruction& instruction : body.code) {
      if (const auto* c = std::get_if<Collective>(&instruction)) see(c->stream, c->transfer);
      if (const auto* s = std::get_if<Send>(&instruction)) see(s->stream, s->transfer);
    }
  }
  return largest;
}

// What a kernel beside the transfer has to do without.
Setting beside_transfer(const Job& job, const Transfer& transfer, const TransferChoice& choice,
                        const Device& device) {
  Setting setting;
  if (choice.time <= Seconds(0)) return setting;
  const double wire =
      static_cast<double>(sent_bytes(transfer, job.mesh).count) / choice.time.value;
  setting.multiprocessors_taken = choice.channels > 0 ? choice.channels : kMessageBlocks;
  setting.memory_taken =
      kMemoryBytes * wire / (device.memory_bandwidth.value * device.kernels.memory);
  return setting;
}

// What the cluster's profile has measured of a kernel beside such a transfer; null: nothing.
const BesidePoint* measured_beside(std::string_view kernel, const Transfer& transfer,
                                   const Mesh& mesh, const Cluster& cluster) {
  if (cluster.profile == nullptr || cluster.profile->probes.beside.empty()) return nullptr;
  const Placement p = place(mesh, transfer.axes, transfer.ends_only, cluster);
  return find_beside(cluster.profile->probes, kernel, collective_name(transfer.kind), p.ranks,
                     p.nodes, p.groups_per_node);
}

// Transfers that the Job lets compute run beside take longer by what was measured.
void slow_transfers(const Job& job, const Cluster& cluster, Prices& prices) {
  const std::vector<ComputeBeside> compute = compute_beside(job, prices);
  for (std::size_t t = 0; t < job.transfers.size(); ++t) {
    const auto cost = [&](std::string_view kernel) {
      const BesidePoint* point = measured_beside(kernel, job.transfers[t], job.mesh, cluster);
      return point == nullptr ? 0 : std::max(1.0, point->collective_factor) - 1;
    };
    const double products = compute[t].products;
    const double factor =
        1 + compute[t].share * (products * cost("product") + (1 - products) * cost("memory"));
    prices.transfers[t] = rounded(to_seconds(prices.transfers[t]) * factor, "a transfer");
  }
}

// `alone` and `choices`: of the Job's ops and transfers.
std::vector<Beside> price_beside(const Job& job, const Cluster& cluster,
                                 const std::vector<Seconds>& alone,
                                 const std::vector<TransferChoice>& choices) {
  const std::vector<Port> ports = ports_of(job, cluster);
  const std::array<TransferId, kStreams> largest = largest_transfers(job, ports);
  std::vector<Beside> all;
  for (std::size_t stream = 0; stream < largest.size(); ++stream) {
    if (largest[stream] < 0) continue;
    const auto id = static_cast<std::size_t>(largest[stream]);
    const Setting setting =
        beside_transfer(job, job.transfers[id], choices[id], cluster.device);
    Beside beside;
    beside.stream = static_cast<Stream>(stream);
    for (std::size_t op = 0; op < job.ops.size(); ++op) {
      const BesidePoint* measured =
          measured_beside(beside_kernel(job.ops[op]), job.transfers[id], job.mesh, cluster);
      const double factor = measured != nullptr
                                ? measured->kernel_factor
                                : op_cost(job.ops[op], cluster.device, setting).time / alone[op];
      beside.ops.push_back(std::max(1.0, factor));
    }
    for (const Port port : ports) beside.transfers.push_back(port == ports[id] ? 2 : 1);
    all.push_back(std::move(beside));
  }
  return all;
}

// How many ranks take turns on a core, where there are more of them than cores.
double turns(const Job& job, const Cluster& cluster) {
  if (cluster.box.cores == 0) return 1;
  const int ranks = std::min(job.mesh.ranks(), cluster.devices_per_node);
  return std::max(1.0, static_cast<double>(ranks) / cluster.box.cores);
}

// Kernels by their place, as far as timed work tells them; the longest time of each op is its own.
void place_kernels(const Job& job, const Cluster& cluster, Prices& prices) {
  prices.placed.resize(job.ops.size() * 2 * kPhases);
  std::vector<bool> known(prices.placed.size(), false);
  std::vector<PlacedPrice> longest(job.ops.size());
  for (const Body& body : job.bodies) {
    for (const Instruction& instruction : body.code) {
      const auto* compute = std::get_if<Compute>(&instruction);
      if (compute == nullptr) continue;
      const auto op = static_cast<std::size_t>(compute->op);
      for (const bool first : {true, false}) {
        const std::size_t row = placed_row(compute->op, compute->phase, first);
        if (known[row]) continue;
        known[row] = true;
        const auto cost =
            timed_cost(job.ops[op], {phase_name(compute->phase), first, job.mesh.ranks()},
                       *cluster.profile, cluster.device);
        prices.placed[row] = {prices.ops[op], prices.basis[op]};
        if (cost) prices.placed[row] = {rounded(cost->time, to_text(job.ops[op])), cost->basis};
        if (prices.placed[row].time > longest[op].time) longest[op] = prices.placed[row];
      }
    }
  }
  for (std::size_t op = 0; op < longest.size(); ++op) {
    if (longest[op].time == Duration()) continue;  // of no instruction
    prices.ops[op] = longest[op].time;
    prices.basis[op] = longest[op].basis;
  }
}

// By transfer: whether it is moved in pieces anywhere. What moves pieces (userbuffers, symmetric
// memory) moves the same whole, too, where no product waits for it. The head's and the embedding's
// exchange is the same transfer as a layer's and comes along, though it is NCCL's.
std::vector<bool> copied_transfers(const Job& job) {
  std::vector<bool> copied(job.transfers.size());
  for (const Body& body : job.bodies) {
    for (const Instruction& instruction : body.code) {
      const auto* c = std::get_if<Collective>(&instruction);
      if (c != nullptr && c->pieces > 1) copied[static_cast<std::size_t>(c->transfer)] = true;
    }
  }
  return copied;
}

// Parts are issued over several streams (TransformerEngine's userbuffers, PyTorch's symmetric
// memory), so that the last wave of one and the first of the next share the multiprocessors, as
// experts' products do.
Seconds part_time(const Gemm& product, std::int16_t pieces, const Device& device) {
  Gemm parts = part_of(product, pieces);
  parts.batch = pieces;
  parts.grouped = true;
  Device streams = device;
  streams.kernels.fusion.groups = false;
  return op_cost(parts, streams).time * (1.0 / pieces);
}

// Each collective in pieces with the product beside it, once.
void price_pieces(const Job& job, const Cluster& cluster, Prices& prices) {
  for (const Body& body : job.bodies) {
    for (std::size_t i = 0; i < body.code.size(); ++i) {
      const auto* c = std::get_if<Collective>(&body.code[i]);
      if (c == nullptr || c->pieces == 1) continue;
      const auto at = static_cast<std::size_t>(product_beside(job, body, i));
      const OpId op = std::get<Compute>(body.code[at]).op;
      const auto known =
          std::find_if(prices.pieces.begin(), prices.pieces.end(),
                       [&](const PiecePrice& p) { return p.is_of(c->transfer, op, c->pieces); });
      if (known != prices.pieces.end()) continue;
      const auto& product = std::get<Gemm>(job.ops[static_cast<std::size_t>(op)]);
      const Transfer& whole = job.transfers[static_cast<std::size_t>(c->transfer)];
      PiecePrice price{c->transfer, op, c->pieces, {}, {}};
      price.part = rounded(part_time(product, c->pieces, cluster.device), "a part of a product");
      price.piece =
          rounded(choose_copies(piece_of(whole, c->pieces), job.mesh, cluster).time, "a piece");
      prices.pieces.push_back(price);
    }
  }
}

// What a Receive takes of its rank's own time.
Duration receive_price(const Job& job, const Cluster& cluster, const Transfer& transfer,
                       Duration send) {
  if (transfer.kind != TransferKind::kSendReceive || cluster.profile == nullptr) return send;
  const auto timed = timed_choice(transfer, true, job.mesh, *cluster.profile);
  return timed ? rounded(timed->time, "a receive") : send;
}

}  // namespace

Prices price(const Job& job, const Cluster& given) {
  // All ranks wait for each other in every step, so one device's pace is everybody's.
  Cluster cluster = given;
  cluster.device = slower_by(given.device, pace_deviate(job, given.device));
  Prices prices;
  prices.ops.reserve(job.ops.size());
  prices.basis.reserve(job.ops.size());
  prices.transfers.reserve(job.transfers.size());
  std::vector<Seconds> alone;
  std::vector<TransferChoice> choices;
  const double longer = turns(job, cluster);
  for (const Op& op : job.ops) {
    const Cost cost = op_cost(op, cluster.device);
    alone.push_back(cost.time);
    prices.ops.push_back(rounded(cost.time * longer, to_text(op)));
    prices.basis.push_back(cost.basis);
  }
  const Profile* profile = cluster.profile.get();
  const std::vector<bool> copied = copied_transfers(job);
  for (const Transfer& transfer : job.transfers) {
    const bool timed = profile != nullptr && timed_choice(transfer, false, job.mesh, *profile);
    const bool copies = copied[choices.size()] && !timed;
    choices.push_back(copies ? choose_copies(transfer, job.mesh, cluster)
                             : choose_transfer(transfer, job.mesh, cluster));
    prices.transfers.push_back(rounded(choices.back().time * (timed ? 1 : longer),
                                       std::string(transfer_name(transfer.kind)) + " of " +
                                           std::to_string(transfer.bytes.count) + " bytes"));
  }
  prices.one_stream = cluster.device.one_stream;
  if (prices.one_stream) {
    // Both copy: the sender in, the receiver out.
    for (std::size_t t = 0; t < job.transfers.size(); ++t) {
      prices.receives.push_back(
          receive_price(job, cluster, job.transfers[t], prices.transfers[t]));
    }
  } else {
    prices.beside = price_beside(job, cluster, alone, choices);
    price_pieces(job, cluster, prices);
  }
  if (profile != nullptr && !profile->work.empty()) place_kernels(job, cluster, prices);
  if (profile != nullptr && !prices.one_stream && !profile->probes.beside.empty()) {
    slow_transfers(job, cluster, prices);
  }
  if (cluster.device.graphs) {
    prices.graph = rounded(cluster.device.graph_launch, "the launch of a graph");
  } else {
    prices.issue = rounded(cluster.device.launch, "a launch");
    prices.fill = rounded(std::min(cluster.device.launch, kFillLaunch), "a fill");
    prices.pass = rounded(cluster.device.pass, "the host's part of a pass");
    prices.route = rounded(cluster.device.route, "the host's part of a router");
    for (const Op& op : job.ops) {
      prices.groups = std::max(prices.groups,
                               rounded(issue_time(op, cluster.device), "the launches of products"));
    }
  }
  // Ranks are laid on devices in rank order. A slow device that no rank uses slows nobody.
  const int ranks = job.mesh.ranks();
  for (const auto& [device, factor] : cluster.slow_devices) {
    if (device >= ranks || factor == 1.0) continue;
    STEPCAST_CHECK(device >= 0 && std::isfinite(factor) && factor > 0, "a slow device's factor");
    if (prices.slow.empty()) prices.slow.assign(static_cast<std::size_t>(ranks), 1.0);
    prices.slow[static_cast<std::size_t>(device)] = factor;
  }
  return prices;
}

}  // namespace stepcast
