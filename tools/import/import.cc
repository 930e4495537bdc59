// `stepcast import`: reads files, has them understood, writes one file, says what became of what.
#include "tools/import/import.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sim/base/error.h"
#include "tools/base/files.h"
#include "tools/import/fit_kernels.h"
#include "tools/import/fit_runs.h"
#include "tools/import/nccl_tests.h"
#include "tools/import/topology.h"
#include "tools/time/time.h"
#include "tools/validate/fields.h"
#include "tools/validate/published.h"
#include "tools/validate/validate.h"
#include "tools/whatif/devices.h"
#include "tools/whatif/whatif.h"

namespace stepcast {
namespace {

constexpr std::size_t kWordsMost = 100;

constexpr KnownProduct kProducts[] = {
    {"v100-sxm2", "Tesla V100-SXM2-32GB", "10de:1db5"},
    {"v100-sxm3", "Tesla V100-SXM3-32GB", "10de:1db8"},
    {"a100-40gb", "A100-SXM4-40GB", "10de:20b0"},
    {"a100-80gb", "A100-SXM4-80GB", "10de:20b2"},
    {"a800-80gb", "A800-SXM4-80GB", "10de:20f3"},
    {"l40s", "L40S", "10de:26b9"},
    {"h100-sxm", "H100 80GB HBM3", "10de:2330"},
    {"h100-pcie", "H100 PCIe", "10de:2331"},
    {"h100-nvl", "H100 NVL", "10de:2321"},
    {"h800-sxm", "H800", "10de:2324"},
    {"h20", "H20", "10de:2329"},
    {"gh200", "GH200 480GB", "10de:2342"},
    {"h200", "H200", "10de:2335"},
    {"b200", "B200", "10de:2901"},
    {"mi300x", "MI300X", "1002:74a1"},
    {"mi325x", "MI325X", "1002:74a5"},
    {"mi355x", "MI355X", "1002:75a3"},
};

void say(const std::vector<std::string>& words) {
  for (std::size_t i = 0; i < std::min(words.size(), kWordsMost); ++i) {
    fmt::print(stderr, "{}\n", words[i]);
  }
  if (words.size() > kWordsMost) {
    fmt::print(stderr, "... and {} more lines\n", words.size() - kWordsMost);
  }
}

std::string base_name(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

std::string name_of(const ImportArguments& a) {
  if (!a.name.empty()) return a.name;
  return a.out == "-" ? "imported" : std::filesystem::path(a.out).stem().string();
}

Device device_file(const std::string& name) {
  const std::string file = find_config("devices", name, "--device");
  return read_device(parse_json(read_file(file), file));
}

// --device, else the one that all products are.
Device device_of(const ImportArguments& a, const std::set<std::string>& products) {
  if (!a.device.empty()) return device_file(a.device);
  if (products.empty()) {
    throw Error("import", "the log does not name the devices: give --device NAME (`stepcast list "
                          "devices`)");
  }
  std::set<std::string_view> devices;
  for (const std::string& product : products) {
    const KnownProduct* known = known_product(product);
    if (known == nullptr) {
      throw Error("import", fmt::format("no device is known as \"{}\": give --device NAME or a "
                                        "file of your own (`stepcast list devices`)", product));
    }
    devices.insert(known->device);
  }
  if (devices.size() > 1) {
    throw Error("import", fmt::format("the logs are of several devices, {}; import them one by one",
                                      fmt::join(devices, ", ")));
  }
  return device_file(std::string(*devices.begin()));
}

NcclTestsDefaults defaults_of(const ImportArguments& a) {
  NcclTestsDefaults defaults;
  if (!a.collective.empty()) {
    defaults.collective = transfer_kind(a.collective);
    if (!defaults.collective) {
      throw Error("--collective",
                  fmt::format("\"{}\" is none{}; there are {}", a.collective,
                              did_you_mean(a.collective, collective_names()),
                              fmt::join(collective_names(), ", ")));
    }
  }
  const auto count = [](const char* flag, std::optional<std::int64_t> value, std::int64_t least) {
    if (!value) return 0;
    if (*value < least || *value > kRanksMax) {
      throw Error(flag, fmt::format("must be {} to {}, is {}", least, kRanksMax, *value));
    }
    return static_cast<int>(*value);
  };
  defaults.ranks = count("--ranks", a.ranks, 2);
  defaults.nodes = count("--nodes", a.nodes, 1);
  if (defaults.ranks > 0 && defaults.nodes > defaults.ranks) {
    throw Error("--nodes", fmt::format("{} ranks cannot span {} nodes", defaults.ranks,
                                       defaults.nodes));
  }
  return defaults;
}

int import_nccl_tests(const ImportArguments& a) {
  const NcclTestsDefaults defaults = defaults_of(a);
  std::vector<NcclTestsLog> logs;
  std::set<std::string> products;
  std::map<std::string, std::set<std::string>> provenance;
  for (const std::string& file : a.files) {
    logs.push_back(read_nccl_tests(read_file(file), file == "-" ? "stdin" : file, a.in_place));
    const NcclTestsLog& log = logs.back();
    products.insert(log.products.begin(), log.products.end());
    for (const auto& [key, values] : log.provenance) {
      provenance[key].insert(values.begin(), values.end());
    }
    provenance["source"].insert(base_name(log.file));
  }
  std::vector<std::string> words;
  Profile profile;
  profile.wires = wire_curves(logs, defaults, words);
  profile.name = name_of(a);
  profile.device = device_of(a, products).name;
  profile.description = products.empty()
                            ? "nccl-tests"
                            : fmt::format("nccl-tests on {}", fmt::join(products, ", "));
  for (const auto& [key, values] : provenance) {
    profile.provenance[key] = fmt::format("{}", fmt::join(values, ", "));
  }
  profile.provenance["buffers"] = a.in_place ? "in place" : "out of place";
  profile.provenance["written_by"] = "stepcast import nccl-tests";
  write_file(a.out, write_profile(profile).dump(2) + "\n");
  say(words);
  fmt::print(stderr, "{}: a profile of {} with {} {}\n", a.out == "-" ? "stdout" : a.out,
             profile.device, profile.wires.size(), profile.wires.size() == 1 ? "curve" : "curves");
  return 0;
}

std::vector<PlacedRow> placed_rows(const std::vector<std::string>& files) {
  std::vector<PlacedRow> rows;
  for (const std::string& file : files) {
    std::vector<PlacedRow> some = read_rows(read_file(file), file == "-" ? "stdin" : file);
    std::move(some.begin(), some.end(), std::back_inserter(rows));
  }
  return rows;
}

std::vector<Json> rows_of(std::vector<PlacedRow> placed) {
  std::vector<Json> rows;
  for (PlacedRow& one : placed) rows.push_back(std::move(one.row));
  return rows;
}

std::vector<Json> rows_of(const std::vector<std::string>& files) {
  return rows_of(placed_rows(files));
}

// Runs in the form that `stepcast validate` reads, as the files of configs/published.
int import_published(const ImportArguments& a) {
  if (!std::filesystem::is_directory(a.out)) {
    throw Error("--out " + a.out, "must be a folder: every group of runs becomes a file in it");
  }
  const Published published = publish(placed_rows(a.files));
  for (const PublishedGroup& one : published.groups) {
    write_file((std::filesystem::path(a.out) / (one.group + ".json")).string(), one.text);
    fmt::print(stderr, "{}: {} runs, {} left out\n", one.group, one.rows, one.left_out);
  }
  if (!published.not_taken.empty()) {
    fmt::print(stderr, "not taken: {}\n", fmt::join(published.not_taken, ", "));
  }
  return 0;
}

// Published kernels in the form that `stepcast validate` reads: the device's, fitted to them.
int import_kernels(const ImportArguments& a) {
  if (a.device.empty()) throw Error("import", "give --device NAME: the rows of one are fitted");
  const Device device = device_file(a.device);
  const FittedKernels fitted = fit_kernels(device, rows_of(a.files));
  if (fitted.residuals.empty()) {
    throw Error("import", fmt::format("no kind of kernel has enough rows of {} to fit its "
                                      "parameters; `stepcast validate` says which rows it takes",
                                      device.name));
  }
  Profile profile;
  profile.name = name_of(a);
  profile.description = fmt::format("{}, fitted to published kernels", device.description);
  profile.device = device.name;
  profile.basis = Basis::kFitted;
  profile.provenance["sources"] = fmt::format("{}", fmt::join(fitted.sources, ", "));
  profile.provenance["written_by"] = "stepcast import kernels";
  profile.kernels = kernels_json(fitted.device, Basis::kFitted);
  profile.residuals = fitted.residuals;
  write_file(a.out, write_profile(profile).dump(2) + "\n");
  for (const Residual& r : fitted.residuals) {
    fmt::print(stderr, "{}: {} rows, median error {:.1f} %, bias {:+.1f} %\n", r.rows, r.count,
               100 * r.median_absolute_error, 100 * r.signed_bias);
  }
  return 0;
}

std::vector<Json> rows_without(std::vector<Json> rows, const std::vector<std::string>& groups) {
  for (const std::string& group : groups) {
    const std::size_t had = rows.size();
    std::erase_if(rows, [&](const Json& row) { return text_of(row, "group") == group; });
    if (rows.size() == had) {
      throw Error("--without " + group, "no run is of that group; `stepcast validate` lists them");
    }
  }
  return rows;
}

// Published runs, without a file those of configs/published: the device's profile, with what
// kernels alone do not fix fitted to them.
int import_runs(const ImportArguments& a) {
  if (a.device.empty()) throw Error("import", "give --device NAME: the runs of one are fitted");
  const std::string file = find_config("devices", a.device, "--device");
  const Device device = load_device(file);
  const std::vector<Json> rows = rows_without(
      a.files.empty() ? rows_of(shipped_runs()) : rows_of(a.files), a.without);
  const FittedRuns fitted =
      fit_runs(device, rows, read_shipped(), static_cast<std::size_t>(a.rows.value_or(kRowsEach)),
               a.hold);
  Profile profile;
  if (auto shipped = shipped_profile(device.name, "import")) {
    profile = *std::move(shipped);
  } else {
    profile.description = fmt::format("{}, fitted to published runs", device.description);
  }
  profile.name = name_of(a);
  profile.device = device.name;
  profile.basis = Basis::kFitted;
  profile.provenance["runs"] =
      fmt::format("{} by stepcast import runs, on {}", fmt::join(fitted.numbers, ", "),
                  fmt::join(fitted.sources, ", "));
  if (!a.without.empty()) {
    profile.provenance["runs"] += fmt::format(", without {}", fmt::join(a.without, ", "));
  }
  if (a.rows) profile.provenance["runs"] += fmt::format(", at most {} of each", *a.rows);
  if (!a.hold.empty()) {
    profile.provenance["runs"] += fmt::format("; {} held", fmt::join(a.hold, ", "));
  }
  profile.provenance.erase("matrix");
  profile.kernels = kernels_json(fitted.device, Basis::kFitted);
  std::erase_if(profile.residuals, [](const Residual& r) { return r.rows.starts_with("runs "); });
  profile.residuals.insert(profile.residuals.end(), fitted.residuals.begin(),
                           fitted.residuals.end());
  write_file(a.out, write_profile(profile).dump(2) + "\n");
  const Kernels& kernels = fitted.device.kernels;
  fmt::print(stderr,
             "matrix.efficiency {:.3f}, memory {:.3f}, attention.sustained {:.3f}, "
             "matrix.fp8_sustained {:.3f}\n",
             kernels.matrix.efficiency, kernels.memory, kernels.usual().sustained,
             kernels.matrix.fp8_sustained);
  for (const Residual& r : fitted.residuals) {
    fmt::print(stderr, "{}: {} rows, median error {:.1f} %, bias {:+.1f} %; left out {:.1f} %, "
                       "{:+.1f} %\n",
               r.rows, r.count, 100 * r.median_absolute_error, 100 * r.signed_bias,
               100 * r.left_out_median_absolute_error, 100 * r.left_out_signed_bias);
  }
  return 0;
}

int import_topology(const ImportArguments& a) {
  if (a.files.size() != 1) throw Error("import", "a topology is one file");
  const std::string& file = a.files.front();
  const std::string place = file == "-" ? "stdin" : file;
  const bool xml = a.kind == "nccl-topology";
  FoundTopology topology = xml ? read_nccl_topology(read_file(file), place)
                          : read_smi_topology(read_file(file), place);
  std::string device = a.device;
  if (device.empty()) device = device_of_topology(topology, place);
  const Device known = device_file(device);
  const bool path = device.find('/') != std::string::npos || device.ends_with(".json");
  if (path) device = std::filesystem::absolute(device).string();
  std::vector<std::string> words;
  Json cluster = topology_cluster(topology, known, place, words);
  cluster["name"] = name_of(a);
  cluster["source"] = fmt::format("stepcast import {} of {}", a.kind, base_name(place));
  cluster["device"] = device;
  const Document document = parse_json(cluster.dump(), place);
  read_cluster(Object(document), known);  // what is written can be read
  write_file(a.out, cluster.dump(2) + "\n");
  say(words);
  return 0;
}

}  // namespace

const KnownProduct* known_product(std::string_view name) {
  for (const std::string_view maker : {"NVIDIA ", "AMD ", "Instinct "}) {
    if (name.starts_with(maker)) name.remove_prefix(maker.size());
  }
  const auto* found = std::find_if(std::begin(kProducts), std::end(kProducts),
                                   [&](const KnownProduct& one) { return one.product == name; });
  return found == std::end(kProducts) ? nullptr : found;
}

const KnownProduct* known_pci_device(std::string_view vendor_and_device) {
  const auto* found =
      std::find_if(std::begin(kProducts), std::end(kProducts),
                   [&](const KnownProduct& one) { return one.pci == vendor_and_device; });
  return found == std::end(kProducts) ? nullptr : found;
}

int import_command(const ImportArguments& arguments) {
  const std::vector<std::string> kinds = {"nccl-tests", "kernels", "runs", "published",
                                          "nccl-topology",
                                          "nvidia-smi-topo"};
  if (std::find(kinds.begin(), kinds.end(), arguments.kind) == kinds.end()) {
    throw Error("import", fmt::format("\"{}\" is nothing to import{}; there are {}", arguments.kind,
                                      did_you_mean(arguments.kind, kinds),
                                      fmt::join(kinds, ", ")));
  }
  if (arguments.files.empty() && arguments.kind != "runs") {
    throw Error("import", "give at least one FILE; only runs come without one, from the shipped");
  }
  if (!arguments.without.empty() && arguments.kind != "runs") {
    throw Error("import", "--without is of runs only");
  }
  if (arguments.rows && arguments.kind != "runs") {
    throw Error("import", "--rows is of runs only");
  }
  if (!arguments.hold.empty() && arguments.kind != "runs") {
    throw Error("import", "--hold is of runs only");
  }
  if (arguments.kind == "nccl-tests") return import_nccl_tests(arguments);
  const bool of_tests = !arguments.collective.empty() || arguments.ranks || arguments.nodes ||
                        arguments.in_place;
  if (of_tests) {
    throw Error("import", "--collective, --ranks, --nodes and --in-place are of nccl-tests only");
  }
  if (arguments.kind == "published") return import_published(arguments);
  if (arguments.kind == "runs") return import_runs(arguments);
  return arguments.kind == "kernels" ? import_kernels(arguments) : import_topology(arguments);
}

}  // namespace stepcast
