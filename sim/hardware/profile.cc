// Profile files, both ways. sim/base/json.h brings the units and the places of errors; exact texts
// make that what is written reads back to the same bits. Cost: linear in the file, plus the square
// of the number of curves.
#include "sim/hardware/profile.h"

#include <array>
#include <utility>

#include <fmt/format.h>

#include "sim/base/error.h"

namespace stepcast {
namespace {

constexpr std::string_view kFormat = "stepcast.profile/1";
constexpr std::int64_t kRanksMost = std::int64_t{1} << 20;  // kRanksMax of sim/program/mesh.h
constexpr std::int64_t kBytesMost = std::int64_t{1} << 50;  // as `stepcast time` allows
constexpr std::int64_t kSamplesMost = 1'000'000'000;
constexpr Seconds kLongest{1e5};                            // more than a day is a slip of units

// "32 MiB" where it is whole, as nccl-tests' sizes are, else "1000 B".
std::string size_text(Bytes bytes) {
  static constexpr std::array<std::string_view, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::int64_t count = bytes.count;
  std::size_t unit = 0;
  for (; count != 0 && count % 1024 == 0 && unit + 1 < kUnits.size(); ++unit) count /= 1024;
  return fmt::format("{} {}", count, kUnits[unit]);
}

// "1 MiB", or a count.
Bytes read_point_bytes(const Object& point) {
  const Bytes bytes = point.at("bytes").is_string()
                          ? point.bytes("bytes")
                          : Bytes(point.integer("bytes", {1, kBytesMost}));
  if (bytes < Bytes(1) || bytes > Bytes(kBytesMost)) {
    point.fail("bytes", "must be at least 1 B, at most 1 PiB");
  }
  return bytes;
}

std::vector<WirePoint> read_points(const Object& curve) {
  const std::size_t count = curve.array_size("points");
  if (count == 0) curve.fail("points", "needs at least one {\"bytes\": ..., \"seconds\": ...}");
  std::vector<WirePoint> points;
  for (std::size_t i = 0; i < count; ++i) {
    const Object point = curve.element("points", i);
    const Bytes bytes = read_point_bytes(point);
    const Seconds time = point.seconds("seconds");
    if (!(time > Seconds(0) && time <= kLongest)) {
      point.fail("seconds", fmt::format("must be more than zero, at most {:g} s", kLongest.value));
    }
    if (!points.empty() && bytes <= points.back().bytes) {
      point.fail("bytes", fmt::format("must ascend: {} B come after {} B", bytes.count,
                                      points.back().bytes.count));
    }
    point.done();
    points.push_back({bytes, time});
  }
  return points;
}

WireCurve read_curve(const Object& object) {
  std::vector<std::pair<std::string, std::string>> words;
  for (const std::string& name : collective_names()) words.emplace_back(name, name);
  object.at("collective");  // says that it is required
  WireCurve curve;
  curve.collective = object.word<std::string>("collective", "", words);
  curve.ranks = static_cast<int>(object.integer("ranks", {2, kRanksMost}));
  curve.nodes = static_cast<int>(object.integer("nodes", {1, kRanksMost}));
  if (curve.nodes > curve.ranks) {
    object.fail("nodes", fmt::format("{} ranks cannot span {} nodes", curve.ranks, curve.nodes));
  }
  curve.points = read_points(object);
  curve.samples = static_cast<int>(object.integer("samples", 1, {1, kSamplesMost}));
  curve.spread = object.number("spread", 0, 0, 1e6);
  object.done();
  return curve;
}

bool same_group(const WireCurve& a, const WireCurve& b) {
  return a.collective == b.collective && a.ranks == b.ranks && a.nodes == b.nodes;
}

std::map<std::string, std::string> read_provenance(const Object& root) {
  std::map<std::string, std::string> provenance;
  const Object object = root.object("provenance");
  if (!root.has("provenance")) return provenance;
  for (const auto& [key, value] : root.at("provenance").items()) {
    provenance[key] = object.string(key);
  }
  return provenance;
}

struct ErrorKey {
  const char* key;
  double Residual::*member;
};
constexpr ErrorKey kErrorKeys[] = {
    {"median_absolute_error", &Residual::median_absolute_error},
    {"mean_absolute_error", &Residual::mean_absolute_error},
    {"p90_absolute_error", &Residual::p90_absolute_error},
    {"signed_bias", &Residual::signed_bias},
    {"left_out_median_absolute_error", &Residual::left_out_median_absolute_error},
    {"left_out_signed_bias", &Residual::left_out_signed_bias}};

Residual read_residual(const Object& object) {
  constexpr double kMost = 1e6;
  Residual residual;
  residual.rows = object.string("rows");
  residual.count = object.integer("count", {1, kSamplesMost});
  residual.left_out_count = object.integer("left_out_count", 0, {0, kSamplesMost});
  for (const auto& [key, member] : kErrorKeys) {
    residual.*member = object.number(key, 0, -kMost, kMost);
  }
  object.done();
  return residual;
}

Json residual_json(const Residual& residual) {
  Json json{{"rows", residual.rows},
            {"count", residual.count},
            {"left_out_count", residual.left_out_count}};
  for (const auto& [key, member] : kErrorKeys) json[key] = residual.*member;
  return json;
}

}  // namespace

const std::vector<std::string>& collective_names() {
  static const std::vector<std::string> names = {"all-reduce", "all-gather", "reduce-scatter",
                                                 "broadcast",  "all-to-all", "send-receive"};
  return names;
}

Profile read_profile(const Document& document) {
  const Object root(document);
  const std::string format = root.string("format");
  if (format != kFormat) {
    root.fail("format", fmt::format("must be \"{}\", is \"{}\"; `stepcast import` writes such "
                                    "files", kFormat, format));
  }
  Profile profile;
  profile.name = root.string("name");
  profile.description = root.string("description", "");
  profile.device = root.string("device");
  profile.basis = root.word("basis", Basis::kMeasured,
                            {{std::string(basis_name(Basis::kMeasured)), Basis::kMeasured},
                             {std::string(basis_name(Basis::kFitted)), Basis::kFitted}});
  profile.provenance = read_provenance(root);
  const std::size_t count = root.array_size("wires");
  for (std::size_t i = 0; i < count; ++i) {
    const Object object = root.element("wires", i);
    WireCurve curve = read_curve(object);
    for (const WireCurve& other : profile.wires) {
      if (!same_group(curve, other)) continue;
      object.fail("", fmt::format("{} over {} ranks in {} {} is there twice", curve.collective,
                                  curve.ranks, curve.nodes, curve.nodes == 1 ? "node" : "nodes"));
    }
    profile.wires.push_back(std::move(curve));
  }
  profile.file = document.file;
  root.touch("kernels");
  if (root.has("kernels")) {
    root.object("kernels");  // says that it must be an object
    profile.kernels = root.at("kernels");
  }
  for (std::size_t i = 0; i < root.array_size("residuals"); ++i) {
    profile.residuals.push_back(read_residual(root.element("residuals", i)));
  }
  root.done();
  return profile;
}

Json write_profile(const Profile& profile) {
  Json json;
  json["format"] = kFormat;
  json["name"] = profile.name;
  if (!profile.description.empty()) json["description"] = profile.description;
  json["device"] = profile.device;
  json["basis"] = basis_name(profile.basis);
  json["provenance"] = Json::object();
  for (const auto& [key, value] : profile.provenance) json["provenance"][key] = value;
  json["wires"] = Json::array();
  for (const WireCurve& curve : profile.wires) {
    Json points = Json::array();
    for (const WirePoint& point : curve.points) {
      points.push_back({{"bytes", size_text(point.bytes)},
                        {"seconds", exact_seconds(point.time)}});
    }
    json["wires"].push_back({{"collective", curve.collective},
                             {"ranks", curve.ranks},
                             {"nodes", curve.nodes},
                             {"points", std::move(points)},
                             {"samples", curve.samples},
                             {"spread", curve.spread}});
  }
  if (!profile.kernels.is_null()) json["kernels"] = profile.kernels;
  for (const Residual& residual : profile.residuals) {
    json["residuals"].push_back(residual_json(residual));
  }
  return json;
}

void check_device(const Profile& profile, std::string_view device, std::string_view place) {
  if (profile.device == device) return;
  throw Error(place, fmt::format("profile {} is of the device {}, not of {}; take a profile of "
                                 "that device (`stepcast list profiles`) or none",
                                 profile.name, profile.device, device));
}

void use_kernels(const Profile& profile, Device& device) {
  if (profile.kernels.is_null()) return;
  const Document document{profile.file, Json{{"kernels", profile.kernels}}, {}};
  read_kernels(Object(document, "/kernels"), profile.basis, device);
}

void use_profile(Cluster& cluster, std::shared_ptr<const Profile> profile, std::string_view place) {
  STEPCAST_CHECK(profile != nullptr, "a profile to use");
  check_device(*profile, cluster.device.name, place);
  cluster.profile = std::move(profile);
}

}  // namespace stepcast
