#include <palimpsest/tests/memory/planners/chains.h>

#include <fstream>

namespace palimpsest::testing {

std::optional<double> RotorCase::optimum(int64_t budget) const {
  std::optional<double> makespan;
  for (const CurvePoint& point : curve) {
    if (point.budget <= budget) {
      makespan = point.makespan;
    }
  }
  return makespan;
}

CostChain chain_from(const nlohmann::json& rotor_case) {
  CostChain chain{.input_bytes = rotor_case["a"][0]};
  for (size_t stage = 0; stage < rotor_case["fw"].size(); ++stage) {
    const int64_t workspace = rotor_case["ftmp"][stage];
    chain.stages.push_back(
        {.output_bytes = rotor_case["a"][stage + 1],
         .forward_seconds = rotor_case["fw"][stage],
         .forward_workspace = workspace,
         .tapes = {
             {.bytes = rotor_case["abar"][stage],
              .forward_workspace = workspace,
              .backward_workspace = rotor_case["btmp"][stage],
              .backward_seconds = rotor_case["bw"][stage]}}});
  }
  chain.loss_seconds = rotor_case["loss_bw"];
  chain.loss_workspace = rotor_case["loss_tmp"];
  return chain;
}

std::vector<RotorCase> rotor_cases() {
  std::ifstream file(PALIMPSEST_TEST_DATA "/planner/rotor_cases.json");
  const nlohmann::json published = nlohmann::json::parse(file);
  std::vector<RotorCase> cases;
  for (const nlohmann::json& from : published.at("cases")) {
    RotorCase& made = cases.emplace_back();
    made.id = from["id"];
    made.chain = chain_from(from);
    for (const nlohmann::json& point : from["curve"]) {
      made.curve.push_back({point[0], {}});
      if (!point[1].is_null()) {
        made.curve.back().makespan = point[1].get<double>();
      }
    }
    made.all_tapes_makespan = from["store_all_makespan"];
    made.all_tapes_peak = from["store_all_peak"];
    made.least_budget = from["min_budget_persistent"];
    if (from.contains("example_schedule")) {
      for (const nlohmann::json& op : from["example_schedule"]) {
        made.schedule.emplace_back(op[0], op[1]);
      }
      made.schedule_peak = from["example_peak"];
    }
  }
  return cases;
}

CostChain draw_chain(std::mt19937_64& draw, const DrawnChain& shape) {
  const auto number = [&](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(draw);
  };
  CostChain chain{.input_bytes = number(0, shape.largest)};
  chain.spares_unread = number(0, 1) > 0;
  const int stages = number(shape.least_stages, shape.most_stages);
  for (int stage = 0; stage < stages; ++stage) {
    ChainStage made{.output_bytes = number(1, shape.largest)};
    made.forward_seconds = number(1, 9);
    made.forward_workspace = number(0, 2) * number(0, shape.largest);
    const auto tape = [&](TapeMode mode, int64_t more, double seconds) {
      made.tapes.push_back(
          {.tape = mode,
           .bytes = made.output_bytes + more,
           .forward_workspace = number(0, 1) * number(0, shape.largest),
           .backward_workspace = number(0, 2) * number(0, shape.largest) -
               (chain.spares_unread ? made.output_bytes : 0),
           .backward_seconds = seconds});
    };
    const int more = number(0, 3 * shape.largest);
    const int seconds = number(1, 15);
    tape(TapeMode::kFull, more, seconds);
    if (shape.lean && more > 0 && number(0, 2) > 0) {
      tape(TapeMode::kLean, number(0, more - 1), seconds + number(0, 4));
    }
    for (TapeOption& option : made.tapes) {
      option.value_seconds =
          chain.spares_unread ? number(0, static_cast<int>(made.forward_seconds)) : 0;
    }
    made.gradient_bytes = number(0, 1) * number(0, shape.largest);
    chain.stages.push_back(std::move(made));
  }
  chain.loss_seconds = number(0, 3);
  chain.loss_gradient_bytes = number(0, 1) * number(0, shape.largest);
  chain.loss_workspace = number(0, 1) * number(0, shape.largest);
  return chain;
}

CostChain equal_chain(int stages, int64_t output, int64_t tape) {
  CostChain chain{.input_bytes = output};
  const ChainStage stage{
      .output_bytes = output,
      .forward_seconds = 1,
      .tapes = {{.bytes = tape, .backward_seconds = 2}}};
  chain.stages.assign(static_cast<size_t>(stages), stage);
  return chain;
}

} // namespace palimpsest::testing
