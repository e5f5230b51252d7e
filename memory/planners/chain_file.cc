#include <palimpsest/memory/planners/chain_file.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/words.h>
#include <palimpsest/core/config/assign.h>
#include <palimpsest/core/config/document.h>
#include <palimpsest/memory/planners/chain.pb.h>

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

namespace palimpsest {
namespace {

using Numbers = google::protobuf::RepeatedField<double>;

/// Reads a chain out of its file's lists, each by its name.
class Reader {
 public:
  Reader(const ChainFile& from, const std::string& file)
      : from_(from), file_(file), stages_(from.fw_size()) {}

  CostChain read() const {
    check_lengths();
    CostChain chain{.input_bytes = bytes("a", from_.a(), 0)};
    for (int number = 0; number < stages_; ++number) {
      chain.stages.push_back(stage(number));
    }
    chain.loss_seconds = from_.loss_bw();
    chain.loss_workspace = whole("loss_tmp", from_.loss_tmp());
    chain.loss_gradient_bytes = whole("loss_grad", from_.loss_grad());
    chain.spares_unread = from_.fw_value_size() > 0;
    return chain;
  }

 private:
  void check_lengths() const {
    if (stages_ < 1 || stages_ > kMostStages) {
      throw UserError(
          "{}: fw has {}, one a stage; give 1 to {}",
          file_,
          counted(stages_, "number"),
          kMostStages);
    }
    if (from_.has_l() && from_.l() != stages_) {
      throw UserError("{}: L is {}, but fw has {}", file_, from_.l(), counted(stages_, "number"));
    }
    if (!from_.has_loss_bw() || !from_.has_loss_tmp()) {
      throw UserError("{}: loss_bw and loss_tmp must both be given; 0 is allowed", file_);
    }
    length("bw", from_.bw_size(), stages_);
    length("a", from_.a_size(), stages_ + 1);
    length("abar", from_.abar_size(), stages_);
    length("ftmp", from_.ftmp_size(), stages_);
    length("btmp", from_.btmp_size(), stages_);
    if (from_.ftmp_none_size() > 0) {
      length("ftmp_none", from_.ftmp_none_size(), stages_);
    }
    if (from_.fw_value_size() > 0) {
      length("fw_value", from_.fw_value_size(), stages_);
    }
    if (from_.grad_size() > 0) {
      length("grad", from_.grad_size(), stages_);
    }
    if (from_.names_size() > 0) {
      length("names", from_.names_size(), stages_);
    }
    if (from_.has_lean()) {
      length("lean.bw", from_.lean().bw_size(), stages_);
      length("lean.abar", from_.lean().abar_size(), stages_);
      length("lean.ftmp", from_.lean().ftmp_size(), stages_);
      length("lean.btmp", from_.lean().btmp_size(), stages_);
      if (from_.lean().fw_value_size() > 0) {
        if (from_.fw_value_size() == 0) {
          throw UserError("{}: lean.fw_value is given without fw_value; give both or none", file_);
        }
        length("lean.fw_value", from_.lean().fw_value_size(), stages_);
      }
    }
  }

  void length(const char* name, int given, int wanted) const {
    if (given != wanted) {
      throw UserError(
          "{}: {} has {}; give {}, since fw has {}",
          file_,
          name,
          counted(given, "number"),
          wanted,
          stages_);
    }
  }

  int64_t whole(const char* name, double number, int64_t least = 0) const {
    if (!(number >= static_cast<double>(least) && number <= static_cast<double>(kLargestBytes)) ||
        number != std::floor(number)) {
      throw UserError(
          "{}: {} has {}, which is not a size; give whole numbers from {} to {}",
          file_,
          name,
          number,
          least,
          kLargestBytes);
    }
    return static_cast<int64_t>(number);
  }
  int64_t bytes(const char* name, const Numbers& numbers, int index) const {
    return whole(name, numbers[index]);
  }

  int64_t workspace(const char* name, const Numbers& numbers, int index) const {
    return whole(name, numbers[index], -kLargestBytes);
  }

  ChainStage stage(int number) const {
    const bool untaped = from_.ftmp_none_size() > 0;
    ChainStage stage{
        .name = from_.names_size() > 0 ? from_.names(number) : "",
        .output_bytes = bytes("a", from_.a(), number + 1),
        .forward_seconds = from_.fw(number),
        .forward_workspace = bytes(
            untaped ? "ftmp_none" : "ftmp", untaped ? from_.ftmp_none() : from_.ftmp(), number)};
    const TapeOption full{
        .tape = TapeMode::kFull,
        .bytes = bytes("abar", from_.abar(), number),
        .forward_workspace = bytes("ftmp", from_.ftmp(), number),
        .backward_workspace = workspace("btmp", from_.btmp(), number),
        .backward_seconds = from_.bw(number),
        .value_seconds = from_.fw_value_size() > 0 ? from_.fw_value(number) : 0};
    stage.tapes.push_back(full);
    stage.gradient_bytes = from_.grad_size() > 0 ? bytes("grad", from_.grad(), number) : 0;
    if (from_.has_lean()) {
      TapeOption lean{
          .tape = TapeMode::kFull,
          .bytes = bytes("lean.abar", from_.lean().abar(), number),
          .forward_workspace = bytes("lean.ftmp", from_.lean().ftmp(), number),
          .backward_workspace = workspace("lean.btmp", from_.lean().btmp(), number),
          .backward_seconds = from_.lean().bw(number),
          .value_seconds = from_.lean().fw_value_size() > 0 ? from_.lean().fw_value(number)
                                                            : full.value_seconds};
      if (lean != full) {
        lean.tape = TapeMode::kLean;
        stage.tapes.push_back(lean);
      }
    }
    return stage;
  }

  const ChainFile& from_;
  const std::string& file_;
  int stages_;
};

/// Takes out what published cases say about their best plans, whatever it is.
void drop_answers(DocumentNode& document) {
  for (size_t index = document.keys.size(); index-- > 0;) {
    const auto* field = ChainFile::descriptor()->FindFieldByName(document.keys[index]);
    if (field != nullptr && field->message_type() == google::protobuf::Value::descriptor()) {
      document.keys.erase(document.keys.begin() + static_cast<std::ptrdiff_t>(index));
      document.items.erase(document.items.begin() + static_cast<std::ptrdiff_t>(index));
    }
  }
}

} // namespace

CostChain parse_chain(std::string_view json, const std::string& file) {
  Problems problems;
  DocumentNode document = parse_document(json, file, problems);
  if (document.kind != DocumentNode::Kind::kMap) {
    throw UserError(
        "{}: holds {} instead of a chain, which has lists such as fw, bw and a",
        file,
        describe(document));
  }
  drop_answers(document);
  ChainFile from;
  Origins origins;
  assign(document, {file}, from, origins, problems);
  if (!problems.empty()) { // a file that a program wrote: the first is the cause of most
    throw UserError("{}", problems.front());
  }
  CostChain chain = Reader(from, file).read();
  try {
    chain.validate();
  } catch (const UserError& error) {
    throw UserError("{}: {}", file, error.what());
  }
  return chain;
}

std::string chain_json(const CostChain& chain) {
  ChainFile to;
  to.set_l(chain.size());
  const bool named = std::ranges::none_of(chain.stages, &std::string::empty, &ChainStage::name);
  to.add_a(static_cast<double>(chain.input_bytes));
  for (const ChainStage& stage : chain.stages) {
    if (named) {
      to.add_names(stage.name);
    }
    to.add_a(static_cast<double>(stage.output_bytes));
    to.add_fw(stage.forward_seconds);
    to.add_grad(static_cast<double>(stage.gradient_bytes));
    to.add_ftmp_none(static_cast<double>(stage.forward_workspace));
    const TapeOption& full = stage.tape_of(TapeMode::kFull);
    to.add_abar(static_cast<double>(full.bytes));
    to.add_bw(full.backward_seconds);
    to.add_ftmp(static_cast<double>(full.forward_workspace));
    to.add_btmp(static_cast<double>(full.backward_workspace));
    const TapeOption& lean = stage.tape_of(TapeMode::kLean);
    if (chain.spares_unread) {
      to.add_fw_value(full.value_seconds);
      to.mutable_lean()->add_fw_value(lean.value_seconds);
    }
    to.mutable_lean()->add_abar(static_cast<double>(lean.bytes));
    to.mutable_lean()->add_bw(lean.backward_seconds);
    to.mutable_lean()->add_ftmp(static_cast<double>(lean.forward_workspace));
    to.mutable_lean()->add_btmp(static_cast<double>(lean.backward_workspace));
  }
  to.set_loss_bw(chain.loss_seconds);
  to.set_loss_tmp(static_cast<double>(chain.loss_workspace));
  to.set_loss_grad(static_cast<double>(chain.loss_gradient_bytes));
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.add_whitespace = true;
  std::string text;
  const auto status = google::protobuf::util::MessageToJsonString(to, &text, options);
  check(status.ok(), "a chain has no JSON: {}", std::string(status.message()));
  return text;
}

} // namespace palimpsest
