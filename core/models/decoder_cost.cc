#include <palimpsest/core/models/decoder_cost.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/kernels/attention.h>
#include <palimpsest/core/models/head_block.h>

#include <algorithm>
#include <initializer_list>
#include <utility>

namespace palimpsest {
namespace {

constexpr int64_t kFloatBytes = 4;
constexpr int64_t kIdBytes = 8;

/// The most that is live at any of these moments, above what is counted elsewhere.
int64_t above(int64_t counted, std::initializer_list<int64_t> moments) {
  return std::max<int64_t>(0, std::max(moments) - counted);
}

int64_t rounded_up(int64_t number, int64_t divisor) {
  return (number + divisor - 1) / divisor;
}

/// A norm's backward sums a parameter's gradient by groups of rows (core/kernels/norm.cc).
int64_t norm_partial_bytes(int64_t rows, int64_t width) {
  const int64_t group = std::max<int64_t>(16, rounded_up(rows, 64));
  return std::max<int64_t>(1, rounded_up(rows, group)) * width * kFloatBytes;
}

/// Tiles of one thread (core/kernels/attention_blocked.cc): scores, their gradients and dropout's
/// factors for 128 queries and 512 keys; queries, upstream and output; keys and values; and sums of
/// both gradients over `summed_keys`.
int64_t attention_tile_bytes(int64_t head_dim, int64_t summed_keys) {
  constexpr int64_t kQueries = 128;
  constexpr int64_t kKeys = 512;
  return kFloatBytes *
      (3 * kQueries * kKeys + (3 * kQueries + 2 * kKeys + 2 * summed_keys) * head_dim);
}

class DecoderCost {
 public:
  DecoderCost(const DecoderConfig& config, const DecoderWork& work, const DeviceSpeed& device)
      : config_(config), family_(*config.family), work_(work), device_(device),
        rows_(work.samples * work.tokens),
        element_(static_cast<int64_t>(c10::elementSize(work.decoder.compute))),
        q_width_(config.num_attention_heads * config.head_dim),
        kv_width_(config.num_key_value_heads * config.head_dim),
        inner_(family_.gated ? 2 * config.intermediate_size : config.intermediate_size),
        norm_parameters_(family_.norm == NormKind::kLayer ? 2 : 1),
        hidden_(matrix(config.hidden_size)), statistics_(rows_ * norm_parameters_ * kFloatBytes),
        norm_gradients_(norm_parameters_ * config.hidden_size * kFloatBytes),
        norm_sums_(
            norm_parameters_ * norm_partial_bytes(rows_, config.hidden_size) + norm_gradients_),
        dropped_(work.decoder.residual_dropout > 0 ? hidden_ : 0) {}

  ModelCost model() const {
    const Chain chain = build_decoder(config_, work_.decoder);
    ModelCost model;
    model.batch_bytes = 2 * rows_ * kIdBytes; // ids and labels
    for (const auto& unit : chain.units) {
      model.units.push_back(unit_cost(*unit));
    }
    const BlockCost feed_forward = mlp();
    for (size_t index = 0; index < chain.blocks.size(); ++index) {
      const ChainBlock& entry = chain.blocks[index];
      BlockCost cost = index == 0 ? embedding()
          : index % 2 == 1        ? attention(config_.window(static_cast<int64_t>(index / 2)))
                                  : feed_forward;
      cost.name = entry.name;
      cost.reads = entry.reads;
      cost.saves = entry.saves;
      cost.units = entry.units;
      cost.backward_reads_units = entry.backward_reads_units;
      model.blocks.push_back(std::move(cost));
    }
    BlockCost terminal = head();
    terminal.name = chain.terminal->kind();
    terminal.reads = chain.terminal_reads;
    terminal.units = chain.terminal_units;
    model.blocks.push_back(std::move(terminal));
    for (const ChainLayer& named : chain.layers) {
      model.layers.push_back({named.name, named.blocks});
    }
    model.validate();
    return model;
  }

 private:
  /// Bytes of [rows, columns] in the compute type.
  int64_t matrix(int64_t columns) const {
    return rows_ * columns * element_;
  }

  // ---- seconds of kernels
  double seconds(double flops, double bytes) const {
    return std::max(flops / device_.flops, bytes / device_.bandwidth) + device_.latency;
  }
  double stream(int64_t bytes) const {
    return seconds(0, static_cast<double>(bytes));
  }
  /// [rows, inner] times [inner, columns].
  double product(int64_t rows, int64_t columns, int64_t inner) const {
    const auto n = static_cast<double>(rows);
    const auto c = static_cast<double>(columns);
    const auto k = static_cast<double>(inner);
    return seconds(2 * n * c * k, static_cast<double>(element_) * (n * k + k * c + n * c));
  }
  /// [rows, columns]^T times [rows, inner], added to fp32 sums.
  double weight_product(int64_t rows, int64_t columns, int64_t inner) const {
    const auto n = static_cast<double>(rows);
    const auto c = static_cast<double>(columns);
    const auto k = static_cast<double>(inner);
    return seconds(
        2 * n * c * k, static_cast<double>(element_) * n * (c + k) + 2.0 * kFloatBytes * c * k);
  }

  UnitCost unit_cost(const ParamUnit& unit) const {
    const int64_t masters = work_.decoder.compute == at::kFloat ? 0 : 1;
    UnitCost cost{
        .name = unit.name(),
        .elements = unit.numel(),
        .parameter_bytes = unit.numel() * element_,
        .gradient_bytes = unit.numel() * kFloatBytes,
        .state_bytes = unit.numel() * kFloatBytes * (masters + work_.moment_count)};
    // the gradient is read, states are read and written, parameters written (fp32 ones read too)
    cost.update_seconds = stream(
        cost.gradient_bytes + 2 * cost.state_bytes + (masters == 1 ? 1 : 2) * cost.parameter_bytes);
    return cost;
  }

  BlockCost embedding() const {
    const bool learned = !family_.rotary;
    const int64_t dropped = work_.decoder.embedding_dropout > 0 ? hidden_ : 0;
    BlockCost cost{.value_bytes = {hidden_}};
    cost.weight_jobs_bytes = hidden_ + (learned ? 2 : 1) * rows_ * kIdBytes;
    cost.forward_workspace = {.none = dropped, .lean = dropped, .full = dropped};
    // the positions' numbers, repeated for each sample
    const int64_t numbers = work_.tokens * (1 + (work_.samples > 1 ? work_.samples : 0)) * kIdBytes;
    cost.backward_workspace.lean = dropped + (learned ? numbers : 0);
    cost.backward_workspace.full = cost.backward_workspace.lean;
    cost.forward_seconds = stream(2 * hidden_ + 2 * dropped) + (learned ? stream(2 * hidden_) : 0);
    cost.weight_seconds =
        (learned ? 2 : 1) * stream(hidden_ + 2 * kFloatBytes * rows_ * config_.hidden_size);
    return cost;
  }

  /// What norms of heads make beside q and k, and what their backward sums gradients in.
  struct HeadNorms {
    int64_t bytes = 0;
    int64_t sums = 0;
    int64_t gradients = 0;
  };
  HeadNorms head_norms() const {
    if (!family_.head_norms) {
      return {};
    }
    const int64_t heads = config_.num_attention_heads;
    const int64_t all_heads = heads + config_.num_key_value_heads;
    const int64_t gradient = config_.head_dim * kFloatBytes;
    return {
        .bytes = matrix(q_width_ + kv_width_) + rows_ * all_heads * kFloatBytes,
        .sums = norm_partial_bytes(rows_ * heads, config_.head_dim) + gradient,
        .gradients = 2 * gradient};
  }

  BlockCost attention(int64_t window) const {
    const int64_t width = q_width_ + 2 * kv_width_;
    const int64_t qkv = matrix(width);
    const int64_t attended = matrix(q_width_);
    const int64_t logsumexp = rows_ * config_.num_attention_heads * kFloatBytes;
    const int64_t threads = device_.attention_threads;
    const int64_t tiles = threads * attention_tile_bytes(config_.head_dim, 0);
    const int64_t backward_tiles = threads *
        attention_tile_bytes(config_.head_dim, element_ == kFloatBytes ? 0 : work_.tokens);
    const HeadNorms heads = head_norms();

    BlockCost cost{.value_bytes = {hidden_}};
    cost.lean_bytes = statistics_ + qkv + attended + logsumexp;
    cost.full_bytes = cost.lean_bytes + hidden_ + heads.bytes;
    cost.weight_jobs_bytes = hidden_ + attended + qkv + hidden_ + norm_gradients_ + heads.gradients;
    // norm and q, k, v; then attention; then the projection beside the value
    const int64_t projected = hidden_ + statistics_ + qkv;
    const int64_t value = hidden_ + dropped_;
    const int64_t attending = cost.lean_bytes + heads.bytes + tiles;
    cost.forward_workspace.none =
        above(hidden_, {projected, attending, statistics_ + attended + logsumexp + value});
    cost.forward_workspace.lean =
        above(hidden_ + cost.lean_bytes, {projected, attending, cost.lean_bytes + value});
    cost.forward_workspace.full =
        above(hidden_ + cost.full_bytes, {cost.full_bytes + tiles, cost.full_bytes + value});
    // through the projection, attention and the norms of heads; the tape goes; through q, k, v and
    // the norm
    const int64_t spent = qkv + attended + logsumexp;
    const int64_t through =
        attended + qkv + std::max(backward_tiles, heads.sums - attended - logsumexp);
    const int64_t norm = 2 * hidden_ + norm_sums_;
    cost.backward_workspace.lean = above(
        hidden_,
        {attended + dropped_,
         through + heads.bytes,
         qkv + hidden_ + statistics_ - spent,
         norm - spent});
    const int64_t all_spent = spent + heads.bytes;
    cost.backward_workspace.full =
        above(hidden_, {attended + dropped_, through, qkv - all_spent, norm - all_spent - hidden_});

    const double rows = static_cast<double>(rows_);
    // scores and weighted sum over the keys that are seen
    const double scores = static_cast<double>(work_.samples) * 4 * static_cast<double>(q_width_) *
        static_cast<double>(kernels::causal_pairs(work_.tokens, window));
    const double products =
        rows * 2 * static_cast<double>(config_.hidden_size * (2 * q_width_ + 2 * kv_width_));
    cost.forward_flops = products + scores;
    cost.value_flops = rows * 2 * static_cast<double>(config_.hidden_size * q_width_);
    cost.backward_flops = 2 * cost.forward_flops;

    const int64_t hidden_size = config_.hidden_size;
    const double pass = stream(2 * matrix(q_width_ + kv_width_)); // over q and k
    const double rotary = family_.rotary ? pass : 0;
    const double normed_heads = family_.head_norms ? pass : 0;
    const double output = product(rows_, hidden_size, q_width_);
    cost.value_seconds = {.lean = output, .full = output};
    cost.lean_seconds = stream(2 * hidden_) + (family_.head_norms ? normed_heads + rotary : 0);
    cost.forward_seconds = stream(2 * hidden_) + product(rows_, width, hidden_size) + rotary +
        normed_heads + seconds(scores, static_cast<double>(qkv + attended)) + output;
    // five products where the forward has two: the scores are computed again
    cost.input_seconds = product(rows_, q_width_, hidden_size) +
        seconds(2.5 * scores, static_cast<double>(2 * qkv + 2 * attended)) + rotary +
        2 * normed_heads + product(rows_, hidden_size, width) + stream(4 * hidden_);
    cost.weight_seconds =
        weight_product(rows_, hidden_size, q_width_) + weight_product(rows_, width, hidden_size);
    return cost;
  }

  BlockCost mlp() const {
    const int64_t hidden_size = config_.hidden_size;
    const int64_t inner = config_.intermediate_size;
    const int64_t gated = matrix(inner);
    const int64_t gate_up = matrix(inner_);
    // other activations of a gate are done by LibTorch, a tensor at a time
    const bool fused = !family_.gated || config_.hidden_act == HiddenAct::kSilu ||
        config_.hidden_act == HiddenAct::kGeluTanh;
    const int64_t activated = fused ? 0 : gated;

    BlockCost cost{.value_bytes = {hidden_}};
    cost.lean_bytes = statistics_ + gate_up;
    cost.full_bytes = cost.lean_bytes + hidden_ + gated;
    cost.weight_jobs_bytes = hidden_ + gated + gate_up + hidden_ + norm_gradients_;
    // norm, gate and up; their product; the projection beside the value
    const int64_t projected = hidden_ + statistics_ + gate_up;
    const int64_t value = hidden_ + dropped_;
    cost.forward_workspace.none = above(
        hidden_, {projected, cost.lean_bytes + gated + activated, statistics_ + gated + value});
    cost.forward_workspace.lean = above(
        hidden_ + cost.lean_bytes,
        {projected, cost.lean_bytes + gated + activated, cost.lean_bytes + gated + value});
    cost.forward_workspace.full =
        above(hidden_ + cost.full_bytes, {cost.full_bytes + activated, cost.full_bytes + value});
    // through the projection and the product (in its place without a gate), a lean tape's product
    // redone; the norm
    const int64_t through = dropped_ + gated + (family_.gated ? gate_up : 0) + 2 * activated;
    const int64_t norm = 2 * hidden_ + norm_sums_;
    cost.backward_workspace.lean =
        above(hidden_, {through + gated, hidden_ + statistics_, norm - gate_up});
    cost.backward_workspace.full = above(hidden_, {through, norm - gate_up - gated - hidden_});

    cost.value_flops = static_cast<double>(rows_) * 2 * static_cast<double>(hidden_size * inner);
    cost.forward_flops = (family_.gated ? 3 : 2) * cost.value_flops;
    cost.backward_flops = 2 * cost.forward_flops;

    const double norm_seconds = stream(2 * hidden_);
    const double product_seconds = stream(gate_up + gated);
    const double down = product(rows_, hidden_size, inner);
    cost.value_seconds = {.lean = down, .full = down};
    cost.lean_seconds = norm_seconds + product_seconds;
    cost.forward_seconds = cost.lean_seconds + product(rows_, inner_, hidden_size) + down;
    cost.input_seconds = product(rows_, inner, hidden_size) + stream(2 * gate_up + gated) +
        product(rows_, hidden_size, inner_) + stream(4 * hidden_);
    cost.weight_seconds =
        weight_product(rows_, hidden_size, inner) + weight_product(rows_, inner_, hidden_size);
    return cost;
  }

  /// A chunk of rows at a time, forward and back.
  BlockCost head() const {
    const int64_t hidden_size = config_.hidden_size;
    const int64_t vocabulary = config_.vocab_size;
    const int64_t chunk_rows = std::min(
        rows_,
        std::max(
            kMinHeadRows,
            work_.decoder.head_chunk_bytes / std::max<int64_t>(vocabulary * element_, 1)));
    const int64_t chunk = chunk_rows * hidden_size * element_;
    const int64_t logits = chunk_rows * vocabulary * element_;
    const int64_t targets = rows_ * kIdBytes;
    // its rows, normed, with statistics and labels
    const int64_t taken = 2 * chunk + chunk_rows * (norm_parameters_ * kFloatBytes + kIdBytes);

    BlockCost cost;
    const int64_t selected = targets + rows_; // and where they are, a byte each
    cost.forward_workspace.none = std::max(selected, targets + logits + taken);
    cost.forward_workspace.full = std::max(
        selected - hidden_,
        targets + logits + taken + 2 * chunk +
            norm_parameters_ * norm_partial_bytes(chunk_rows, hidden_size));
    cost.forward_workspace.lean = cost.forward_workspace.full;
    cost.forward_flops =
        2 * static_cast<double>(rows_ * hidden_size) * static_cast<double>(vocabulary);
    cost.backward_flops = 2 * cost.forward_flops;
    const double of_a_chunk = stream(2 * chunk) + // its rows are taken
        stream(2 * chunk) + product(chunk_rows, vocabulary, hidden_size) + stream(2 * logits) +
        weight_product(chunk_rows, vocabulary, hidden_size) +
        product(chunk_rows, hidden_size, vocabulary) + stream(3 * chunk) + stream(2 * chunk);
    cost.forward_seconds =
        of_a_chunk * static_cast<double>(rows_) / static_cast<double>(chunk_rows);
    return cost;
  }

  const DecoderConfig& config_;
  const DecoderFamily& family_;
  const DecoderWork& work_;
  const DeviceSpeed& device_;
  int64_t rows_;
  int64_t element_; // bytes
  int64_t q_width_;
  int64_t kv_width_;
  int64_t inner_; // columns of the MLP's first product
  int64_t norm_parameters_; // vectors: gain, or gain and bias
  int64_t hidden_; // bytes of [rows, hidden_size]
  int64_t statistics_; // of a norm, a float or two a row
  int64_t norm_gradients_; // of its parameters
  int64_t norm_sums_; // what its backward sums them in
  int64_t dropped_; // what dropout of the residual needs besides its result
};

} // namespace

ModelCost analytic_cost(
    const DecoderConfig& config,
    const DecoderWork& work,
    const DeviceSpeed& device) {
  check(!work.decoder.trainable, "the cost of frozen parameters is not known in closed form");
  check(work.samples > 0 && work.tokens > 0, "a micro-batch without tokens");
  return DecoderCost(config, work, device).model();
}

} // namespace palimpsest
