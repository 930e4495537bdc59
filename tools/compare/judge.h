// What compare's readers share: the figures of a report, the statistics of its steps, and how a
// metric is judged. The definitions stand in compare.h.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/base/json.h"
#include "sim/program/mesh.h"
#include "sim/result/result.h"
#include "tools/compare/compare.h"

namespace stepcast {

inline constexpr std::array kReportAxes = {Axis::kTensor, Axis::kContext, Axis::kExpert,
                                           Axis::kPipeline, Axis::kData};

inline constexpr Limits kReportBytes = {0, std::int64_t{1} << 53};  // a double holds them exactly

struct ReportFigures {
  double step = 0;               // the median, of a run with several steps
  std::optional<double> spread;  // of such a run
  double parts_sum = 0;          // the step that the parts belong to
  std::array<double, kParts> parts = {};
  std::int64_t peak = 0;
  std::array<std::int64_t, kAxes> sent = {};  // replicas count as data
  double bubble = 0;
  double rate = 0;  // tokens a second and device, at `step`
};

// Both throw Error (place: FILE:LINE: key).
void check_report_format(const Object& root);
ReportFigures read_report_figures(const Document& report);

// REQUIRES: at least one value.
double spread_of(std::vector<double> values);  // interquartile range / median

Metric make_metric(std::string name, std::string label, Metric::Unit unit, double predicted,
                   double measured);
void judge(Metric& metric, double tolerance);
// Inconclusive where the steps of either side spread by more than the tolerance.
void judge_step(Metric& step, const Comparison& comparison);
// Sets the verdict of all: the worst of its metrics.
void conclude(Comparison& comparison);

std::string percent_text(double share);          // "2.5 %"
std::string utf8_text(const std::string& text);  // a path may hold any bytes

}  // namespace stepcast
