// Ranks as threads. A collective is: everybody shows where its numbers are; everybody waits; each
// member reduces (or copies) its piece straight out of the others' memory; everybody waits again.
// Nobody copies more than a ring would have it send. Messages lie in a queue a pair and stream.
#include "execute/transport.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>

#include "sim/base/error.h"

namespace stepcast {

namespace {

constexpr int kLooks = 200;  // at whether the others are there, before a thread goes to sleep
constexpr std::size_t kBlock = 2048;  // numbers that stay in the first cache while they are reduced

// What the threads share.
class Exchange {
 public:
  struct Meeting {
    std::condition_variable changed;
    std::vector<float*> data;  // what the members showed
    std::vector<const float*> inputs;
    std::vector<const std::byte*> bytes;
    std::size_t arrived = 0;
    std::atomic<std::uint64_t> round{0};
  };
  struct Mail {
    std::deque<std::vector<std::byte>> messages;
    std::vector<std::vector<std::byte>> spare;
  };

  explicit Exchange(int ranks) : ranks_(static_cast<std::size_t>(ranks)), totals_(ranks_) {}

  Meeting& meeting(const Group& group) {
    const std::lock_guard lock(mutex_);
    const auto key = std::tuple(group.axes.bits, group.ends_only, group.members.front());
    std::unique_ptr<Meeting>& found = meetings_[key];
    if (!found) {
      found = std::make_unique<Meeting>();
      found->data.resize(group.members.size());
      found->inputs.resize(group.members.size());
      found->bytes.resize(group.members.size());
    }
    return *found;
  }

  // All members of the meeting have come here. Waking a thread takes longer than most collectives,
  // so it looks round a while first, and leaves the core to others while it does.
  void wait(Meeting& meeting) {
    std::unique_lock lock(mutex_);
    const std::uint64_t round = meeting.round;
    if (++meeting.arrived == meeting.data.size()) {
      meeting.arrived = 0;
      ++meeting.round;
      meeting.changed.notify_all();
      return check();
    }
    lock.unlock();
    for (int look = 0; look < kLooks && meeting.round == round; ++look) {
      std::this_thread::yield();
    }
    lock.lock();
    meeting.changed.wait(lock, [&] { return aborted_ || meeting.round != round; });
    check();
  }

  // The copies are made outside the lock, so that pairs do not wait for each other.
  void send(int from, int to, Stream stream, std::span<const std::byte> message) {
    Mail& mail = mail_of(from, to, stream);
    std::vector<std::byte> copy;
    {
      const std::lock_guard lock(mutex_);
      check();
      if (!mail.spare.empty()) {
        copy = std::move(mail.spare.back());
        mail.spare.pop_back();
      }
    }
    copy.assign(message.begin(), message.end());
    const std::lock_guard lock(mutex_);
    mail.messages.push_back(std::move(copy));
    posted_.notify_all();
  }

  double receive(int from, int to, Stream stream, std::span<std::byte> message) {
    const auto begin = std::chrono::steady_clock::now();
    Mail& mail = mail_of(from, to, stream);
    std::vector<std::byte> arrived;
    {
      std::unique_lock lock(mutex_);
      posted_.wait(lock, [&] { return aborted_ || !mail.messages.empty(); });
      check();
      arrived = std::move(mail.messages.front());
      mail.messages.pop_front();
    }
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
    STEPCAST_CHECK(arrived.size() == message.size(), "a verified Job's messages fit");
    std::memcpy(message.data(), arrived.data(), arrived.size());
    const std::lock_guard lock(mutex_);
    mail.spare.push_back(std::move(arrived));
    return waited.count();
  }

  void abort() noexcept {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    posted_.notify_all();
    for (auto& [key, meeting] : meetings_) meeting->changed.notify_all();
  }

  std::size_t ranks() const { return ranks_; }
  std::span<double>& total(int rank) { return totals_[static_cast<std::size_t>(rank)]; }

 private:
  Mail& mail_of(int from, int to, Stream stream) {
    const std::lock_guard lock(mutex_);
    return mail_[{from, to, stream}];
  }
  void check() const {
    if (aborted_) throw Error("execute", "another rank stopped");
  }

  const std::size_t ranks_;
  std::mutex mutex_;
  std::condition_variable posted_;
  bool aborted_ = false;
  std::map<std::tuple<std::uint8_t, bool, int>, std::unique_ptr<Meeting>> meetings_;
  std::map<std::tuple<int, int, Stream>, Mail> mail_;
  std::vector<std::span<double>> totals_;
};

// out[i] = inputs[0][i] + inputs[1][i] + ..., or their maximum, i in [begin, end).
template <class Out>
void reduce(const std::vector<const float*>& inputs, std::size_t begin, std::size_t end,
            Reduction reduction, Out out) {
  std::array<float, kBlock> sum;
  for (std::size_t at = begin; at < end; at += kBlock) {
    const std::size_t count = std::min(kBlock, end - at);
    std::copy_n(inputs[0] + at, count, sum.begin());
    for (std::size_t member = 1; member < inputs.size(); ++member) {
      const float* in = inputs[member] + at;
      if (reduction == Reduction::kSum) {
        for (std::size_t i = 0; i < count; ++i) sum[i] += in[i];
      } else {
        for (std::size_t i = 0; i < count; ++i) sum[i] = std::max(sum[i], in[i]);
      }
    }
    out(at, std::span<const float>(sum.data(), count));
  }
}

class ThreadTransport final : public Transport {
 public:
  ThreadTransport(std::shared_ptr<Exchange> exchange, int rank)
      : exchange_(std::move(exchange)), rank_(rank) {}

  int rank() const override { return rank_; }

  void all_reduce(const Group& group, std::span<float> values, Reduction reduction) override {
    Exchange::Meeting& meeting = exchange_->meeting(group);
    meeting.data[group.index] = values.data();
    meeting.inputs[group.index] = values.data();
    exchange_->wait(meeting);
    const std::size_t members = group.members.size();
    // Only this rank touches its piece, in everybody's memory.
    reduce(meeting.inputs, values.size() * group.index / members,
           values.size() * (group.index + 1) / members, reduction,
           [&](std::size_t at, std::span<const float> sum) {
             for (float* data : meeting.data) std::copy(sum.begin(), sum.end(), data + at);
           });
    exchange_->wait(meeting);
  }

  void all_gather(const Group& group, std::span<const float> mine, std::span<float> all) override {
    Exchange::Meeting& meeting = exchange_->meeting(group);
    meeting.inputs[group.index] = mine.data();
    exchange_->wait(meeting);
    for (std::size_t member = 0; member < group.members.size(); ++member) {
      std::copy_n(meeting.inputs[member], mine.size(), all.data() + member * mine.size());
    }
    exchange_->wait(meeting);
  }

  void reduce_scatter(const Group& group, std::span<const float> all, std::span<float> mine,
                      Reduction reduction) override {
    Exchange::Meeting& meeting = exchange_->meeting(group);
    meeting.inputs[group.index] = all.data();
    exchange_->wait(meeting);
    const std::size_t first = group.index * mine.size();
    reduce(meeting.inputs, first, first + mine.size(), reduction,
           [&](std::size_t at, std::span<const float> sum) {
             std::copy(sum.begin(), sum.end(), mine.data() + (at - first));
           });
    exchange_->wait(meeting);
  }

  void all_to_all(const Group& group, std::span<const std::byte> mine,
                  std::span<std::byte> all) override {
    Exchange::Meeting& meeting = exchange_->meeting(group);
    meeting.bytes[group.index] = mine.data();
    exchange_->wait(meeting);
    const std::size_t part = mine.size() / group.members.size();
    for (std::size_t member = 0; member < group.members.size(); ++member) {
      std::copy_n(meeting.bytes[member] + group.index * part, part, all.data() + member * part);
    }
    exchange_->wait(meeting);
  }

  void send(int to, Stream stream, std::span<const std::byte> message) override {
    exchange_->send(rank_, to, stream, message);
  }

  double receive(int from, Stream stream, std::span<std::byte> message) override {
    return exchange_->receive(from, rank_, stream, message);
  }

  void sum_everywhere(std::span<double> values) override {
    Group everybody;
    for (std::size_t rank = 0; rank < exchange_->ranks(); ++rank) {
      everybody.members.push_back(static_cast<int>(rank));
    }
    everybody.index = static_cast<std::size_t>(rank_);
    Exchange::Meeting& meeting = exchange_->meeting(everybody);
    exchange_->total(rank_) = values;
    exchange_->wait(meeting);
    std::vector<double> sum(values.size(), 0.0);
    for (std::size_t rank = 0; rank < exchange_->ranks(); ++rank) {
      const std::span<double> other = exchange_->total(static_cast<int>(rank));
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
    }
    exchange_->wait(meeting);
    std::copy(sum.begin(), sum.end(), values.begin());
    exchange_->wait(meeting);
  }

  void abort() noexcept override { exchange_->abort(); }

 private:
  std::shared_ptr<Exchange> exchange_;
  int rank_;
};

class LoneTransport : public Transport {
 public:
  explicit LoneTransport(int rank) : rank_(rank) {}

  int rank() const override { return rank_; }
  void all_reduce(const Group&, std::span<float>, Reduction) override {}
  void all_gather(const Group&, std::span<const float> mine, std::span<float> all) override {
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = mine[i % mine.size()];
  }
  void reduce_scatter(const Group&, std::span<const float> all, std::span<float> mine,
                      Reduction) override {
    std::copy_n(all.begin(), mine.size(), mine.begin());
  }
  void all_to_all(const Group&, std::span<const std::byte> mine,
                  std::span<std::byte> all) override {
    std::copy(mine.begin(), mine.end(), all.begin());
  }
  void send(int, Stream, std::span<const std::byte>) override {}
  double receive(int, Stream, std::span<std::byte> message) override {
    std::fill(message.begin(), message.end(), std::byte{});
    return 0;
  }
  void sum_everywhere(std::span<double>) override {}
  void abort() noexcept override {}

 private:
  int rank_;
};

}  // namespace

std::unique_ptr<Transport> make_lone_transport(int rank) {
  return std::make_unique<LoneTransport>(rank);
}

Group group_of(const Mesh& mesh, int rank, AxisSet axes, bool ends_only) {
  Group group;
  group.axes = axes;
  group.ends_only = ends_only;
  const int index = mesh.group_index(rank, axes);
  for (int other = 0; other < mesh.ranks(); ++other) {
    if (mesh.group_index(other, axes) != index) continue;
    const int stage = mesh.stage(other);
    if (ends_only && stage != 0 && stage != mesh.stages() - 1) continue;
    if (other == rank) group.index = group.members.size();
    group.members.push_back(other);
  }
  return group;
}

std::vector<std::unique_ptr<Transport>> make_thread_transports(int ranks) {
  const auto exchange = std::make_shared<Exchange>(ranks);
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < ranks; ++rank) {
    transports.push_back(std::make_unique<ThreadTransport>(exchange, rank));
  }
  return transports;
}

}  // namespace stepcast
