#include <palimpsest/launcher/compose/ranks.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/refused_text.h>
#include <palimpsest/launcher/launch/stop_request.h>
#include <palimpsest/parallel/comm/all_texts.h>

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <system_error>

namespace palimpsest {
namespace {

/// As a text, so that it can be sent: the exit code, a space, the message. Empty: none.
std::string caught(const std::function<void()>& part) {
  try {
    part();
    return {};
  } catch (const Error& error) {
    return std::to_string(error.exit_code()) + " " + error.what();
  } catch (const c10::OutOfMemoryError& error) {
    return std::string("1 ") + error.what_without_backtrace();
  } catch (const std::bad_alloc&) {
    return "1 out of memory: the system gives no more";
  } catch (const std::system_error& error) {
    return "1 " + refused_text(error);
  } catch (const std::exception& error) {
    return std::string("70 unexpected error: ") + error.what();
  }
}

[[noreturn]] void rethrow(const std::string& text, const std::string& whose = {}) {
  const size_t space = text.find(' ');
  throw Error(whose + text.substr(space + 1), std::stoi(text.substr(0, space)));
}

} // namespace

bool all_agree(Communicator& ranks, bool mine) {
  const at::Tensor disagree = at::zeros({1}, at::kLong);
  disagree.fill_(mine ? 0 : 1);
  ranks.all_reduce(disagree, ReduceOp::kMax).wait();
  return disagree.item<int64_t>() == 0;
}

void Ranks::alike(const std::function<void()>& part) {
  try {
    part();
  } catch (const Error&) {
    failed_together_ = true;
    throw;
  }
}

void Ranks::together(const std::function<void()>& part) {
  if (world_ == nullptr || size() == 1) {
    part();
    return;
  }
  const bool failed_before = failed_together_;
  const std::string mine = caught(part);
  if (!mine.empty() && failed_together_ && !failed_before) { // within the part, and everybody knows
    rethrow(mine);
  }
  const std::vector<std::string> errors = all_texts(*world_, mine);
  const auto first =
      std::ranges::find_if(errors, [](const std::string& text) { return !text.empty(); });
  if (first == errors.end()) {
    return;
  }
  failed_together_ = true;
  const bool everybodys = std::ranges::count(errors, *first) == size();
  rethrow(*first, everybodys ? "" : "rank " + std::to_string(first - errors.begin()) + ": ");
}

void Ranks::end_if_asked() const {
  if (here_.stop_requested && here_.stop_requested()) {
    throw Error("asked to stop before the first step", kStoppedExitCode);
  }
}

void Ranks::sum(std::span<int64_t> numbers) {
  if (world_ == nullptr || size() == 1) {
    return;
  }
  together([] {});
  const auto count = static_cast<int64_t>(numbers.size());
  alike([&] {
    world_->all_reduce(at::from_blob(numbers.data(), {count}, at::kLong), ReduceOp::kSum).wait();
  });
}

} // namespace palimpsest
