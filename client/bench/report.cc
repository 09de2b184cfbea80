// SPDX-License-Identifier: Apache-2.0
#include "client/bench/report.h"

#include <cstdio>

#include "base/bytes.h"

namespace gpulease::bench {
namespace {

const char* Name(Unit unit) {
  switch (unit) {
    case Unit::kMicros:
      return "us";
    case Unit::kMillis:
      return "ms";
    case Unit::kPerSecond:
      return "1/s";
    case Unit::kGigabytesPerSecond:
      return "GB/s";
  }
  return "";
}

bool MoreIsBetter(Unit unit) {
  return unit == Unit::kPerSecond || unit == Unit::kGigabytesPerSecond;
}

std::string Format(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string Number(double value) {
  return Format(value < 10 ? "%.2f" : value < 1000 ? "%.1f" : "%.0f", value);
}

std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) quoted += c;
  }
  return quoted + "\"";
}

std::string Cell(const std::string& text, std::size_t width, bool to_the_right) {
  const std::string space(text.size() < width ? width - text.size() : 0, ' ');
  return to_the_right ? space + text : text + space;
}

constexpr std::size_t kNameWidth = 58;
constexpr std::size_t kNumberWidth = 11;

}  // namespace

void Report::AddFact(const std::string& key, const std::string& value) {
  facts_.emplace_back(key, value);
}

void Report::Add(const std::string& section, const std::string& name, std::uint64_t size_bytes,
                 Unit unit, const Samples& samples) {
  measurements_.push_back({section, name, size_bytes, unit, samples.p50(),
                           samples.Percentile(MoreIsBetter(unit) ? 1 : 99), samples.count()});
}

void Report::AddRatio(const std::string& section, const std::string& name, std::uint64_t size_bytes,
                      double numerator, double denominator) {
  if (denominator > 0) {
    ratios_.push_back({section, name, size_bytes, numerator / denominator});
  }
}

void Report::PrintText(std::ostream& out) const {
  for (const auto& [key, value] : facts_) out << Cell(key, 12, false) << value << "\n";
  std::string section;
  std::uint64_t size = 0;
  const auto print_ratios = [&] {
    for (const Ratio& ratio : ratios_) {
      if (ratio.section != section || ratio.size_bytes != size) continue;
      out << "  " << Cell(ratio.name, kNameWidth, false)
          << Cell(Format("%.2f", ratio.value), kNumberWidth, true) << "\n";
    }
  };
  for (const Measurement& measured : measurements_) {
    if (measured.section != section || measured.size_bytes != size) {
      print_ratios();
      section = measured.section;
      size = measured.size_bytes;
      out << "\n"
          << Cell(section + (size == 0 ? "" : ", " + FormatBytes(size)), kNameWidth + 2, false)
          << Cell("p50", kNumberWidth, true) << Cell("p99", kNumberWidth, true) << "  "
          << Cell("unit", 5, false) << Cell("n", 7, true) << "\n";
    }
    out << "  " << Cell(measured.name, kNameWidth, false)
        << Cell(Number(measured.p50), kNumberWidth, true)
        << Cell(measured.count > 1 ? Number(measured.p99) : "", kNumberWidth, true) << "  "
        << Cell(Name(measured.unit), 5, false) << Cell(std::to_string(measured.count), 7, true)
        << "\n";
  }
  print_ratios();
}

void Report::PrintJson(std::ostream& out) const {
  out << "{\n  \"machine\": {";
  const char* separator = "";
  for (const auto& [key, value] : facts_) {
    out << separator << "\n    " << Quoted(key) << ": " << Quoted(value);
    separator = ",";
  }
  out << "\n  },\n  \"measurements\": [";
  separator = "";
  for (const Measurement& measured : measurements_) {
    out << separator << "\n    {\"section\": " << Quoted(measured.section)
        << ", \"name\": " << Quoted(measured.name) << ", \"size_bytes\": " << measured.size_bytes
        << ", \"unit\": " << Quoted(Name(measured.unit))
        << ", \"p50\": " << Format("%.4f", measured.p50)
        << ", \"p99\": " << Format("%.4f", measured.p99) << ", \"count\": " << measured.count
        << "}";
    separator = ",";
  }
  out << "\n  ],\n  \"ratios\": [";
  separator = "";
  for (const Ratio& ratio : ratios_) {
    out << separator << "\n    {\"section\": " << Quoted(ratio.section)
        << ", \"name\": " << Quoted(ratio.name) << ", \"size_bytes\": " << ratio.size_bytes
        << ", \"value\": " << Format("%.4f", ratio.value) << "}";
    separator = ",";
  }
  out << "\n  ]\n}\n";
}

}  // namespace gpulease::bench
