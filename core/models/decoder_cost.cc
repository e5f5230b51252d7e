#include <palimpsest/core/models/decoder_cost.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/kernels/attention.h>
#include <palimpsest/core/models/head_block.h>

#include <algorithm>
#include <initializer_list>
#include <map>
#include <string>
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
        gradient_(static_cast<double>(work.precision.gradient_bytes())),
        q_width_(config.num_attention_heads * config.head_dim),
        kv_width_(config.num_key_value_heads * config.head_dim),
        inner_(family_.gated ? 2 * config.intermediate_size : config.intermediate_size),
        norm_parameters_(family_.norm == NormKind::kLayer ? 2 : 1),
        hidden_(matrix(config.hidden_size)), statistics_(rows_ * norm_parameters_ * kFloatBytes),
        dropped_(work.decoder.residual_dropout > 0 ? hidden_ : 0) {}

  ModelCost model() const {
    const Chain chain = build_decoder(config_, work_.decoder);
    ModelCost model;
    model.batch_bytes = (work_.packed ? 3 : 2) * rows_ * kIdBytes; // ids, labels, positions
    std::map<std::string, const ParamUnit*> homes;
    for (const auto& unit : chain.units) {
      model.units.push_back(unit_cost(*unit));
      for (const Parameter& parameter : unit->parameters()) {
        homes[parameter.name] = unit.get();
      }
    }
    for (size_t index = 0; index < chain.blocks.size(); ++index) {
      const ChainBlock& entry = chain.blocks[index];
      const auto layer = static_cast<int64_t>(index - 1) / 2;
      BlockCost cost = index == 0 ? embedding(homes)
          : index % 2 == 1        ? attention(layer, homes)
                                  : mlp(layer, homes);
      cost.name = entry.name;
      cost.reads = entry.reads;
      cost.saves = entry.saves;
      cost.units = entry.units;
      cost.backward_reads_units = entry.backward_reads_units;
      model.blocks.push_back(std::move(cost));
    }
    BlockCost terminal = head(homes);
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
  /// [rows, columns]^T times [rows, inner], added to a gradient.
  double weight_product(int64_t rows, int64_t columns, int64_t inner) const {
    const auto n = static_cast<double>(rows);
    const auto c = static_cast<double>(columns);
    const auto k = static_cast<double>(inner);
    return seconds(
        2 * n * c * k, static_cast<double>(element_) * n * (c + k) + 2 * gradient_ * c * k);
  }

  UnitCost unit_cost(const ParamUnit& unit) const {
    const StatePrecision& precision = work_.precision;
    const at::ScalarType compute = work_.decoder.compute;
    UnitCost cost{
        .name = unit.name(),
        .elements = unit.numel(),
        .parameter_bytes = unit.held_bytes(),
        .frozen = !unit.trainable()};
    if (cost.frozen) {
      return cost;
    }
    cost.gradient_bytes = unit.numel() * precision.gradient_bytes();
    cost.state_bytes = unit.numel() * precision.state_bytes(compute, work_.moment_count);
    // the gradient is read, states are read and written, parameters written (without a master read
    // too)
    cost.update_seconds = stream(
        cost.gradient_bytes + 2 * cost.state_bytes +
        (precision.has_master(compute) ? 1 : 2) * cost.parameter_bytes);
    return cost;
  }

  // ---- what is frozen
  using Homes = std::map<std::string, const ParamUnit*>; // of parameters by name

  static bool trains(const Homes& homes, const TensorGroup& group) {
    return trained_elements(homes, group) > 0;
  }
  static int64_t trained_elements(const Homes& homes, const TensorGroup& group) {
    int64_t count = 0;
    for (const TensorDeclaration& tensor : group) {
      count += homes.at(tensor.name)->trainable() ? tensor.elements() : 0;
    }
    return count;
  }

  /// A norm's parameters that are trained, and what their gradients are summed in.
  struct NormGradients {
    int64_t bytes = 0;
    int64_t sums = 0;
  };
  NormGradients norm_gradients(const Homes& homes, const TensorGroup& gain, const TensorGroup& bias)
      const {
    const int64_t trained = (trains(homes, gain) ? 1 : 0) + (trains(homes, bias) ? 1 : 0);
    const int64_t bytes = trained * config_.hidden_size * kFloatBytes;
    // a layer norm sums both where it sums one
    const int64_t summed = trained == 0 ? 0 : norm_parameters_;
    return {bytes, bytes + summed * norm_partial_bytes(rows_, config_.hidden_size)};
  }

  /// A linear layer: what of it is trained, the copies that are made of weights that a codec holds,
  /// what its adapters make, and the seconds that this takes.
  struct LinearState {
    bool reads = true; // whether gradients need its input
    int64_t trained_outputs = 0; // those of trained weights
    int64_t bias_gradient = 0; // of biases that are trained alone: bytes of their gradients
    int64_t forward = 0; // beside its output: a copy, or what an adapter makes
    int64_t backward = 0; // beside the input's gradient
    int64_t adding = 0; // the most that an adapter makes in a product
    int64_t queued = 0; // what adapters put into the queue of weight gradients
    int64_t adapters = 0;
    int64_t later = 0; // what the first of them takes when its gradients are made of that
    double forward_flops = 0; // adapters' included
    double backward_flops = 0;
    double copy_seconds = 0;
    double adapter_seconds = 0; // of a forward
    double adapter_input_seconds = 0;
    double adapter_weight_seconds = 0;
  };
  LinearState linear_state(const Homes& homes, const TensorGroup& weight, const TensorGroup& bias)
      const {
    LinearState state{.reads = trains(homes, weight)};
    state.forward_flops = 2 * static_cast<double>(rows_ * elements(weight));
    state.backward_flops =
        state.forward_flops + 2 * static_cast<double>(rows_ * trained_elements(homes, weight));
    const auto trainable = [&](const std::string& name) { return homes.at(name)->trainable(); };
    for (const ProductTensors& product : products_of(weight, bias, trainable)) {
      const ParamUnit& unit = *homes.at(product.weights.front().name);
      if (unit.trainable()) {
        for (const TensorDeclaration& tensor : product.weights) {
          state.trained_outputs += linear_layer(config_, tensor).outputs;
        }
        continue;
      }
      state.bias_gradient += trained_elements(homes, product.biases) * kFloatBytes;
      if (unit.codec() != nullptr) {
        const int64_t copy = elements(product.weights) * element_;
        state.forward = std::max(state.forward, copy);
        state.copy_seconds += stream(
            copy +
            unit.held(elements(product.weights)) *
                static_cast<int64_t>(c10::elementSize(unit.held_dtype())));
      }
    }
    state.backward = state.forward;
    for (const TensorDeclaration& tensor : weight) {
      add_adapter(state, homes, linear_layer(config_, tensor));
    }
    return state;
  }
  void add_adapter(LinearState& state, const Homes& homes, const LinearDeclaration& layer) const {
    const AdapterSet& adapters = work_.decoder.adapters;
    const auto found = adapters.layers.find(layer.name);
    if (found == adapters.layers.end()) {
      return;
    }
    const int64_t rank = found->second.rank;
    const AdapterTensors names = adapter_tensors(layer, found->second);
    const bool a = homes.at(names.a.name)->trainable();
    const bool b = homes.at(names.b.name)->trainable();
    const int64_t queued = (a ? 1 : 0) + (b ? 1 : 0);
    const int64_t narrow = matrix(rank);
    const int64_t dropped = adapters.dropout > 0 ? matrix(layer.inputs) : 0;
    if (state.adapters++ == 0) { // the others find more of the queue gone
      state.later = dropped - narrow;
    }
    state.reads = state.reads || queued > 0;
    state.queued += queued * narrow;
    state.adding = std::max(state.adding, dropped + narrow);
    state.forward = std::max(state.forward, dropped + narrow);
    state.backward = std::max(state.backward, 2 * dropped + narrow);
    const double flops = 2 * static_cast<double>(rows_ * rank);
    const double flops_of_a = flops * static_cast<double>(layer.inputs);
    const double flops_of_b = flops * static_cast<double>(layer.outputs);
    state.forward_flops += flops_of_a + flops_of_b;
    state.backward_flops += (a ? 2 : 1) * flops_of_a + (b ? 2 : 1) * flops_of_b;
    const double narrowed = product(rows_, rank, layer.inputs);
    const double widened = product(rows_, rank, layer.outputs);
    state.adapter_seconds += narrowed + widened + stream(2 * dropped);
    // again what the weights' gradients are made of
    state.adapter_input_seconds +=
        (b ? 2 : 1) * narrowed + (a ? 2 : 1) * widened + stream(2 * dropped);
    state.adapter_weight_seconds +=
        (a ? weight_product(rows_, rank, layer.inputs) + stream(2 * dropped) : 0) +
        (b ? weight_product(rows_, layer.outputs, rank) : 0);
  }
  /// Of the queue, what is there besides the weight's operands.
  static int64_t beside_weights(const LinearState& state) {
    return state.bias_gradient + state.queued;
  }
  /// Above the queue, when its weight gradients are made: x with dropout. The last user of the output's
  /// gradient has freed that (`upstream` bytes) before.
  static int64_t later_bytes(const LinearState& state, int64_t upstream) {
    return state.adapters == 0 ? 0 : state.later - (state.adapters == 1 ? upstream : 0);
  }
  static double back_seconds(const LinearState& state) {
    return state.copy_seconds + state.adapter_input_seconds;
  }
  double weight_seconds(const LinearState& state, int64_t inputs) const {
    const bool some = state.trained_outputs > 0;
    return (some ? weight_product(rows_, state.trained_outputs, inputs) : 0) +
        state.adapter_weight_seconds;
  }
  static int64_t elements(const TensorGroup& group) {
    int64_t count = 0;
    for (const TensorDeclaration& tensor : group) {
      count += tensor.elements();
    }
    return count;
  }

  BlockCost embedding(const Homes& homes) const {
    const bool learned = !family_.rotary;
    const bool table = homes.at(embedding_tensor(config_).name)->trainable();
    const bool positions = trains(homes, position_tensor(config_));
    const int64_t dropped = work_.decoder.embedding_dropout > 0 ? hidden_ : 0;
    BlockCost cost{.value_bytes = {hidden_}};
    const int64_t looked_up = (table ? 1 : 0) + (positions ? 1 : 0);
    cost.weight_jobs_bytes = looked_up == 0 ? 0 : hidden_ + looked_up * rows_ * kIdBytes;
    // positions are looked up row by row where they are packed
    const int64_t beside = learned && work_.packed ? hidden_ : dropped;
    cost.forward_workspace = {.none = beside, .lean = beside, .full = beside};
    // the positions' numbers, repeated for each sample
    const int64_t repeated = work_.samples > 1 ? work_.samples : 0;
    const int64_t numbers = work_.packed ? 0 : work_.tokens * (1 + repeated) * kIdBytes;
    cost.backward_workspace.lean = dropped + (positions ? numbers : 0);
    cost.backward_workspace.full = cost.backward_workspace.lean;
    cost.forward_seconds = stream(2 * hidden_ + 2 * dropped) + (learned ? stream(2 * hidden_) : 0);
    cost.weight_seconds = static_cast<double>(looked_up) *
        stream(hidden_ + 2 * work_.precision.gradient_bytes() * rows_ * config_.hidden_size);
    return cost;
  }

  /// What norms of heads make beside q and k, and what their backward sums gradients in.
  struct HeadNorms {
    int64_t bytes = 0;
    int64_t sums = 0;
    int64_t gradients = 0;
  };
  HeadNorms head_norms(const Homes& homes, const AttentionTensors& of) const {
    if (!family_.head_norms) {
      return {};
    }
    const bool q = trains(homes, of.q_norm);
    const bool k = trains(homes, of.k_norm);
    const int64_t heads = config_.num_attention_heads;
    const int64_t all_heads = heads + config_.num_key_value_heads;
    const int64_t gradient = config_.head_dim * kFloatBytes;
    return {
        .bytes = matrix(q_width_ + kv_width_) + rows_ * all_heads * kFloatBytes,
        .sums = q || k
            ? norm_partial_bytes(rows_ * (q ? heads : all_heads - heads), config_.head_dim) +
                gradient
            : 0,
        .gradients = ((q ? 1 : 0) + (k ? 1 : 0)) * gradient};
  }

  BlockCost attention(int64_t layer, const Homes& homes) const {
    const AttentionTensors of = attention_tensors(config_, layer);
    const LinearState first = linear_state(homes, of.qkv, of.qkv_bias);
    const LinearState last = linear_state(homes, of.output, of.output_bias);
    const NormGradients gradients = norm_gradients(homes, of.norm, of.norm_bias);
    const int64_t width = q_width_ + 2 * kv_width_;
    const int64_t qkv = matrix(width);
    const int64_t attended = matrix(q_width_);
    const int64_t logsumexp = rows_ * config_.num_attention_heads * kFloatBytes;
    const int64_t threads = device_.attention_threads;
    const int64_t tiles = threads * attention_tile_bytes(config_.head_dim, 0);
    const int64_t backward_tiles = threads *
        attention_tile_bytes(config_.head_dim, element_ == kFloatBytes ? 0 : work_.tokens);
    const HeadNorms heads = head_norms(homes, of);

    BlockCost cost{.value_bytes = {hidden_}};
    cost.lean_bytes = statistics_ + qkv + attended + logsumexp;
    const int64_t kept = first.reads ? hidden_ : 0; // what the norm gave
    cost.full_bytes = cost.lean_bytes + kept + heads.bytes;
    cost.weight_jobs_bytes = (last.reads ? hidden_ + attended : 0) +
        (first.reads ? qkv + hidden_ : 0) + beside_weights(first) + beside_weights(last) +
        gradients.bytes + heads.gradients;
    cost.weight_workspace = std::max<int64_t>(
        {0,
         later_bytes(last, dropped_),
         later_bytes(first, qkv) - last.queued - (last.reads ? dropped_ + attended : 0)});
    // norm and q, k, v; then attention; then the projection beside the value
    const int64_t projected = hidden_ + statistics_ + qkv + first.forward;
    const int64_t value = hidden_ + std::max(dropped_, last.forward);
    const int64_t attending = cost.lean_bytes + heads.bytes + tiles;
    cost.forward_workspace.none =
        above(hidden_, {projected, attending, statistics_ + attended + logsumexp + value});
    cost.forward_workspace.lean =
        above(hidden_ + cost.lean_bytes, {projected, attending, cost.lean_bytes + value});
    cost.forward_workspace.full = above(
        hidden_ + cost.full_bytes, {projected, cost.full_bytes + tiles, cost.full_bytes + value});
    // through the projection, attention and the norms of heads; the tape goes; through q, k, v and
    // the norm
    const int64_t spent = qkv + attended + logsumexp;
    const int64_t through =
        attended + qkv + std::max(backward_tiles, heads.sums - attended - logsumexp);
    const int64_t norm = 2 * hidden_ + gradients.sums;
    const int64_t back = attended + dropped_ + last.backward;
    const int64_t normed = qkv + hidden_ + first.backward; // the gradient of what the norm gave
    cost.backward_workspace.lean = above(
        hidden_,
        {back,
         through + heads.bytes,
         qkv + (first.reads ? hidden_ + statistics_ : 0) - spent,
         normed - spent,
         norm - spent});
    const int64_t all_spent = spent + heads.bytes;
    cost.backward_workspace.full = above(
        hidden_,
        {back, through, qkv - all_spent, normed - all_spent - kept, norm - all_spent - kept});

    add_time_of_attention(cost, config_.window(layer), first, last);
    return cost;
  }

  void add_time_of_attention(
      BlockCost& cost,
      int64_t window,
      const LinearState& first,
      const LinearState& last) const {
    const int64_t width = q_width_ + 2 * kv_width_;
    const int64_t qkv = matrix(width);
    const int64_t attended = matrix(q_width_);
    // scores and weighted sum over the keys that are seen
    const double scores = static_cast<double>(work_.samples) * 4 * static_cast<double>(q_width_) *
        static_cast<double>(kernels::causal_pairs(work_.tokens, window));
    cost.forward_flops = first.forward_flops + last.forward_flops + scores;
    cost.value_flops = last.forward_flops;
    cost.backward_flops = first.backward_flops + last.backward_flops + 2 * scores;

    const int64_t hidden_size = config_.hidden_size;
    const double pass = stream(2 * matrix(q_width_ + kv_width_)); // over q and k
    const double rotary = family_.rotary ? pass : 0;
    const double normed_heads = family_.head_norms ? pass : 0;
    const double output =
        product(rows_, hidden_size, q_width_) + last.copy_seconds + last.adapter_seconds;
    cost.value_seconds = {.lean = output, .full = output};
    cost.lean_seconds = stream(2 * hidden_) + (family_.head_norms ? normed_heads + rotary : 0);
    cost.forward_seconds = stream(2 * hidden_) + product(rows_, width, hidden_size) + rotary +
        normed_heads + seconds(scores, static_cast<double>(qkv + attended)) + output +
        first.copy_seconds + first.adapter_seconds;
    // five products where the forward has two: the scores are computed again
    cost.input_seconds = product(rows_, q_width_, hidden_size) +
        seconds(2.5 * scores, static_cast<double>(2 * qkv + 2 * attended)) + rotary +
        2 * normed_heads + product(rows_, hidden_size, width) + stream(4 * hidden_) +
        back_seconds(first) + back_seconds(last);
    cost.weight_seconds = weight_seconds(last, q_width_) + weight_seconds(first, hidden_size);
  }

  BlockCost mlp(int64_t layer, const Homes& homes) const {
    const MlpTensors of = mlp_tensors(config_, layer);
    const LinearState first = linear_state(homes, of.inner, of.inner_bias);
    const LinearState last = linear_state(homes, of.down, of.down_bias);
    const NormGradients gradients = norm_gradients(homes, of.norm, of.norm_bias);
    const int64_t gated = matrix(config_.intermediate_size);
    const int64_t gate_up = matrix(inner_);
    // other activations of a gate are done by LibTorch, a tensor at a time
    const bool fused = !family_.gated || config_.hidden_act == HiddenAct::kSilu ||
        config_.hidden_act == HiddenAct::kGeluTanh;
    const int64_t activated = fused ? 0 : gated;

    BlockCost cost{.value_bytes = {hidden_}};
    cost.lean_bytes = statistics_ + gate_up;
    const int64_t kept = first.reads ? hidden_ : 0; // what the norm gave
    const int64_t kept_product = last.reads ? gated : 0;
    const int64_t without = cost.lean_bytes + kept;
    cost.full_bytes = without + kept_product;
    cost.weight_jobs_bytes = (last.reads ? hidden_ + gated : 0) +
        (first.reads ? gate_up + hidden_ : 0) + beside_weights(first) + beside_weights(last) +
        gradients.bytes;
    cost.weight_workspace = std::max<int64_t>(
        {0,
         later_bytes(last, dropped_),
         later_bytes(first, gate_up) - last.queued - (last.reads ? dropped_ + gated : 0)});
    // norm, gate and up; their product; the projection beside the value
    const int64_t projected = hidden_ + statistics_ + gate_up + first.forward;
    const int64_t value = hidden_ + std::max(dropped_, last.forward);
    cost.forward_workspace.none = above(
        hidden_, {projected, cost.lean_bytes + gated + activated, statistics_ + gated + value});
    cost.forward_workspace.lean = above(
        hidden_ + cost.lean_bytes,
        {projected, cost.lean_bytes + gated + activated, cost.lean_bytes + gated + value});
    cost.forward_workspace.full = above(
        hidden_ + cost.full_bytes,
        {projected, without + gated + activated, without + gated + value});
    // through the projection and the product (in its place without a gate), a lean tape's product
    // redone; the norm
    const int64_t through = dropped_ + gated + (family_.gated ? gate_up : 0) + 2 * activated;
    const int64_t back = dropped_ + gated + last.backward;
    const int64_t adapted = dropped_ + gated - (family_.gated ? 0 : gate_up) + last.adding;
    const int64_t normed = hidden_ + first.backward; // the gradient of what the norm gave
    const int64_t norm = 2 * hidden_ + gradients.sums;
    cost.backward_workspace.lean = above(
        hidden_,
        {back,
         through + kept_product,
         adapted + kept_product,
         first.reads ? hidden_ + statistics_ : 0,
         normed,
         norm - gate_up});
    cost.backward_workspace.full = above(
        hidden_,
        {back,
         through,
         adapted,
         normed - kept_product - kept,
         norm - gate_up - kept_product - kept});

    add_time_of_mlp(cost, first, last);
    return cost;
  }

  void add_time_of_mlp(BlockCost& cost, const LinearState& first, const LinearState& last) const {
    const int64_t hidden_size = config_.hidden_size;
    const int64_t inner = config_.intermediate_size;
    const int64_t gated = matrix(inner);
    const int64_t gate_up = matrix(inner_);
    cost.value_flops = last.forward_flops;
    cost.forward_flops = first.forward_flops + last.forward_flops;
    cost.backward_flops = first.backward_flops + last.backward_flops;

    const double norm_seconds = stream(2 * hidden_);
    const double product_seconds = stream(gate_up + gated);
    const double down =
        product(rows_, hidden_size, inner) + last.copy_seconds + last.adapter_seconds;
    cost.value_seconds = {.lean = down, .full = down};
    cost.lean_seconds = norm_seconds + product_seconds;
    cost.forward_seconds = cost.lean_seconds + product(rows_, inner_, hidden_size) + down +
        first.copy_seconds + first.adapter_seconds;
    cost.input_seconds = product(rows_, inner, hidden_size) + stream(2 * gate_up + gated) +
        product(rows_, hidden_size, inner_) + stream(4 * hidden_) + back_seconds(first) +
        back_seconds(last);
    cost.weight_seconds = weight_seconds(last, inner) + weight_seconds(first, hidden_size);
  }

  /// A chunk of rows at a time, forward and back.
  BlockCost head(const Homes& homes) const {
    const HeadTensors of = head_tensors(config_);
    const std::string weight =
        of.weight.empty() ? embedding_tensor(config_).name : of.weight.front().name;
    const bool trained = homes.at(weight)->trainable();
    const bool norm = trains(homes, of.norm) || trains(homes, of.norm_bias);
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
            (norm ? norm_parameters_ * norm_partial_bytes(chunk_rows, hidden_size) : 0));
    cost.forward_workspace.lean = cost.forward_workspace.full;
    cost.forward_flops =
        2 * static_cast<double>(rows_ * hidden_size) * static_cast<double>(vocabulary);
    cost.backward_flops = (trained ? 2 : 1) * cost.forward_flops;
    const double of_a_chunk = stream(2 * chunk) + // its rows are taken
        stream(2 * chunk) + product(chunk_rows, vocabulary, hidden_size) + stream(2 * logits) +
        (trained ? weight_product(chunk_rows, vocabulary, hidden_size) : 0) +
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
  double gradient_; // bytes
  int64_t q_width_;
  int64_t kv_width_;
  int64_t inner_; // columns of the MLP's first product
  int64_t norm_parameters_; // vectors: gain, or gain and bias
  int64_t hidden_; // bytes of [rows, hidden_size]
  int64_t statistics_; // of a norm, a float or two a row
  int64_t dropped_; // what dropout of the residual needs besides its result
};

} // namespace

ModelCost analytic_cost(
    const DecoderConfig& config,
    const DecoderWork& work,
    const DeviceSpeed& device) {
  check(work.samples > 0 && work.tokens > 0, "a micro-batch without tokens");
  return DecoderCost(config, work, device).model();
}

} // namespace palimpsest
