#include <palimpsest/memory/report/course.h>

#include <nlohmann/json.hpp>

#include <fstream>
#include <string>

namespace palimpsest {
namespace {

using Json = nlohmann::json;

std::optional<double> number(const Json& record, const char* name) {
  const auto found = record.find(name);
  return found != record.end() && found->is_number() ? std::optional(found->get<double>())
                                                     : std::nullopt;
}

CourseStep step_of(const Json& record) {
  return {
      .step = record["step"].get<int64_t>(),
      .loss = number(record, "loss"),
      .grad_norm = number(record, "grad_norm"),
      .learning_rate = number(record, "learning_rate").value_or(0),
      .tokens_per_s = number(record, "tokens_per_s").value_or(0),
      .skipped = record.value("skipped", false)};
}

CourseEvaluation evaluation_of(const Json& record) {
  return {
      .step = record["step"].get<int64_t>(),
      .loss = number(record, "eval_loss"),
      .perplexity = number(record, "eval_perplexity"),
      .best = record.value("best", false)};
}

/// Every `every`-th step, and the last.
void thin(std::vector<CourseStep>& steps, int64_t every) {
  const auto last = static_cast<int64_t>(steps.size()) - 1;
  int64_t number = 0;
  std::erase_if(steps, [&](const CourseStep& /*step*/) {
    const int64_t own = number++;
    return own % every != 0 && own != last;
  });
}

} // namespace

Course read_course(const std::filesystem::path& metrics, int64_t most) {
  Course course;
  std::ifstream file(metrics);
  for (std::string line; std::getline(file, line);) {
    const Json record = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!record.is_object() || !number(record, "step")) {
      continue;
    }
    if (record.contains("eval_loss")) {
      course.evaluations.push_back(evaluation_of(record));
    } else {
      course.steps.push_back(step_of(record));
    }
  }
  const auto count = static_cast<int64_t>(course.steps.size());
  course.every = count <= most ? 1 : (count + most - 1) / most;
  thin(course.steps, course.every);
  return course;
}

} // namespace palimpsest
