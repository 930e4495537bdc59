// Groups become MPI communicators at their first collective, made by their members alone
// (MPI_Comm_create_group), so that ranks need not agree on when. Messages keep their order a pair
// and tag, which is what a stream asks for.
#include "execute/mpi.h"

#include <cstdlib>

#include "sim/base/error.h"

#ifdef STEPCAST_MPI

#include <algorithm>
#include <climits>
#include <exception>
#include <iterator>
#include <list>
#include <map>
#include <utility>

#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

namespace stepcast {

namespace {

int count(std::size_t size) {
  if (size > static_cast<std::size_t>(INT_MAX)) {
    throw Error("execute", "a message has more elements than MPI can count; use more ranks");
  }
  return static_cast<int>(size);
}

MPI_Op operation(Reduction reduction) { return reduction == Reduction::kSum ? MPI_SUM : MPI_MAX; }

class MpiTransport final : public Transport {
 public:
  explicit MpiTransport(int rank) : rank_(rank) {}
  MpiTransport(const MpiTransport&) = delete;
  MpiTransport& operator=(const MpiTransport&) = delete;
  ~MpiTransport() override {
    for (Sent& sent : sent_) MPI_Wait(&sent.request, MPI_STATUS_IGNORE);
    for (auto& [key, communicator] : communicators_) MPI_Comm_free(&communicator);
  }

  int rank() const override { return rank_; }

  void all_reduce(const Group& group, std::span<float> values, Reduction reduction) override {
    MPI_Allreduce(MPI_IN_PLACE, values.data(), count(values.size()), MPI_FLOAT,
                  operation(reduction), communicator(group));
  }

  void all_gather(const Group& group, std::span<const float> mine, std::span<float> all) override {
    MPI_Allgather(mine.data(), count(mine.size()), MPI_FLOAT, all.data(), count(mine.size()),
                  MPI_FLOAT, communicator(group));
  }

  // Pairwise exchange (Thakur, Rabenseifner and Gropp 2005): each member's piece travels once.
  // Open MPI 4.1's own reduces everything to one member first.
  void reduce_scatter(const Group& group, std::span<const float> all, std::span<float> mine,
                      Reduction reduction) override {
    const MPI_Comm members = communicator(group);
    const std::size_t n = group.members.size(), me = group.index;
    std::copy_n(all.data() + me * mine.size(), mine.size(), mine.data());
    piece_.resize(mine.size());
    for (std::size_t round = 1; round < n; ++round) {
      const std::size_t to = (me + round) % n, from = (me + n - round) % n;
      MPI_Sendrecv(all.data() + to * mine.size(), count(mine.size()), MPI_FLOAT, count(to), 0,
                   piece_.data(), count(mine.size()), MPI_FLOAT, count(from), 0, members,
                   MPI_STATUS_IGNORE);
      for (std::size_t i = 0; i < mine.size(); ++i) {
        mine[i] = reduction == Reduction::kSum ? mine[i] + piece_[i] : std::max(mine[i], piece_[i]);
      }
    }
  }

  void all_to_all(const Group& group, std::span<const std::byte> mine,
                  std::span<std::byte> all) override {
    const int part = count(mine.size() / group.members.size());
    MPI_Alltoall(mine.data(), part, MPI_BYTE, all.data(), part, MPI_BYTE, communicator(group));
  }

  void send(int to, Stream stream, std::span<const std::byte> message) override {
    forget_arrived();
    Sent& sent = sent_.emplace_back();
    sent.message.assign(message.begin(), message.end());
    MPI_Isend(sent.message.data(), count(message.size()), MPI_BYTE, to, static_cast<int>(stream),
              MPI_COMM_WORLD, &sent.request);
  }

  double receive(int from, Stream stream, std::span<std::byte> message) override {
    const double begin = MPI_Wtime();
    MPI_Status status;
    MPI_Probe(from, static_cast<int>(stream), MPI_COMM_WORLD, &status);
    const double waited = MPI_Wtime() - begin;
    MPI_Recv(message.data(), count(message.size()), MPI_BYTE, from, static_cast<int>(stream),
             MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return waited;
  }

  void sum_everywhere(std::span<double> values) override {
    MPI_Allreduce(MPI_IN_PLACE, values.data(), count(values.size()), MPI_DOUBLE, MPI_SUM,
                  MPI_COMM_WORLD);
  }

  void abort() noexcept override {}  // the session ends all processes

 private:
  struct Sent {
    std::vector<std::byte> message;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  void forget_arrived() {
    for (auto sent = sent_.begin(); sent != sent_.end();) {
      int done = 0;
      MPI_Test(&sent->request, &done, MPI_STATUS_IGNORE);
      sent = done != 0 ? sent_.erase(sent) : std::next(sent);
    }
  }

  MPI_Comm communicator(const Group& group) {
    const auto key = std::pair(group.axes.bits, group.ends_only);
    const auto known = communicators_.find(key);
    if (known != communicators_.end()) return known->second;
    MPI_Group world, members;
    MPI_Comm made;
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_incl(world, count(group.members.size()), group.members.data(), &members);
    const int tag = 2 * group.axes.bits + (group.ends_only ? 1 : 0);
    MPI_Comm_create_group(MPI_COMM_WORLD, members, tag, &made);
    MPI_Group_free(&members);
    MPI_Group_free(&world);
    communicators_.emplace(key, made);
    return made;
  }

  int rank_;
  std::vector<float> piece_;  // of another member, before it is added
  std::list<Sent> sent_;
  std::map<std::pair<std::uint8_t, bool>, MPI_Comm> communicators_;
};

}  // namespace

MpiSession::MpiSession() {
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
}

MpiSession::~MpiSession() {
  // Whoever fails takes the others with it: they would wait for ever.
  if (std::uncaught_exceptions() > 0) {
    MPI_Abort(MPI_COMM_WORLD, 2);
  } else {
    MPI_Finalize();
  }
}

int MpiSession::rank() const {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

int MpiSession::ranks() const {
  int ranks = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  return ranks;
}

std::unique_ptr<Transport> MpiSession::transport() const {
  return std::make_unique<MpiTransport>(rank());
}

std::string mpi_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string version(text, static_cast<std::size_t>(length));
  return version.substr(0, version.find_first_of(",\n"));
}

int MpiSession::ranks_here() const {
  MPI_Comm here;
  int size = 0;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here);
  MPI_Comm_size(here, &size);
  MPI_Comm_free(&here);
  return size;
}

bool MpiSession::one_machine() const { return ranks_here() == ranks(); }

}  // namespace stepcast

#else

namespace stepcast {

MpiSession::MpiSession() {
  throw Error("--launch mpi",
              "this stepcast was built without MPI; install libopenmpi-dev and "
              "build again, or use --launch threads");
}
MpiSession::~MpiSession() = default;
int MpiSession::rank() const { return 0; }
int MpiSession::ranks() const { return 1; }
std::unique_ptr<Transport> MpiSession::transport() const { return nullptr; }
int MpiSession::ranks_here() const { return 1; }
bool MpiSession::one_machine() const { return true; }
std::string mpi_version() { return ""; }

}  // namespace stepcast

#endif

namespace stepcast {

namespace {

template <class Value>
void send_value(Transport& transport, const Value& value) {
  transport.send(0, Stream::kHostCopy, std::as_bytes(std::span(&value, 1)));
}
template <class Value>
void receive_value(Transport& transport, int from, Value& value) {
  transport.receive(from, Stream::kHostCopy, std::as_writable_bytes(std::span(&value, 1)));
}
template <class Value>
void send_list(Transport& transport, const std::vector<Value>& list) {
  send_value(transport, list.size());
  if (!list.empty()) transport.send(0, Stream::kHostCopy, std::as_bytes(std::span(list)));
}
template <class Value>
void receive_list(Transport& transport, int from, std::vector<Value>& list) {
  std::size_t size = 0;
  receive_value(transport, from, size);
  list.resize(size);
  if (size > 0) transport.receive(from, Stream::kHostCopy, std::as_writable_bytes(std::span(list)));
}

// Calls `one` with each member of a run that is a value, then `list` with each that is a list.
template <class Run, class One, class List>
void each_member(Run& run, One one, List list) {
  one(run.rank);
  one(run.peak);
  one(run.at_peak);
  one(run.resident);
  one(run.arena);
  one(run.sent);
  one(run.time);
  one(run.instructions);
  one(run.between);
  list(run.losses);
  list(run.seconds);
  list(run.spans);
}

void send_marks(Transport& transport, const std::vector<Marks>& steps) {
  send_value(transport, steps.size());
  for (const Marks& marks : steps) {
    send_value(transport, marks.begin);
    send_list(transport, marks.ends);
  }
}

void receive_marks(Transport& transport, int from, std::vector<Marks>& steps) {
  std::size_t count = 0;
  receive_value(transport, from, count);
  steps.resize(count);
  for (Marks& marks : steps) {
    marks.rank = from;
    receive_value(transport, from, marks.begin);
    receive_list(transport, from, marks.ends);
  }
}

}  // namespace

int launched_rank() {
  // Open MPI; PMI, which Slurm and MPICH speak; Slurm.
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    if (const char* rank = std::getenv(name); rank != nullptr) return std::atoi(rank);
  }
  return 0;
}

std::chrono::steady_clock::time_point common_epoch(Transport& transport) {
  using namespace std::chrono;
  const auto now = duration_cast<seconds>(steady_clock::now().time_since_epoch());
  double whole = transport.rank() == 0 ? static_cast<double>(now.count()) : 0;
  transport.sum_everywhere({&whole, 1});
  return steady_clock::time_point(seconds(static_cast<std::int64_t>(whole)));
}

std::vector<RankRun> gather_runs(Transport& transport, const Mesh& mesh, const RankRun& mine) {
  if (transport.rank() != 0) {
    each_member(
        mine, [&](const auto& value) { send_value(transport, value); },
        [&](const auto& list) { send_list(transport, list); });
    send_marks(transport, mine.marks);
    return {};
  }
  std::vector<RankRun> runs(static_cast<std::size_t>(mesh.ranks()));
  runs[0] = mine;
  for (int rank = 1; rank < mesh.ranks(); ++rank) {
    each_member(
        runs[static_cast<std::size_t>(rank)],
        [&](auto& value) { receive_value(transport, rank, value); },
        [&](auto& list) { receive_list(transport, rank, list); });
    receive_marks(transport, rank, runs[static_cast<std::size_t>(rank)].marks);
  }
  return runs;
}

}  // namespace stepcast
