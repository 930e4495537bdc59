// Profile files, both ways. sim/base/json.h brings the units and the places of errors; exact texts
// make that what is written reads back to the same bits. Cost: linear in the file, plus the square
// of the number of curves.
#include "sim/hardware/profile.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>

#include "sim/base/error.h"
#include "sim/hardware/size_text.h"

namespace stepcast {
namespace {

constexpr std::string_view kFormat = "stepcast.profile/1";
constexpr std::int64_t kCountMost = 1'000'000'000;

std::vector<WirePoint> read_points(const Object& curve) {
  const std::size_t count = curve.array_size("points");
  if (count == 0) curve.fail("points", "needs at least one {\"bytes\": ..., \"seconds\": ...}");
  std::vector<WirePoint> points;
  for (std::size_t i = 0; i < count; ++i) {
    const Object point = curve.element("points", i);
    const Bytes bytes = read_size(point);
    const Seconds time = point.seconds("seconds");
    if (!(time > Seconds(0) && time <= kMeasuredTimeMost)) {
      point.fail("seconds",
                 fmt::format("must be more than zero, at most {:g} s", kMeasuredTimeMost.value));
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
  read_group(object, curve);
  curve.points = read_points(object);
  curve.samples = static_cast<int>(object.integer("samples", 1, {1, kCountMost}));
  curve.spread = object.number("spread", 0, 0, 1e6);
  object.done();
  return curve;
}

bool same_group(const WireCurve& a, const WireCurve& b) {
  return a.collective == b.collective && a.ranks == b.ranks && a.nodes == b.nodes &&
         a.groups_per_node == b.groups_per_node;
}

std::map<std::string, std::string> read_texts(const Object& root, std::string_view key) {
  std::map<std::string, std::string> texts;
  const Object object = root.object(key);
  if (!root.has(key)) return texts;
  for (const auto& [name, value] : root.at(key).items()) texts[name] = object.string(name);
  return texts;
}

std::vector<TimedWork> read_work(const Object& root) {
  std::vector<TimedWork> all;
  for (std::size_t i = 0; i < root.array_size("work"); ++i) {
    const Object object = root.element("work", i);
    TimedWork work = read_timed_work(object);
    for (const TimedWork& other : all) {
      if (other.ranks == work.ranks) {
        object.fail("ranks", fmt::format("work of {} ranks is there twice", work.ranks));
      }
    }
    all.push_back(std::move(work));
  }
  return all;
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
  residual.count = object.integer("count", {1, kCountMost});
  residual.left_out_count = object.integer("left_out_count", 0, {0, kCountMost});
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
    root.fail("format", fmt::format("must be \"{}\", is \"{}\"; `stepcast import` and "
                                    "`stepcast calibrate` write such files", kFormat, format));
  }
  Profile profile;
  profile.name = root.string("name");
  profile.description = root.string("description", "");
  profile.device = root.string("device");
  profile.basis = root.word("basis", Basis::kMeasured,
                            {{std::string(basis_name(Basis::kMeasured)), Basis::kMeasured},
                             {std::string(basis_name(Basis::kFitted)), Basis::kFitted}});
  profile.provenance = read_texts(root, "provenance");
  profile.machine = read_texts(root, "machine");
  profile.work = read_work(root);
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
  profile.probes = read_probes(root);
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
  if (!profile.machine.empty()) json["machine"] = Json::object();
  for (const auto& [key, value] : profile.machine) json["machine"][key] = value;
  json["wires"] = Json::array();
  for (const WireCurve& curve : profile.wires) {
    Json points = Json::array();
    for (const WirePoint& point : curve.points) {
      points.push_back({{"bytes", size_text(point.bytes)},
                        {"seconds", exact_seconds(point.time)}});
    }
    Json one = {{"collective", curve.collective}, {"ranks", curve.ranks},
                {"nodes", curve.nodes},           {"points", std::move(points)},
                {"samples", curve.samples},       {"spread", curve.spread}};
    if (curve.groups_per_node != 1) one["groups_per_node"] = curve.groups_per_node;
    json["wires"].push_back(std::move(one));
  }
  write_probes(profile.probes, json);
  for (const TimedWork& work : profile.work) json["work"].push_back(write_timed_work(work));
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

std::string machine_difference(const Profile& profile,
                               const std::map<std::string, std::string>& here) {
  for (const auto& [key, there] : profile.machine) {
    const auto found = here.find(key);
    if (found == here.end() || found->second == there) continue;
    return fmt::format("its {} is {}, here it is {}", key, there, found->second);
  }
  return "";
}

const TimedWork* work_of(const Profile& profile, int ranks) {
  const TimedWork* nearest = nullptr;
  const auto distance = [&](const TimedWork& work) { return std::abs(work.ranks - ranks); };
  for (const TimedWork& work : profile.work) {
    if (nearest == nullptr || distance(work) < distance(*nearest)) nearest = &work;
  }
  return nearest;
}

void use_kernels(const Profile& profile, Device& device) {
  use_probes(profile.probes, std::max(profile.basis, Basis::kInterpolated), device);
  if (profile.kernels.is_null()) return;
  const Document document{profile.file, Json{{"kernels", profile.kernels}}, {}};
  read_kernels(Object(document, "/kernels"), profile.basis, device);
}

void use_die(const Profile& profile, const Device& die, Device& device) {
  Profile kernels;
  kernels.basis = profile.basis;
  kernels.file = profile.file;
  kernels.kernels = profile.kernels;
  const bool same_links = die.box.links == device.box.links;
  if (!same_links && kernels.kernels.is_object()) kernels.kernels.erase("collectives");
  use_kernels(kernels, device);
  if (!same_links) return;
  // It lasts as long on either, but is counted in steps on the links.
  double& copy = device.kernels.collectives.ring_copy;
  copy = std::min(1.0, copy * (device.node_bandwidth / die.node_bandwidth));
}

void use_profile(Cluster& cluster, std::shared_ptr<const Profile> profile, std::string_view place) {
  STEPCAST_CHECK(profile != nullptr, "a profile to use");
  check_device(*profile, cluster.device.name, place);
  cluster.profile = std::move(profile);
}

}  // namespace stepcast
