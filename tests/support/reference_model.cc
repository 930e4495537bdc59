// Reverse-mode differentiation on a tape: every scalar is a node with at most two parents and the
// partial derivatives to them; a walk from the last node to the first adds up adjoints (Griewank &
// Walther 2008). O(operations) in time and memory, a few million nodes for the models of the tests.
#include "tests/support/reference_model.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <string>
#include <utility>

#include "execute/dropout.h"
#include "execute/hash.h"
#include "sim/base/error.h"

namespace stepcast {
namespace {

struct Term {
  std::int32_t a = -1, b = -1;
  double da = 0, db = 0;
};

struct Tape {
  std::vector<double> value;
  std::vector<Term> node;

  std::int32_t push(double v, Term n = {}) {
    value.push_back(v);
    node.push_back(n);
    return static_cast<std::int32_t>(value.size()) - 1;
  }
  double at(std::int32_t i) const { return value[static_cast<std::size_t>(i)]; }

  std::int32_t add(std::int32_t a, std::int32_t b) { return push(at(a) + at(b), {a, b, 1, 1}); }
  std::int32_t sub(std::int32_t a, std::int32_t b) { return push(at(a) - at(b), {a, b, 1, -1}); }
  std::int32_t mul(std::int32_t a, std::int32_t b) {
    return push(at(a) * at(b), {a, b, at(b), at(a)});
  }
  std::int32_t scale(std::int32_t a, double c) { return push(at(a) * c, {a, -1, c, 0}); }
  std::int32_t shift(std::int32_t a, double c) { return push(at(a) + c, {a, -1, 1, 0}); }
  std::int32_t exp(std::int32_t a) {
    const double e = std::exp(at(a));
    return push(e, {a, -1, e, 0});
  }
  std::int32_t log(std::int32_t a) { return push(std::log(at(a)), {a, -1, 1 / at(a), 0}); }
  std::int32_t power(std::int32_t a, double p) {
    return push(std::pow(at(a), p), {a, -1, p * std::pow(at(a), p - 1), 0});
  }
  std::int32_t tanh(std::int32_t a) {
    const double t = std::tanh(at(a));
    return push(t, {a, -1, 1 - t * t, 0});
  }

  std::vector<double> adjoints(std::int32_t result) const {
    std::vector<double> adjoint(value.size(), 0.0);
    adjoint[static_cast<std::size_t>(result)] = 1;
    for (auto i = static_cast<std::size_t>(result) + 1; i-- > 0;) {
      const Term& n = node[i];
      if (n.a >= 0) adjoint[static_cast<std::size_t>(n.a)] += n.da * adjoint[i];
      if (n.b >= 0) adjoint[static_cast<std::size_t>(n.b)] += n.db * adjoint[i];
    }
    return adjoint;
  }
};

using Row = std::vector<std::int32_t>;   // of the tape
using Rows = std::vector<Row>;

struct Parameter {
  std::vector<double> value, moment1, moment2;
  std::int32_t first = 0;  // on the tape of the current step
};

class Reference {
 public:
  Reference(const Model& model, const ReferenceRun& run) : model_(model), run_(run) {}

  std::vector<double> train(const Corpus& corpus) {
    std::vector<double> losses;
    for (std::int64_t step = 0; step < run_.steps; ++step) losses.push_back(one_step(corpus, step));
    return losses;
  }

 private:
  double one_step(const Corpus& corpus, std::int64_t step);
  std::int32_t sequence_loss(const std::vector<std::int64_t>& text);
  // x as dropout `name` of a layer leaves it; the row and column as execute/dropout.h counts them.
  std::int32_t drop(std::int32_t x, const std::string& name, std::int64_t layer, std::int64_t row,
                    std::int64_t column);
  Row norm(const Row& x, const std::string& name, std::int64_t layer);
  Row linear(const Row& x, const std::string& name, std::int64_t layer, std::int64_t out,
             bool bias, const std::string& bias_name = "");
  void rotate(Row& row, std::int64_t heads, std::int64_t position);
  Rows attention(const Rows& x, std::int64_t layer);
  // x times the matrix (out, columns of x) whose elements stand from `w` on.
  Row product(const Row& x, std::int32_t w, std::int64_t out);
  Row activated(const Row& up, std::int64_t ffn);
  Row mlp(const Row& in, const std::string& prefix, std::int64_t layer, std::int64_t ffn);
  Row experts(const Row& in, std::int64_t layer);
  Row branch(const Row& x, std::int64_t layer);
  std::int32_t gelu(std::int32_t x);
  std::int32_t silu(std::int32_t x);
  void update(const std::vector<double>& adjoints, std::int64_t step);

  // Element (row, column) of a parameter, made at its first use.
  enum class Begin { kMatrix, kOnes, kZeros };
  std::int32_t parameter(const std::string& name, std::int64_t layer, std::int64_t size,
                         Begin begin);

  const Model& model_;
  const ReferenceRun& run_;
  std::uint32_t step_ = 0;
  std::int64_t sequence_ = 0;  // of the step
  Tape tape_;
  std::map<std::pair<std::string, std::int64_t>, Parameter> parameters_;
  std::map<std::pair<std::string, std::int64_t>, bool> on_tape_;
};

std::int32_t Reference::parameter(const std::string& name, std::int64_t layer, std::int64_t size,
                                  Begin begin) {
  Parameter& p = parameters_[{name, layer}];
  if (p.value.empty()) {
    const auto n = static_cast<std::size_t>(size);
    p.value.assign(n, begin == Begin::kOnes ? 1.0 : 0.0);
    p.moment1.assign(n, 0.0);
    p.moment2.assign(n, 0.0);
    const std::uint64_t key =
        hash(hash(run_.seed, name), static_cast<std::uint64_t>(layer), 0);
    for (std::size_t i = 0; i < n && begin == Begin::kMatrix; ++i) {
      const std::uint64_t bits = hash(key, 1, i);
      const double normal = std::sqrt(-2 * std::log(1 - unit(bits))) *
                            std::cos(2 * std::numbers::pi * unit(mix(bits)));
      p.value[i] = static_cast<float>(run_.deviation * normal);
    }
  }
  bool& here = on_tape_[{name, layer}];
  if (!here) {
    p.first = static_cast<std::int32_t>(tape_.value.size());
    for (const double value : p.value) tape_.push(value);
    here = true;
  }
  return p.first;
}

std::int32_t Reference::drop(std::int32_t x, const std::string& name, std::int64_t layer,
                             std::int64_t row, std::int64_t column) {
  if (run_.dropout == 0) return x;
  const std::uint64_t key = hash(hash(run_.seed, name), static_cast<std::uint64_t>(layer), 2);
  const DropoutMask mask = dropout_rule(run_.dropout, key, &step_).now();
  return tape_.scale(x, mask.keeps(row, column) ? 1 / (1 - run_.dropout) : 0);
}

Row Reference::norm(const Row& x, const std::string& name, std::int64_t layer) {
  const auto n = static_cast<std::int64_t>(x.size());
  const bool centred = model_.norm == NormKind::kLayer;
  const std::int32_t gain = parameter(name + ".weight", layer, n, Begin::kOnes);
  Row c = x;
  if (centred) {
    std::int32_t sum = x[0];
    for (std::size_t i = 1; i < x.size(); ++i) sum = tape_.add(sum, x[i]);
    const std::int32_t mean = tape_.scale(sum, 1.0 / static_cast<double>(n));
    for (std::int32_t& one : c) one = tape_.sub(one, mean);
  }
  std::int32_t squares = tape_.mul(c[0], c[0]);
  for (std::size_t i = 1; i < c.size(); ++i) squares = tape_.add(squares, tape_.mul(c[i], c[i]));
  const std::int32_t scale =
      tape_.power(tape_.shift(tape_.scale(squares, 1.0 / static_cast<double>(n)), 1e-5), -0.5);
  for (std::size_t i = 0; i < c.size(); ++i) {
    c[i] = tape_.mul(tape_.mul(c[i], scale), gain + static_cast<std::int32_t>(i));
  }
  if (centred) {
    const std::int32_t bias = parameter(name + ".bias", layer, n, Begin::kZeros);
    for (std::size_t i = 0; i < c.size(); ++i) {
      c[i] = tape_.add(c[i], bias + static_cast<std::int32_t>(i));
    }
  }
  return c;
}

Row Reference::linear(const Row& x, const std::string& name, std::int64_t layer, std::int64_t out,
                      bool bias, const std::string& bias_name) {
  const auto in = static_cast<std::int64_t>(x.size());
  const std::int32_t w = parameter(name + ".weight", layer, out * in, Begin::kMatrix);
  const std::int32_t b =
      bias ? parameter(bias_name.empty() ? name + ".bias" : bias_name, layer, out, Begin::kZeros)
           : -1;
  Row y = product(x, w, out);
  for (std::int32_t o = 0; o < out && bias; ++o) {
    y[static_cast<std::size_t>(o)] = tape_.add(y[static_cast<std::size_t>(o)], b + o);
  }
  return y;
}

Row Reference::product(const Row& x, std::int32_t w, std::int64_t out) {
  const auto in = static_cast<std::int32_t>(x.size());
  Row y;
  for (std::int32_t o = 0; o < out; ++o) {
    std::int32_t sum = tape_.mul(x[0], w + o * in);
    for (std::int32_t i = 1; i < in; ++i) {
      sum = tape_.add(sum, tape_.mul(x[static_cast<std::size_t>(i)], w + o * in + i));
    }
    y.push_back(sum);
  }
  return y;
}

// RoFormer, with the halves of a head as pairs.
void Reference::rotate(Row& row, std::int64_t heads, std::int64_t position) {
  const auto half = static_cast<std::size_t>(model_.head_dim / 2);
  for (std::size_t head = 0; head < static_cast<std::size_t>(heads); ++head) {
    for (std::size_t j = 0; j < half; ++j) {
      const double angle = static_cast<double>(position) *
                           std::pow(10000.0, -static_cast<double>(j) / static_cast<double>(half));
      std::int32_t& low = row[2 * head * half + j];
      std::int32_t& high = row[2 * head * half + half + j];
      const std::int32_t x = low, y = high;
      const double cos = model_.rotary_attention_factor * std::cos(angle),
                   sin = model_.rotary_attention_factor * std::sin(angle);
      low = tape_.sub(tape_.scale(x, cos), tape_.scale(y, sin));
      high = tape_.add(tape_.scale(y, cos), tape_.scale(x, sin));
    }
  }
}

Rows Reference::attention(const Rows& x, std::int64_t layer) {
  const std::int64_t d = model_.head_dim, q_width = model_.heads * d, kv = model_.kv_heads * d;
  Rows q, k, v, out;
  for (std::size_t t = 0; t < x.size(); ++t) {
    const Row in = norm(x[t], "norm1", layer);
    if (run_.separate) {
      q.push_back(linear(in, "q", layer, q_width, model_.qkv_bias));
      k.push_back(linear(in, "k", layer, kv, model_.qkv_bias));
      v.push_back(linear(in, "v", layer, kv, model_.qkv_bias));
    } else {
      const Row all = linear(in, "qkv", layer, q_width + 2 * kv, model_.qkv_bias);
      q.emplace_back(all.begin(), all.begin() + q_width);
      k.emplace_back(all.begin() + q_width, all.begin() + q_width + kv);
      v.emplace_back(all.begin() + q_width + kv, all.end());
    }
    if (!model_.rotary) continue;
    rotate(q.back(), model_.heads, static_cast<std::int64_t>(t));
    rotate(k.back(), model_.kv_heads, static_cast<std::int64_t>(t));
  }
  for (std::size_t t = 0; t < x.size(); ++t) {
    Row joined(static_cast<std::size_t>(q_width), -1);
    const auto window = static_cast<std::size_t>(model_.window_of(layer));
    const std::size_t first = window > 0 && t + 1 > window ? t + 1 - window : 0;
    for (std::int64_t head = 0; head < model_.heads; ++head) {
      const auto at = static_cast<std::size_t>(head * d);
      const auto kv_at = static_cast<std::size_t>(head / (model_.heads / model_.kv_heads) * d);
      Row weights(first, -1);
      std::int32_t sum =
          model_.attention_sinks
              ? tape_.exp(parameter("attention.sinks", layer, model_.heads, Begin::kZeros) +
                          static_cast<std::int32_t>(head))
              : -1;
      for (std::size_t u = first; u <= t; ++u) {
        std::int32_t score = -1;
        for (std::size_t c = 0; c < static_cast<std::size_t>(d); ++c) {
          const std::int32_t product = tape_.mul(q[t][at + c], k[u][kv_at + c]);
          score = score < 0 ? product : tape_.add(score, product);
        }
        weights.push_back(tape_.exp(tape_.scale(score, 1 / std::sqrt(static_cast<double>(d)))));
        sum = sum < 0 ? weights.back() : tape_.add(sum, weights.back());
      }
      const std::int32_t inverse = tape_.power(sum, -1);
      const std::int64_t row =
          (sequence_ * model_.heads + head) * run_.sequence + static_cast<std::int64_t>(t);
      for (std::size_t u = first; u <= t; ++u) {
        weights[u] = drop(weights[u], "attention", layer, row, static_cast<std::int64_t>(u));
      }
      for (std::size_t c = 0; c < static_cast<std::size_t>(d); ++c) {
        std::int32_t value = -1;
        for (std::size_t u = first; u <= t; ++u) {
          const std::int32_t part = tape_.mul(weights[u], v[u][kv_at + c]);
          value = value < 0 ? part : tape_.add(value, part);
        }
        joined[at + c] = tape_.mul(value, inverse);
      }
    }
    out.push_back(linear(joined, "proj", layer, model_.hidden, model_.attention_output_bias,
                         "attention.add.bias"));
  }
  return out;
}

// The tanh form.
std::int32_t Reference::gelu(std::int32_t x) {
  const std::int32_t inner = tape_.scale(
      tape_.add(x, tape_.scale(tape_.power(x, 3), 0.044715)), std::sqrt(2 / std::numbers::pi));
  return tape_.mul(tape_.scale(x, 0.5), tape_.shift(tape_.tanh(inner), 1));
}

std::int32_t Reference::silu(std::int32_t x) {
  return tape_.mul(x, tape_.power(tape_.shift(tape_.exp(tape_.scale(x, -1)), 1), -1));
}

// Of a gate and its partner side by side, or of one branch. gpt-oss's within its limits.
Row Reference::activated(const Row& up, std::int64_t ffn) {
  Row active;
  for (std::size_t i = 0; i < static_cast<std::size_t>(ffn); ++i) {
    const std::int32_t partner = model_.gated() ? up[i + static_cast<std::size_t>(ffn)] : -1;
    if (model_.activation == Activation::kSwigluOai) {
      const std::int32_t gate = tape_.scale(silu(tape_.scale(up[i], 1.702)), 1 / 1.702);
      active.push_back(tape_.mul(gate, tape_.shift(partner, 1)));
    } else {
      active.push_back(model_.gated() ? tape_.mul(silu(up[i]), partner) : gelu(up[i]));
    }
  }
  return active;
}

Row Reference::mlp(const Row& in, const std::string& prefix, std::int64_t layer, std::int64_t ffn) {
  const bool gated = model_.gated();
  Row up;
  if (gated && run_.separate) {
    up = linear(in, prefix + "gate", layer, ffn, model_.mlp_bias);
    const Row partner = linear(in, prefix + "up", layer, ffn, model_.mlp_bias);
    up.insert(up.end(), partner.begin(), partner.end());
  } else {
    up = linear(in, prefix + "fc1", layer, (gated ? 2 : 1) * ffn, model_.mlp_bias);
  }
  return linear(activated(up, ffn), prefix + "fc2", layer, model_.hidden, model_.mlp_bias,
                "mlp.add.bias");
}

// Shazeer et al. 2017: the sum over the experts with the highest logits, by the softmax over these.
Row Reference::experts(const Row& in, std::int64_t layer) {
  const std::int64_t h = model_.hidden, f = model_.expert_ffn;
  const std::int64_t width = (model_.gated() ? 2 : 1) * f;
  const bool biased = model_.mlp_bias;
  const Row logits = linear(in, "router", layer, model_.experts, biased);
  const std::int32_t up =
      parameter("experts.fc1.weight", layer, model_.experts * width * h, Begin::kMatrix);
  const std::int32_t down =
      parameter("experts.fc2.weight", layer, model_.experts * h * f, Begin::kMatrix);
  const auto biases = [&](const std::string& name, std::int64_t size) {
    return biased ? parameter(name, layer, model_.experts * size, Begin::kZeros) : -1;
  };
  const std::int32_t up_bias = biases("experts.fc1.bias", width);
  const std::int32_t down_bias = biases("experts.fc2.bias", h);
  std::vector<std::size_t> order(logits.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return tape_.at(logits[a]) > tape_.at(logits[b]);
  });
  order.resize(static_cast<std::size_t>(model_.experts_per_token));
  std::int32_t sum = -1;
  Row parts, y;
  for (const std::size_t expert : order) {
    parts.push_back(tape_.exp(logits[expert]));
    sum = sum < 0 ? parts.back() : tape_.add(sum, parts.back());
  }
  const std::int32_t inverse = tape_.power(sum, -1);
  for (std::size_t j = 0; j < order.size(); ++j) {
    const auto expert = static_cast<std::int64_t>(order[j]);
    const auto from = [&](std::int32_t first, std::int64_t size) {
      return first + static_cast<std::int32_t>(expert * size);
    };
    const auto with_bias = [&](Row row, std::int32_t first) {
      for (std::size_t c = 0; c < row.size() && biased; ++c) {
        row[c] = tape_.add(row[c], from(first, static_cast<std::int64_t>(row.size())) +
                                       static_cast<std::int32_t>(c));
      }
      return row;
    };
    const Row active =
        activated(with_bias(product(in, from(up, width * h), width), up_bias), f);
    const Row out = with_bias(product(active, from(down, h * f), h), down_bias);
    const std::int32_t weight = tape_.mul(parts[j], inverse);
    for (std::size_t c = 0; c < out.size(); ++c) {
      const std::int32_t part = tape_.mul(weight, out[c]);
      if (j == 0) {
        y.push_back(part);
      } else {
        y[c] = tape_.add(y[c], part);
      }
    }
  }
  return y;
}

// The second of a layer: its MLP, or its experts and the MLP that all tokens take besides.
Row Reference::branch(const Row& x, std::int64_t layer) {
  const Row in = norm(x, "norm2", layer);
  if (model_.experts == 0 || layer < model_.dense_layers) return mlp(in, "", layer, model_.ffn);
  Row y = experts(in, layer);
  if (model_.shared_ffn == 0) return y;
  const Row shared = mlp(in, "shared.", layer, model_.shared_ffn);
  for (std::size_t c = 0; c < y.size(); ++c) y[c] = tape_.add(y[c], shared[c]);
  return y;
}

std::int32_t Reference::sequence_loss(const std::vector<std::int64_t>& text) {
  const auto h = static_cast<std::int32_t>(model_.hidden);
  Rows x;
  for (std::int64_t t = 0; t < run_.sequence; ++t) {
    const std::int32_t table = parameter("embedding.weight", -1,
                                         model_.vocabulary * h, Begin::kMatrix);
    const auto id = static_cast<std::int32_t>(text[static_cast<std::size_t>(t)]);
    Row row;
    for (std::int32_t c = 0; c < h; ++c) row.push_back(table + id * h + c);
    if (model_.learned_positions) {
      const std::int32_t positions =
          parameter("positions.weight", -1, model_.positions * h, Begin::kMatrix);
      for (std::int32_t c = 0; c < h; ++c) {
        std::int32_t& one = row[static_cast<std::size_t>(c)];
        one = tape_.add(one, positions + static_cast<std::int32_t>(t) * h + c);
      }
    }
    x.push_back(std::move(row));
  }
  const auto dropped = [&](std::int32_t one, const std::string& name, std::int64_t layer,
                           std::size_t t, std::size_t c) {
    const std::int64_t row = sequence_ * run_.sequence + static_cast<std::int64_t>(t);
    return drop(one, name, layer, row, static_cast<std::int64_t>(c));
  };
  for (std::size_t t = 0; t < x.size(); ++t) {
    for (std::size_t c = 0; c < x[t].size(); ++c) {
      x[t][c] = dropped(x[t][c], "embedding", -1, t, c);
    }
  }
  const auto add = [&](std::size_t t, const Row& more, const std::string& name,
                       std::int64_t layer) {
    for (std::size_t c = 0; c < more.size(); ++c) {
      x[t][c] = tape_.add(x[t][c], dropped(more[c], name, layer, t, c));
    }
  };
  for (std::int64_t layer = 0; layer < model_.layers; ++layer) {
    const Rows attended = attention(x, layer);
    for (std::size_t t = 0; t < x.size(); ++t) {
      add(t, attended[t], "attention.add", layer);
      add(t, branch(x[t], layer), "mlp.add", layer);
    }
  }
  const std::string head = model_.tied_embeddings ? "embedding" : "head";
  std::int32_t loss = -1;
  for (std::size_t t = 0; t < x.size(); ++t) {
    const Row logits = linear(norm(x[t], "final_norm", -1), head, -1, model_.vocabulary, false);
    std::int32_t sum = -1;
    for (const std::int32_t logit : logits) {
      const std::int32_t e = tape_.exp(logit);
      sum = sum < 0 ? e : tape_.add(sum, e);
    }
    const std::int32_t one =
        tape_.sub(tape_.log(sum), logits[static_cast<std::size_t>(text[t + 1])]);
    loss = loss < 0 ? one : tape_.add(loss, one);
  }
  return loss;
}

void Reference::update(const std::vector<double>& adjoints, std::int64_t step) {
  const AdamW& o = run_.optimizer;
  double squares = 0;
  for (const auto& [key, p] : parameters_) {
    for (std::size_t i = 0; i < p.value.size(); ++i) {
      const double g = adjoints[static_cast<std::size_t>(p.first) + i];
      squares += g * g;
    }
  }
  const double clip = std::min(1.0, o.clip / (std::sqrt(squares) + 1e-6));
  const auto n = static_cast<double>(step + 1);
  for (auto& [key, p] : parameters_) {
    for (std::size_t i = 0; i < p.value.size(); ++i) {
      const double g = clip * adjoints[static_cast<std::size_t>(p.first) + i];
      p.moment1[i] = o.beta1 * p.moment1[i] + (1 - o.beta1) * g;
      p.moment2[i] = o.beta2 * p.moment2[i] + (1 - o.beta2) * g * g;
      const double m = p.moment1[i] / (1 - std::pow(o.beta1, n));
      const double v = p.moment2[i] / (1 - std::pow(o.beta2, n));
      p.value[i] -= o.rate * (m / (std::sqrt(v) + o.epsilon) + o.decay * p.value[i]);
    }
  }
}

double Reference::one_step(const Corpus& corpus, std::int64_t step) {
  tape_ = {};
  on_tape_.clear();
  step_ = static_cast<std::uint32_t>(step);
  std::int32_t total = -1;
  std::vector<std::int64_t> text(static_cast<std::size_t>(run_.sequence) + 1);
  for (std::int64_t g = 0; g < run_.global; ++g) {
    corpus.read(step * run_.global + g, run_.sequence + 1, text.data());
    sequence_ = g;
    const std::int32_t loss = sequence_loss(text);
    total = total < 0 ? loss : tape_.add(total, loss);
  }
  const std::int32_t mean =
      tape_.scale(total, 1.0 / static_cast<double>(run_.global * run_.sequence));
  update(tape_.adjoints(mean), step);
  return tape_.at(mean);
}

}  // namespace

std::vector<double> reference_losses(const Model& model, const ReferenceRun& run,
                                     const Corpus& corpus) {
  STEPCAST_CHECK(!model.qk_norm && !model.post_norms, "the reference has no such norms");
  return Reference(model, run).train(corpus);
}

}  // namespace stepcast
