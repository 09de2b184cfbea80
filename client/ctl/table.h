// SPDX-License-Identifier: Apache-2.0
//
// Table: one listing, typed, which is printed as text for people or as JSON for programs. Both say
// the same; a column may be left out of one of them.
//
// Invariant: every row has one cell for each column, in the order of the columns. What strings of
// other users hold reaches a terminal with control characters escaped.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace gpulease::ctl {

struct Table;

// How a number or a word reads in text; JSON has it as it is.
enum class Unit {
  kNone,
  kBytes,      // "60.0 GiB"
  kLimit,      // as kBytes; 0: "none"
  kMillis,     // "3 d 4 h"
  kMode,       // "0640"
  kShortUuid,  // "GPU-3f2a1b2c"
  kShortUser,  // "root@docker-0123456789ab"
  kId,         // 0: "-"
};

enum class Show {
  kAlways,
  kUnlessEmpty,  // text: only when a row has something other than zero, false or ""
  kJsonOnly,
  kTextOnly,
};

struct Column {
  std::string key;      // JSON: the name of the field in gpulease.v1
  std::string heading;  // text
  Unit unit = Unit::kNone;
  Show show = Show::kAlways;
};

struct Cell {
  using Value = std::variant<std::string, std::int64_t, std::uint64_t, bool,
                             std::vector<std::string>, std::map<std::string, std::string>,
                             std::shared_ptr<const Table>>;  // rows below this one
  Value value;
  bool unusual = false;  // stands out in text
};

struct Table {
  std::vector<Column> columns;
  std::vector<std::vector<Cell>> rows;
  bool single = false;  // a record: one row, which is not an array in JSON and a column in text
};

struct TextStyle {
  bool headings = true;
  bool colour = false;
};

// Aligned columns; a record as "heading  value" lines, with the tables it holds below it.
void PrintText(const Table& table, const TextStyle& style, std::ostream& out);
// One array of objects, or one object, indented.
void PrintJson(const Table& table, std::ostream& out);
// One object a line.
void PrintJsonLines(const Table& table, std::ostream& out);

// "850 ms", "12 s", "5 min 3 s", "4 h 12 min", "3 d 4 h".
std::string FormatMillis(std::int64_t millis);
// "GPU-3f2a1b2c" of a GPU's UUID: up to its second hyphen.
std::string ShortUuid(std::string_view uuid);
// Of a user's name with a realm, that realm by its last part, with long ids cut to 12 digits.
std::string ShortUser(std::string_view user);
// The text with what could steer a terminal as \xNN.
std::string Printable(std::string_view text);
// Emphasised when `colour`.
std::string Emphasised(std::string_view text, bool colour);

}  // namespace gpulease::ctl
