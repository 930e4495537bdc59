// The watching of threads and of processes. A process is watched by its parent, which has nothing
// else to do: it lives on when the child is killed, knows why, and gives the launcher a plain exit
// code. The two share one page.
#include "execute/progress.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <new>

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

namespace stepcast {

namespace {

constexpr double kRest = 5;           // seconds that any instruction may take
constexpr double kRestOfWaiting = 8;  // waiting for others, who are to say first what ails them
constexpr double kSlowFlops = 1e9;    // a second, of a core that many share
constexpr double kSlowBytes = 1e8;
constexpr auto kLook = std::chrono::milliseconds(100);
constexpr int kTrouble = 2;

double slow_time(const Op& op) {
  return flops(op).value / kSlowFlops + static_cast<double>(traffic(op).count) / kSlowBytes;
}

double slow_time(const Job& job, const Instruction& instruction) {
  const auto moved = [&](TransferId id) {
    const Transfer& transfer = job.transfers[static_cast<std::size_t>(id)];
    return static_cast<double>(transfer.bytes.count) / kSlowBytes;
  };
  return match(
      instruction,
      [&](const Compute& c) { return slow_time(job.ops[static_cast<std::size_t>(c.op)]); },
      [&](const Collective& c) { return moved(c.transfer); },
      [&](const Send& s) { return moved(s.transfer); },
      [&](const Receive& r) { return moved(r.transfer); }, [](const auto&) { return 0.0; });
}

// All work of a step, one instruction after the other.
double slow_step(const Job& job) {
  std::vector<double> bodies;
  for (const Body& body : job.bodies) {
    double sum = 0;
    for (const Instruction& instruction : body.code) sum += slow_time(job, instruction);
    bodies.push_back(sum);
  }
  double sum = 0;
  for (const Program& program : job.programs) {
    for (const Call& call : program.schedule) sum += bodies[static_cast<std::size_t>(call.body)];
  }
  return sum;
}

std::string name_of(const Job& job, const Instruction& instruction) {
  return match(
      instruction, [&](const Compute& c) { return label_text(job, c.label); },
      [&](const Collective& c) { return label_text(job, c.label); },
      [&](const Send& s) { return label_text(job, s.label); },
      [&](const Receive& r) { return label_text(job, r.label); },
      [](const auto&) { return std::string("bookkeeping"); });
}

void say(const Error& error) {
  const std::string line = fmt::format("stepcast: {}\n", error.what());
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
}

Error ended(const Job& job, const Progress& progress, const std::string& why) {
  const int rank = progress.rank.load();
  if (rank < 0) return Error("a rank", why + " before it began");
  if (progress.step.load() == 0) return Error(fmt::format("rank {}", rank), why + " before step 1");
  return Error(fmt::format("rank {}", rank),
               fmt::format("{} in {}", why, place_text(job, progress)));
}

// The page that parent and child share.
class SharedProgress {
 public:
  SharedProgress()
      : memory_(mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                     -1, 0)) {
    if (memory_ == MAP_FAILED) throw Error("execute", "this machine does not give a page to share");
    new (memory_) Progress();
  }
  ~SharedProgress() { munmap(memory_, sizeof(Progress)); }
  SharedProgress(const SharedProgress&) = delete;
  SharedProgress& operator=(const SharedProgress&) = delete;
  Progress& operator*() { return *static_cast<Progress*>(memory_); }

 private:
  void* memory_;
};

// A launcher asks the parent to end; it has to take the child along.
volatile pid_t child_of_this_process = 0;
void end_with_child(int signal) {
  kill(child_of_this_process, SIGKILL);
  _exit(128 + signal);
}

// In the child: says so when the parent is gone. A launcher that loses the parent ends the rest by
// SIGTERM, which is therefore only taken here.
void watch_parent(const Job& job, const Progress& progress, pid_t parent) {
  sigset_t terminate;
  sigemptyset(&terminate);
  sigaddset(&terminate, SIGTERM);
  const timespec wait = {0, 100'000'000};
  for (;;) {
    const int signal = sigtimedwait(&terminate, nullptr, &wait);
    if (getppid() != parent) {
      say(ended(job, progress, "was killed"));
      _exit(kTrouble);
    }
    if (signal == SIGTERM) _exit(128 + SIGTERM);
  }
}

// Since when somebody who looks often has not been kept from it for a second.
class Awake {
 public:
  std::int64_t look(std::int64_t now) {
    if (now - last_ > kSecond) since_ = now;
    last_ = now;
    return since_;
  }

 private:
  static constexpr std::int64_t kSecond = 1'000'000'000;
  std::int64_t last_ = steady_nanoseconds(), since_ = last_;
};

// Why the child has to be ended; nothing while it may go on.
class ChildWatch {
 public:
  ChildWatch(const Job& job, Progress& progress) : job_(job), progress_(progress) {}

  void stop(bool stopped) { stopped_ = stopped ? steady_nanoseconds() : 0; }
  std::optional<Error> look() {
    const std::int64_t now = steady_nanoseconds(), awake = awake_.look(now);
    const std::int64_t stopped = stopped_ == 0 ? now : std::max(stopped_, awake);
    if (static_cast<double>(now - stopped) * 1e-9 > kRest) {
      return ended(job_, progress_, "stays stopped");
    }
    return find_stuck(job_, {&progress_, 1}, now, awake);
  }

 private:
  const Job& job_;
  Progress& progress_;
  Awake awake_;
  std::int64_t stopped_ = 0;
};

int watch_child(const Job& job, Progress& progress, pid_t child) {
  ChildWatch watch(job, progress);
  for (;;) {
    int status = 0;
    const pid_t changed = waitpid(child, &status, WNOHANG | WUNTRACED | WCONTINUED);
    if (changed == child && WIFEXITED(status)) return WEXITSTATUS(status);
    if (changed == child && WIFSIGNALED(status)) {
      say(ended(job, progress, fmt::format("was ended by signal {}", WTERMSIG(status))));
      return kTrouble;
    }
    if (changed == child) watch.stop(WIFSTOPPED(status));
    if (const auto trouble = watch.look()) {
      say(*trouble);
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      return kTrouble;
    }
    usleep(20'000);
  }
}

}  // namespace

std::int64_t steady_nanoseconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

std::string place_text(const Job& job, int stage, std::int64_t step, const Call& call,
                       std::int32_t instruction) {
  const Body& body = job.bodies[static_cast<std::size_t>(call.body)];
  std::string text = fmt::format("step {}, {}", step, body.name);
  if (job.mesh.stages() > 1) text += fmt::format(" of stage {}", stage);
  if (call.chunk > 0) text += fmt::format(", chunk {}", call.chunk);
  if (body.phase != Phase::kOptimizer) text += fmt::format(", micro-batch {}", call.micro_batch);
  return text + fmt::format(", instruction {}: {}", instruction,
                            name_of(job, body.code[static_cast<std::size_t>(instruction)]));
}

std::string place_text(const Job& job, const Progress& progress) {
  const int stage = job.mesh.stage(progress.rank.load());
  const auto& schedule = job.programs[static_cast<std::size_t>(stage)].schedule;
  return place_text(job, stage, progress.step.load(),
                    schedule[static_cast<std::size_t>(progress.call.load())],
                    progress.instruction.load());
}

double patience(const Job& job, const Instruction& instruction) {
  const bool waits = std::holds_alternative<Receive>(instruction) ||
                     std::holds_alternative<Collective>(instruction);
  return waits ? kRestOfWaiting + slow_step(job) : kRest + slow_time(job, instruction);
}

std::optional<Error> find_stuck(const Job& job, std::span<const Progress> ranks, std::int64_t now,
                                std::int64_t awake) {
  for (const Progress& progress : ranks) {
    const std::int64_t since = progress.since.load(std::memory_order_acquire);
    const double seconds = static_cast<double>(now - std::max(since, awake)) * 1e-9;
    if (since == 0 || seconds < kRest) continue;  // most of the time it ends here
    const int rank = progress.rank.load();
    const auto& schedule = job.programs[static_cast<std::size_t>(job.mesh.stage(rank))].schedule;
    const Call& call = schedule[static_cast<std::size_t>(progress.call.load())];
    const Instruction& instruction = job.bodies[static_cast<std::size_t>(call.body)]
                                         .code[static_cast<std::size_t>(progress.instruction)];
    if (seconds < patience(job, instruction)) continue;
    return Error(fmt::format("rank {}", rank),
                 fmt::format("{} has not come to an end for {:.0f} seconds",
                             place_text(job, progress), seconds));
  }
  return std::nullopt;
}

Watch::Watch(const Job& job, std::span<const Progress> ranks,
             std::function<void(const Error&)> stuck)
    : thread_([this, &job, ranks, stuck = std::move(stuck)] {
        Awake awake;
        while (!done_) {
          const std::int64_t now = steady_nanoseconds();
          if (const auto found = find_stuck(job, ranks, now, awake.look(now))) {
            stuck(*found);
            return;
          }
          std::this_thread::sleep_for(kLook);
        }
      }) {}

Watch::~Watch() {
  done_ = true;
  thread_.join();
}

int run_watched(const Job& job, const std::function<int(Progress&)>& run) {
  SharedProgress progress;
  std::fflush(nullptr);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) throw Error("execute", "this machine does not give another process");
  if (child == 0) {
    sigset_t terminate;
    sigemptyset(&terminate);
    sigaddset(&terminate, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &terminate, nullptr);
    std::thread([&] { watch_parent(job, *progress, parent); }).detach();
    int code = kTrouble;
    try {
      code = run(*progress);
    } catch (const std::exception& error) {
      say(Error("", error.what()));
    }
    std::fflush(nullptr);
    _exit(code);
  }
  child_of_this_process = child;
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) std::signal(signal, end_with_child);
  return watch_child(job, *progress, child);
}

}  // namespace stepcast
