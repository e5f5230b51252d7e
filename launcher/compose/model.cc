#include <palimpsest/launcher/compose/model.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/files.h>
#include <palimpsest/core/base/words.h>
#include <palimpsest/core/data/text_tools.h>
#include <palimpsest/core/io/checkpoint_manifest.h>
#include <palimpsest/core/io/checkpoint_reader.h>
#include <palimpsest/core/io/companions.h>
#include <palimpsest/core/io/decoder_config.h>
#include <palimpsest/core/io/decoder_tensors.h>
#include <palimpsest/core/io/hub_cache.h>
#include <palimpsest/core/models/freeze.h>
#include <palimpsest/core/models/frozen_codec.h>
#include <palimpsest/core/models/generator.h>
#include <palimpsest/core/models/original_weights.h>
#include <palimpsest/launcher/compose/adapters.h>
#include <palimpsest/launcher/compose/finite_weights.h>
#include <palimpsest/launcher/compose/settings.h>

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace palimpsest {
namespace {

RopeConfig rope_config(const RunConfig::Model& model) {
  RopeConfig rope{.theta = model.rope_theta()};
  if (!model.has_rope_scaling()) {
    return rope;
  }
  const RunConfig::RopeScaling& scaling = model.rope_scaling();
  rope.type = parse_rope_type(scaling.rope_type()).value();
  rope.factor = scaling.factor();
  if (scaling.has_original_max_position_embeddings()) {
    rope.original_max_position_embeddings = scaling.original_max_position_embeddings();
  }
  rope.low_freq_factor = scaling.low_freq_factor();
  rope.high_freq_factor = scaling.high_freq_factor();
  if (scaling.has_attention_factor()) {
    rope.attention_factor = scaling.attention_factor();
  }
  rope.beta_fast = scaling.beta_fast();
  rope.beta_slow = scaling.beta_slow();
  if (scaling.has_mscale()) {
    rope.mscale = scaling.mscale();
  }
  if (scaling.has_mscale_all_dim()) {
    rope.mscale_all_dim = scaling.mscale_all_dim();
  }
  rope.truncate = scaling.truncate();
  return rope;
}

HiddenAct hidden_act(const std::string& name) {
  if (const auto act = parse_hidden_act(name)) {
    return *act;
  }
  throw UserError(
      "model.hidden_act: a decoder cannot use '{}'; give silu, gelu, gelu_pytorch_tanh or relu",
      name);
}

DecoderConfig decoder_config(const RunConfig::Model& model) {
  DecoderConfig decoder;
  decoder.family = find_decoder_family(model.family());
  check(decoder.family != nullptr, "no decoder family is called {}", model.family());
  const auto has = [](Presence presence, bool given) {
    return presence == Presence::kAlways || (presence == Presence::kByConfig && given);
  };
  decoder.vocab_size = model.vocab_size();
  decoder.hidden_size = model.hidden_size();
  decoder.intermediate_size = model.intermediate_size();
  decoder.num_hidden_layers = model.num_hidden_layers();
  decoder.num_attention_heads = model.num_attention_heads();
  decoder.num_key_value_heads = model.num_key_value_heads();
  decoder.head_dim = model.head_dim();
  decoder.max_position_embeddings = model.max_position_embeddings();
  decoder.norm_eps = model.rms_norm_eps();
  decoder.tie_word_embeddings = model.tie_word_embeddings();
  decoder.qkv_bias = has(decoder.family->qkv_bias, model.attention_bias());
  decoder.output_bias = has(decoder.family->output_bias, model.attention_bias());
  decoder.mlp_bias = has(decoder.family->mlp_bias, model.mlp_bias());
  decoder.attention_dropout = model.attention_dropout();
  decoder.residual_dropout = model.dropout();
  decoder.embedding_dropout = model.embedding_dropout();
  decoder.windows =
      layer_windows(model.num_hidden_layers(), model.sliding_window(), model.max_window_layers());
  decoder.hidden_act = hidden_act(model.hidden_act());
  decoder.initializer_range = model.initializer_range();
  decoder.rope = rope_config(model);
  return complete_decoder_config(decoder, "model");
}

/// The keys that may stand beside a folder's config.json.
void override_dropout(DecoderConfig& decoder, const RunConfig::Model& model) {
  if (model.has_attention_dropout()) {
    decoder.attention_dropout = model.attention_dropout();
  }
  if (model.has_dropout()) {
    decoder.residual_dropout = model.dropout();
  }
  if (model.has_embedding_dropout()) {
    decoder.embedding_dropout = model.embedding_dropout();
  }
}

MlpChainConfig mlp_config(const RunConfig::Model& model) {
  MlpChainConfig mlp;
  mlp.widths.push_back(model.input_size());
  mlp.widths.insert(mlp.widths.end(), model.hidden_sizes().begin(), model.hidden_sizes().end());
  mlp.widths.insert(
      mlp.widths.end(), static_cast<size_t>(model.num_hidden_layers()), model.hidden_size());
  mlp.widths.push_back(model.output_size());
  mlp.activation = model.hidden_act() == "tanh" ? kernels::Activation::kTanh
                                                : activation_of(hidden_act(model.hidden_act()));
  return mlp;
}

/// Whether the codec, or the compute type where that is null, has anything to hold.
bool holds_frozen_weights(const Chain& chain, const std::shared_ptr<const ParamCodec>& codec) {
  return std::ranges::any_of(chain.units, [&](const auto& unit) {
    return codec == nullptr ? !unit->trainable() : unit->codec() == codec.get();
  });
}

at::ScalarType compute_dtype(const std::string& name) {
  return name == "bf16" ? at::kBFloat16 : name == "fp16" ? at::kHalf : at::kFloat;
}

} // namespace

Model::Model(const RunConfig& config, const std::optional<std::filesystem::path>& checkpoint) {
  const RunConfig::Model& model = config.model();
  const at::ScalarType compute = compute_dtype(config.precision().compute());
  compute_ = config.precision().compute();
  if (compute != at::kFloat) {
    masters_ = config.precision().master() == "none" ? " without masters" : " with fp32 master";
  }
  family_ = model.family();
  if (model.has_path()) {
    const bool gone = !find_model(model.path());
    if (gone && checkpoint) {
      kept_ = CheckpointReader(*checkpoint).model_layout();
      kept_->small_files.erase(std::string(kPeftConfigName));
      settings_.decoder =
          parse_decoder_config(kept_->config_text, (*checkpoint / "model/config.json").string());
      notes_.push_back(fmt::format(
          "{} is gone: config and tokenizer are taken from {}",
          model.path(),
          checkpoint->string()));
    } else {
      folder_.emplace(resolve_model(model.path()));
      settings_.decoder = parse_decoder_config(folder_->config_text(), folder_->config_path());
      settle_folder(*folder_, settings_.decoder);
      folder_->compare_with(decoder_tensors(settings_.decoder));
    }
    family_ = settings_.decoder.family->name;
    override_dropout(settings_.decoder, model);
  } else if (family_ == "mlp") {
    settings_.mlp = mlp_config(model);
  } else {
    settings_.decoder = decoder_config(model);
  }
  if (const auto texts = texts_folder(config, checkpoint);
      config.data().has_tokenizer() && holds_tokenizer(texts)) {
    tokenizer_ = read_companions(texts);
    tokenizer_.erase("generation_config.json"); // of the model that it came with
    if (checkpoint && texts == *checkpoint / "model") {
      notes_.push_back(fmt::format(
          "{} is gone: the tokenizer is taken from {}",
          config.data().tokenizer(),
          checkpoint->string()));
    }
  }
  if (config.has_lora() && !reads_tokens()) {
    throw UserError("lora: adapters are for decoders, and model.family is {}", family_);
  }
  if (reads_tokens()) {
    ChosenAdapters chosen = adapters_of(config, settings_.decoder, checkpoint);
    settings_.decoder_options.adapters = std::move(chosen.set);
    adapter_folder_ = std::move(chosen.folder);
    std::ranges::move(chosen.notes, std::back_inserter(notes_));
    base_model_ = base_model_name(model);
  }
  settings_.decoder_options.compute = compute;
  settings_.decoder_options.residual_dropout = settings_.decoder.residual_dropout;
  settings_.decoder_options.embedding_dropout = settings_.decoder.embedding_dropout;
  settings_.mlp.compute = compute;
  const auto& frozen = config.training().freeze();
  const Freeze freeze("training.freeze", {frozen.begin(), frozen.end()});
  settings_.decoder_options.trainable = freeze.trainable();
  settings_.mlp.trainable = freeze.trainable();
  if (config.precision().has_frozen()) {
    settings_.decoder_options.frozen = frozen_codec(config.precision().frozen(), compute);
    settings_.mlp.frozen = settings_.decoder_options.frozen;
    frozen_ = ", frozen weights in " + config.precision().frozen();
  }
  ModelRegistry families("model.family");
  register_models(families);
  family_functions_ = families.at(family_);
  chain_ = family_functions_.build(settings_);
  freeze.check(chain_);
  if (config.precision().has_frozen() && !holds_frozen_weights(chain_, settings_.mlp.frozen)) {
    throw UserError(
        "precision.frozen is {}, but all linear weights of the layers are trained; freeze some "
        "with training.freeze, train adapters with lora, or leave it out",
        config.precision().frozen());
  }
}

void Model::check_length(int64_t positions) const {
  const bool stretches =
      settings_.decoder.family->rotary && settings_.decoder.rope.type == RopeType::kDynamic;
  if (reads_tokens() && !stretches && positions > max_positions()) {
    throw UserError(
        "data.sequence_length: samples have {} tokens, but the model's max_position_embeddings is "
        "{}; make them shorter, or raise it together with a rotary embedding that is scaled",
        positions,
        max_positions());
  }
}

std::string Model::description() const {
  const int64_t trained = chain_.trained_count();
  return fmt::format(
      "{}, {:L} parameters{}, {}, {}{}{}",
      family_,
      chain_.parameter_count(),
      trained < chain_.parameter_count() ? fmt::format(" of which {:L} are trained", trained) : "",
      counted(std::ssize(chain_.layers), "layer"),
      compute_,
      masters_,
      frozen_);
}

std::string Model::weights_description() const {
  return fmt::format(
      "{}, {:L} parameters, {}, {}{}",
      family_,
      chain_.parameter_count(),
      counted(std::ssize(chain_.layers), "layer"),
      compute_,
      frozen_);
}

std::string Model::fingerprint() const {
  std::string config = layout().config_text;
  if (has_adapters()) {
    config += adapter_layout().config_text;
  }
  return fmt::format("{}, {:016x}", description(), checksum(std::as_bytes(std::span(config))));
}

at::Tensor Model::logits(const at::Tensor& ids) const {
  check(reads_tokens(), "a {} model has no logits", family_);
  return decoder_logits(chain_, ids);
}

void Model::fill(uint64_t seed, const UnitSource& source) {
  check(!kept_, "a model whose folder is gone is filled from its checkpoint");
  if (folder_) {
    load_weights(*folder_, chain_, source);
  } else {
    family_functions_.initialise(chain_, settings_, seed, source);
  }
  if (adapter_folder_) {
    load_adapters(*adapter_folder_, chain_, source);
  } else {
    initialise_adapters(chain_, seed, source);
  }
}

FillValues Model::originals() const {
  if (!folder_) {
    return {};
  }
  return [this](const Parameter& parameter, int64_t first, const at::Tensor& values) {
    const bool has = !is_adapter(parameter.name);
    if (has) {
      read_weight(*folder_, parameter.name, first, values);
    }
    return has;
  };
}

HfFolderLayout Model::layout() const {
  HfFolderLayout layout;
  if (folder_) {
    layout = layout_like(*folder_);
  } else if (kept_) {
    layout = *kept_;
  } else {
    const std::string config =
        reads_tokens() ? write_decoder_config(settings_.decoder) : R"({"model_type": "mlp"})";
    layout = new_layout(config, declarations(chain_));
  }
  for (const auto& [name, text] : tokenizer_) {
    layout.small_files[name] = text;
  }
  return layout;
}

HfFolderLayout Model::adapter_layout() const {
  const DecoderConfig& decoder = settings_.decoder;
  HfFolderLayout adapter = peft_layout(
      settings_.decoder_options.adapters,
      linear_layers(decoder),
      {.base_model = base_model_, .weights_in_out = decoder.family->weights_in_out});
  adapter.small_files = layout().small_files;
  adapter.small_files.erase("generation_config.json"); // of whole models
  return adapter;
}

HfFolderLayout Model::checkpoint_layout() const {
  HfFolderLayout whole = layout();
  if (has_adapters()) {
    whole.small_files[std::string(kPeftConfigName)] = adapter_layout().config_text;
  }
  return whole;
}

void Model::write(const std::filesystem::path& out, const UnitSource& source) const {
  if (has_adapters()) {
    const auto all_trained = [](const StoredTensor& /*tensor*/) { return true; };
    write_hf_folder(
        out,
        adapter_layout(),
        only_finite(adapter_filler(export_filler(chain_, source)), out, all_trained),
        Existing::kReplace);
    return;
  }
  std::set<std::string> trained;
  for (const auto& unit : chain_.units) {
    for (const Parameter& parameter : unit->parameters()) {
      if (unit->trainable()) {
        trained.insert(parameter.name);
      }
    }
  }
  const auto is_trained = [&](const StoredTensor& tensor) {
    return std::ranges::any_of(
        model_names(tensor.name), [&](const std::string& name) { return trained.contains(name); });
  };
  write_hf_folder(
      out,
      layout(),
      only_finite(with_originals(export_filler(chain_, source)), out, is_trained),
      Existing::kReplace);
}

/// Frozen parameters as the folder has them, where there is one.
TensorFiller Model::with_originals(TensorFiller held) const {
  if (!folder_) {
    return held;
  }
  std::map<std::string, HeldAs> frozen;
  for (const auto& unit : chain_.units) {
    for (const Parameter& parameter : unit->parameters()) {
      if (!unit->trainable()) {
        frozen[parameter.name] = {
            .codec = unit->codec() != nullptr ? settings_.decoder_options.frozen : nullptr,
            .type = unit->dtype()};
      }
    }
  }
  return original_where_frozen(
      std::move(held), *folder_, [frozen = std::move(frozen)](const std::string& name) {
        const auto found = frozen.find(name);
        return found == frozen.end() ? std::nullopt : std::optional(found->second);
      });
}

} // namespace palimpsest
