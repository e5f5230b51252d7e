#include <palimpsest/parallel/comm/checked.h>

#include <palimpsest/core/base/error.h>

#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace palimpsest {

namespace {

/// Room for what one rank says it is about to do.
constexpr int64_t kText = 192;

std::string text_of(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return "nothing";
  }
  return fmt::format(
      "[{}] {}{}",
      fmt::join(tensor.sizes(), ", "),
      c10::toString(tensor.scalar_type()),
      tensor.is_cpu() ? "" : " on " + tensor.device().str());
}

class Checked final : public Communicator {
 public:
  explicit Checked(std::unique_ptr<Communicator> inner) : inner_(std::move(inner)) {}

  int rank() const override {
    return inner_->rank();
  }
  int size() const override {
    return inner_->size();
  }
  std::string description() const override {
    return inner_->description() + ", checked";
  }

  Ticket all_gather(const at::Tensor& mine, const at::Tensor& whole) override {
    compare("all_gather of " + text_of(mine) + " into " + text_of(whole));
    return inner_->all_gather(mine, whole);
  }
  Ticket reduce_scatter(const at::Tensor& whole, const at::Tensor& mine) override {
    const std::string what = "reduce_scatter of " + text_of(whole) + " onto " + text_of(mine);
    compare(what);
    try {
      return inner_->reduce_scatter(whole, mine);
    } catch (const c10::OutOfMemoryError&) {
      compared_ = what; // it will be issued again, and the others compare it only once
      throw;
    }
  }
  Ticket all_reduce(const at::Tensor& tensor, ReduceOp op) override {
    static constexpr std::array<const char*, 3> kNames{"sum", "max", "min"};
    compare(
        fmt::format("all_reduce ({}) of {}", kNames.at(static_cast<size_t>(op)), text_of(tensor)));
    return inner_->all_reduce(tensor, op);
  }
  Ticket broadcast(const at::Tensor& tensor, int root) override {
    compare(fmt::format("broadcast from rank {} of {}", root, text_of(tensor)));
    return inner_->broadcast(tensor, root);
  }
  Ticket barrier() override {
    compare("barrier");
    return inner_->barrier();
  }
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override {
    compare("split");
    return checked(inner_->split(color, key, name));
  }

  /// The peer may be in another operation now, by right.
  Ticket send(const at::Tensor& tensor, int peer) override {
    return inner_->send(tensor, peer);
  }
  Ticket receive(const at::Tensor& tensor, int peer) override {
    return inner_->receive(tensor, peer);
  }

  void abort(const std::string& reason) noexcept override {
    inner_->abort(reason);
  }

 private:
  static at::Tensor as_tensor(const std::string& text) {
    at::Tensor said = at::zeros({kText}, at::kByte);
    std::memcpy(said.data_ptr(), text.data(), std::min<size_t>(text.size(), kText - 1));
    return said;
  }
  static std::string as_text(const void* said) {
    return static_cast<const char*>(said);
  }

  void compare(const std::string& what) {
    if (std::exchange(compared_, "") == what) {
      return;
    }
    const at::Tensor all = at::zeros({size() * kText}, at::kByte);
    try {
      inner_->all_gather(as_tensor(what), all).wait();
    } catch (const EnvironmentError& error) {
      throw EnvironmentError("{}\nThis rank was about to call {}.", error.what(), what);
    }
    const auto* texts = static_cast<const char*>(all.const_data_ptr());
    const std::string first = as_text(texts);
    for (int other = 1; other < size(); ++other) {
      const std::string theirs = as_text(texts + other * kText);
      if (theirs != first) {
        differ(fmt::format(
            "rank {} calls {} where rank 0 of '{}' calls {}",
            other,
            theirs,
            inner_->description(),
            first));
      }
    }
  }

  [[noreturn]] void differ(const std::string& message) {
    inner_->abort(message);
    throw InternalError(message);
  }

  std::unique_ptr<Communicator> inner_;
  std::string compared_; // what is yet to be issued of what was compared
};

} // namespace

std::unique_ptr<Communicator> checked(std::unique_ptr<Communicator> communicator) {
  return std::make_unique<Checked>(std::move(communicator));
}

} // namespace palimpsest
