// Import: what other tools measured or found, turned into files of this one.
//
//   nccl-tests LOG...       -> a profile (sim/hardware/profile.h)
//   kernels FILE.jsonl...   -> a profile of the device's kernels, fitted to the rows
//   published FILE.jsonl... -> files of published runs (tools/validate/published.h), one a group
//   runs FILE.jsonl...      -> the device's profile, what kernels do not fix fitted to the rows
//   nccl-topology FILE      -> a cluster file; what NCCL_TOPO_DUMP_FILE wrote
//   nvidia-smi-topo FILE    -> a cluster file; what `nvidia-smi topo -m` printed
//
// What was taken and what was not is said on stderr.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stepcast {

struct ImportArguments {
  std::string kind;
  std::vector<std::string> files;      // - is stdin
  std::string out;                     // FILE or -; published: a folder
  std::string device;                  // a name or a path; without: as the files tell it
  std::string name;                    // of what is written; without: that of --out
  // nccl-tests: for tables that do not say it themselves.
  std::string collective;
  std::optional<std::int64_t> ranks, nodes;
  bool in_place = false;               // the second group of columns
  std::vector<std::string> without;    // runs: groups that the fit may not see
  std::optional<std::int64_t> rows;    // runs: of a group at most
  std::vector<std::string> hold;       // runs: numbers that stay what they are
};
int import_command(const ImportArguments& arguments);

// One product of a maker, and the device file that describes it.
struct KnownProduct {
  std::string_view device;             // under configs/devices
  std::string_view product;            // as drivers print it, without the maker
  std::string_view pci;                // "vendor:device", the PCI ID Repository's
};

// nullptr: none. "NVIDIA H100 80GB HBM3", "AMD Instinct MI300X"; "10de:2330". PCIe cards and other
// sizes of memory are other products.
const KnownProduct* known_product(std::string_view name);
const KnownProduct* known_pci_device(std::string_view vendor_and_device);

}  // namespace stepcast
