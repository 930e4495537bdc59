// Fibers begin as ucontexts and are switched by _setjmp and _longjmp, which ask nothing of the
// system (swapcontext asks for the signal mask, twice). The address sanitizer is told of each
// switch (common_interface_defs.h), so that it knows the stack: its own swapcontext and longjmp
// forget what they have poisoned there, which takes long and finds less. The thread sanitizer knows
// swapcontext alone. Fibers are kept from one block, and one kernel, to the next: a fiber that is
// done waits for another thread to be.
#include "tests/support/emulated_block.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <ucontext.h>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <set>
#include <vector>

namespace stepcast::cuda {

namespace {

constexpr std::size_t kStackBytes = 256 * 1024;
constexpr std::size_t kSharedMax = 227 * 1024;  // what a block of an H100 may have

struct Copy {
  void* to = nullptr;
  const void* from = nullptr;
  int bytes = 0;
};

// A stack and where it is at.
struct Flow {
  ucontext_t context{};
#if defined(__SANITIZE_THREAD__)
  void change(Flow& to) { swapcontext(&context, &to.context); }
  void arrive() {}
#else
  jmp_buf jump{};
  bool has_run = false;

  void change(Flow& to) {
    depart(to);
    has_run = true;
    if (_setjmp(jump) == 0) {
      if (to.has_run) jump_to(to.jump);
      setcontext(&to.context);
    }
    arrive();
  }
#if defined(__SANITIZE_ADDRESS__)
  const void* bottom = nullptr;  // of the stack; known when somebody leaves it
  std::size_t bytes = 0;
  void* fake_stack = nullptr;

  static Flow*& departed() {
    static thread_local Flow* flow = nullptr;
    return flow;
  }
  void depart(const Flow& to) {
    departed() = this;
    __sanitizer_start_switch_fiber(&fake_stack, to.bottom, to.bytes);
  }
  void arrive() {
    Flow& from = *departed();
    __sanitizer_finish_switch_fiber(fake_stack, &from.bottom, &from.bytes);
  }
  // The C library's own.
  static void jump_to(jmp_buf& to) {
    using Jump = void (*)(jmp_buf, int);
    static const auto jump =
        reinterpret_cast<Jump>(dlsym(dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD), "_longjmp"));
    jump(to, 1);
  }
#else
  void depart(const Flow&) {}
  void arrive() {}
  static void jump_to(jmp_buf& to) { _longjmp(to, 1); }
#endif
#endif
};

struct Fiber {
  Thread thread;
  Flow flow;
  std::unique_ptr<char[]> stack;
  bool done = true;
  bool waiting = false;
  std::vector<Copy> open;                // not yet committed
  std::deque<std::vector<Copy>> groups;  // committed, on their way
};

using Fibers = std::vector<std::unique_ptr<Fiber>>;

// Of this thread; those of a kernel that failed are in the middle of it and are not used again.
Fibers& idle_fibers() {
  static thread_local Fibers fibers;
  return fibers;
}

struct Warp {
  int arrived = 0;
  Meeting meeting = Meeting::kSync;
  std::size_t parity = 0;
  alignas(16) unsigned char slots[2][kWarp * HostLanes::kSlotBytes];
};

class EmulatedBlock final : public HostLanes {
 public:
  EmulatedBlock(const Geometry& geometry, const std::function<void(const Thread&)>& body,
                WarpOrder order)
      : geometry_(geometry),
        body_(body),
        order_kind_(order),
        warps_(static_cast<std::size_t>(geometry.threads / kWarp)),
        shared_(static_cast<std::size_t>(geometry.shared_bytes) + 128) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(geometry.threads); ++i) {
      fibers_.push_back(take_fiber());
      fibers_[i]->thread.thread = static_cast<int>(i);
      threads_.push_back(fibers_[i].get());
    }
    order_ = threads_;
    if (order == WarpOrder::kDown) {
      std::stable_sort(order_.begin(), order_.end(), [](const Fiber* a, const Fiber* b) {
        return a->thread.warp() > b->thread.warp();
      });
    }
  }

  void run(int x, int y, int z) {
    std::fill(shared_.begin(), shared_.end(), static_cast<unsigned char>(0xff));
    const auto address = reinterpret_cast<std::uintptr_t>(shared_.data());
    unsigned char* shared = shared_.data() + (128 - address % 128) % 128;
    for (std::size_t i = 0; i < fibers_.size(); ++i) {
      Fiber& fiber = *fibers_[i];
      fiber.thread = {static_cast<int>(i), geometry_.threads, x, y, z, geometry_.blocks, shared};
      fiber.done = fiber.waiting = false;
      fiber.open.clear();
      fiber.groups.clear();
    }
    at_block_ = 0;
    live_ = fibers_.size();
    at_ = 0;
    current_ = order_[0];
    host_lanes() = this;
    main_.change(current().flow);
    host_lanes() = nullptr;
    if (!trouble_.empty()) throw EmulationError(trouble_);
  }

  ~EmulatedBlock() override {
    if (!trouble_.empty()) return;
    for (auto& fiber : fibers_) idle_fibers().push_back(std::move(fiber));
  }
  EmulatedBlock(const EmulatedBlock&) = delete;
  EmulatedBlock& operator=(const EmulatedBlock&) = delete;

  void sync() override {
    ++at_block_;
    if (at_block_ < live_) return wait();
    release_block();
  }

  const unsigned char* gather(Meeting meeting, const void* value, std::size_t bytes) override {
    const Thread& t = current().thread;
    Warp& warp = warps_[static_cast<std::size_t>(t.warp())];
    if (warp.arrived > 0 && warp.meeting != meeting) fail("lanes of a warp meet differently");
    warp.meeting = meeting;
    unsigned char* slots = warp.slots[warp.parity];
    std::memcpy(slots + static_cast<std::size_t>(t.lane()) * kSlotBytes, value, bytes);
    if (++warp.arrived < kWarp) {
      wait();
    } else {
      ++result.meetings;
      if (meeting == Meeting::kLoadMatrices) count_conflicts(slots);
      warp.arrived = 0;
      warp.parity ^= 1;
      Fiber* const* lanes = threads_.data() + static_cast<std::ptrdiff_t>(t.warp()) * kWarp;
      for (int i = 0; i < kWarp; ++i) lanes[i]->waiting = false;
    }
    return slots;
  }

  void copy_async(void* to, const void* from, int bytes) override {
    if (reinterpret_cast<std::uintptr_t>(to) % 16 != 0 ||
        (bytes > 0 && reinterpret_cast<std::uintptr_t>(from) % 16 != 0)) {
      fail("an asynchronous copy that is not aligned to 16 bytes");
    }
    current().open.push_back({to, from, bytes});
    if (order_kind_ == WarpOrder::kDown) land(current().open.back());
  }

  void commit_copies() override {
    current().groups.push_back(std::move(current().open));
    current().open.clear();
  }

  void wait_copies(int groups) override {
    auto& queue = current().groups;
    while (queue.size() > static_cast<std::size_t>(groups)) {
      if (order_kind_ == WarpOrder::kUp) {
        for (const Copy& copy : queue.front()) land(copy);
      }
      queue.pop_front();
    }
  }

  EmulatedRun result;

 private:
  Fiber& current() { return *current_; }

  static std::unique_ptr<Fiber> take_fiber() {
    if (!idle_fibers().empty()) {
      auto fiber = std::move(idle_fibers().back());
      idle_fibers().pop_back();
      return fiber;
    }
    auto fiber = std::make_unique<Fiber>();
    fiber->stack = std::make_unique_for_overwrite<char[]>(kStackBytes);
    ucontext_t& context = fiber->flow.context;
    getcontext(&context);
    context.uc_stack.ss_sp = fiber->stack.get();
    context.uc_stack.ss_size = kStackBytes;
    context.uc_link = nullptr;
#if defined(__SANITIZE_ADDRESS__)
    fiber->flow.bottom = fiber->stack.get();
    fiber->flow.bytes = kStackBytes;
#endif
    makecontext(&context, &EmulatedBlock::start, 0);
    return fiber;
  }

  static void land(const Copy& copy) {
    std::memset(copy.to, 0, 16);
    if (copy.bytes > 0) std::memcpy(copy.to, copy.from, static_cast<std::size_t>(copy.bytes));
  }

  static void start() {
    static_cast<EmulatedBlock*>(host_lanes())->current().flow.arrive();
    for (;;) {
      auto* self = static_cast<EmulatedBlock*>(host_lanes());
      self->body_(self->current().thread);
      self->finish();
    }
  }

  void finish() {
    if (!current().open.empty()) fail("copies that were never committed");
    current().done = true;
    --live_;
    if (live_ == 0) return leave();
    if (at_block_ > 0 && at_block_ == live_) fail("a thread ends while the others wait for it");
    go_on();
  }

  void release_block() {
    ++result.meetings;
    at_block_ = 0;
    for (auto& fiber : fibers_) fiber->waiting = false;
  }

  void wait() {
    current().waiting = true;
    go_on();
  }

  // To the next fiber that can run, of this warp first: a warp gets as far ahead of the others as
  // the barriers let it.
  void go_on() {
    Fiber* const* order = order_.data();
    const std::size_t warp = at_ / kWarp * kWarp, threads = order_.size();
    for (std::size_t i = 0; i < kWarp; ++i) {
      at_ = at_ + 1 < warp + kWarp ? at_ + 1 : warp;
      if (can_run(*order[at_])) return change(*order[at_]);
    }
    at_ = warp + kWarp - 1;
    for (std::size_t i = 0; i < threads; ++i) {
      at_ = at_ + 1 < threads ? at_ + 1 : 0;
      if (can_run(*order[at_])) return change(*order[at_]);
    }
    fail("all threads wait");
  }

  static bool can_run(const Fiber& fiber) { return !fiber.done && !fiber.waiting; }
  void change(Fiber& to) {
    Fiber& from = *current_;
    current_ = &to;
    if (&to != &from) from.flow.change(to.flow);
  }

  // Stacks of fibers that did not end are left as they are: kernels own nothing, nor does this.
  void fail(const char* what) {
    trouble_ = what;
    leave();
  }
  void leave() { current().flow.change(main_); }

  // A matrix is eight rows of 16 bytes; the 32 banks hold eight such rows side by side.
  void count_conflicts(const unsigned char* slots) {
    for (int matrix = 0; matrix < 4; ++matrix) {
      std::set<std::uintptr_t> banks;
      for (int row = 0; row < 8; ++row) {
        std::uintptr_t address;
        const auto lane = static_cast<std::size_t>(matrix * 8 + row);
        std::memcpy(&address, slots + lane * kSlotBytes, sizeof address);
        banks.insert(address / 16 % 8);
      }
      result.bank_conflicts += 8 - static_cast<std::int64_t>(banks.size());
    }
  }

  const Geometry geometry_;
  const std::function<void(const Thread&)>& body_;
  const WarpOrder order_kind_;
  Fibers fibers_;
  std::vector<Warp> warps_;
  std::vector<unsigned char> shared_;
  std::vector<Fiber*> threads_, order_;  // by number; in the order in which they run
  std::size_t at_ = 0;                   // in order_
  Fiber* current_ = nullptr;             // there
  std::size_t at_block_ = 0, live_ = 0;
  Flow main_;
  std::string trouble_;
};

}  // namespace

EmulatedRun emulate(const Geometry& geometry, const std::function<void(const Thread&)>& thread,
                    WarpOrder order) {
  if (geometry.threads % kWarp != 0) throw EmulationError("threads come in warps of 32");
  if (geometry.shared_bytes > static_cast<int>(kSharedMax)) {
    throw EmulationError("more shared memory than a block can have");
  }
  EmulatedBlock block(geometry, thread, order);
  for (int z = 0; z < geometry.blocks_z; ++z) {
    for (int y = 0; y < geometry.blocks_y; ++y) {
      for (int x = 0; x < geometry.blocks; ++x) block.run(x, y, z);
    }
  }
  return block.result;
}

}  // namespace stepcast::cuda
