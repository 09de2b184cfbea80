// SPDX-License-Identifier: Apache-2.0
#include "client/ctl/table.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdio>

#include "base/bytes.h"

namespace gpulease::ctl {
namespace {

using Rows = std::shared_ptr<const Table>;

bool IsEmpty(const Cell& cell) {
  struct {
    bool operator()(const std::string& text) const { return text.empty(); }
    bool operator()(std::int64_t number) const { return number == 0; }
    bool operator()(std::uint64_t number) const { return number == 0; }
    bool operator()(bool flag) const { return !flag; }
    bool operator()(const std::vector<std::string>& texts) const { return texts.empty(); }
    bool operator()(const std::map<std::string, std::string>& pairs) const { return pairs.empty(); }
    bool operator()(const Rows& rows) const { return !rows || rows->rows.empty(); }
  } visitor;
  return std::visit(visitor, cell.value);
}

bool IsNumber(const Cell& cell) {
  return std::holds_alternative<std::int64_t>(cell.value) ||
         std::holds_alternative<std::uint64_t>(cell.value) ||
         std::holds_alternative<Rows>(cell.value);  // how many
}

std::string NumberText(std::uint64_t number, Unit unit) {
  switch (unit) {
    case Unit::kLimit:
      if (number == 0) return "none";
      return FormatBytes(number);
    case Unit::kBytes:
      return FormatBytes(number);
    case Unit::kMillis:
      return FormatMillis(static_cast<std::int64_t>(number));
    case Unit::kMode: {
      char text[24];
      std::snprintf(text, sizeof text, "%04lo", static_cast<unsigned long>(number));
      return text;
    }
    case Unit::kId:
      if (number == 0) return "-";
      break;
    case Unit::kNone:
    case Unit::kShortUuid:
    case Unit::kShortUser:
      break;
  }
  return std::to_string(number);
}

// A cell in text; "-" where there is nothing, or where a number is negative: unknown.
std::string CellText(const Cell& cell, const Column& column) {
  if (column.show == Show::kUnlessEmpty && IsEmpty(cell)) return "-";
  struct Visitor {
    Unit unit;
    std::string operator()(const std::string& text) const {
      if (text.empty()) return "-";
      if (unit == Unit::kShortUser) return Printable(ShortUser(text));
      return Printable(unit == Unit::kShortUuid ? ShortUuid(text) : text);
    }
    std::string operator()(std::int64_t number) const {
      if (number < 0 || (unit == Unit::kId && number == 0)) return "-";
      if (unit == Unit::kMillis) return FormatMillis(number);
      return std::to_string(number);
    }
    std::string operator()(std::uint64_t number) const { return NumberText(number, unit); }
    std::string operator()(bool flag) const { return flag ? "yes" : "no"; }
    std::string operator()(const std::vector<std::string>& texts) const {
      std::string all;
      for (const std::string& text : texts) all += (all.empty() ? "" : " ") + Printable(text);
      return all.empty() ? "-" : all;
    }
    std::string operator()(const std::map<std::string, std::string>& pairs) const {
      std::string all;
      for (const auto& [key, value] : pairs)
        all += (all.empty() ? "" : " ") + Printable(key + "=" + value);
      return all.empty() ? "-" : all;
    }
    std::string operator()(const Rows& rows) const {
      return std::to_string(rows ? rows->rows.size() : 0);
    }
  };
  return std::visit(Visitor{column.unit}, cell.value);
}

// Columns on a screen: characters, not bytes.
std::size_t Width(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::vector<std::size_t> ShownColumns(const Table& table) {
  std::vector<std::size_t> shown;
  for (std::size_t i = 0; i < table.columns.size(); ++i) {
    const Show show = table.columns[i].show;
    if (show == Show::kJsonOnly) continue;
    if (show == Show::kUnlessEmpty &&
        std::all_of(table.rows.begin(), table.rows.end(),
                    [i](const std::vector<Cell>& row) { return IsEmpty(row[i]); }))
      continue;
    shown.push_back(i);
  }
  return shown;
}

void PrintColumns(const Table& table, const TextStyle& style, std::string_view indent,
                  std::ostream& out) {
  const std::vector<std::size_t> shown = ShownColumns(table);
  std::vector<std::size_t> widths;
  std::vector<bool> right;
  for (std::size_t i : shown) {
    std::size_t width = style.headings ? Width(table.columns[i].heading) : 0;
    for (const std::vector<Cell>& row : table.rows)
      width = std::max(width, Width(CellText(row[i], table.columns[i])));
    widths.push_back(width);
    right.push_back(!table.rows.empty() && IsNumber(table.rows.front()[i]));
  }
  const auto print_line = [&](auto text_of, auto unusual_of) {
    out << indent;
    for (std::size_t at = 0; at < shown.size(); ++at) {
      const std::string text = text_of(shown[at]);
      const std::string padding(widths[at] - Width(text), ' ');
      const std::string shown_text = Emphasised(text, style.colour && unusual_of(shown[at]));
      const bool last = at + 1 == shown.size();
      if (right[at])
        out << padding << shown_text;
      else
        out << shown_text << (last ? "" : padding);
      if (!last) out << "  ";
    }
    out << "\n";
  };
  if (style.headings)
    print_line([&](std::size_t i) { return table.columns[i].heading; },
               [](std::size_t) { return false; });
  for (const std::vector<Cell>& row : table.rows)
    print_line([&](std::size_t i) { return CellText(row[i], table.columns[i]); },
               [&](std::size_t i) { return row[i].unusual; });
}

void PrintRecord(const Table& table, const TextStyle& style, std::ostream& out) {
  const std::vector<Cell>& row = table.rows.front();
  std::size_t width = 0;
  for (std::size_t i : ShownColumns(table))
    if (!std::holds_alternative<Rows>(row[i].value))
      width = std::max(width, Width(table.columns[i].heading));
  for (std::size_t i : ShownColumns(table)) {
    const Column& column = table.columns[i];
    if (const auto* rows = std::get_if<Rows>(&row[i].value)) {
      if (!*rows) continue;
      out << column.heading << "\n";
      PrintColumns(**rows, style, "  ", out);
    } else {
      out << column.heading << std::string(width - Width(column.heading) + 2, ' ')
          << Emphasised(CellText(row[i], column), style.colour && row[i].unusual) << "\n";
    }
  }
}

void JsonString(std::string_view text, std::ostream& out) {
  out << '"';
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out << '\\' << c;
    } else if (byte < 0x20 || byte == 0x7f) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", byte);
      out << escaped;
    } else {
      out << c;
    }
  }
  out << '"';
}

// Writes JSON, indented when `indented`; `depth` is that of the value's own lines.
class JsonWriter {
 public:
  JsonWriter(bool indented, std::ostream& out) : indented_(indented), out_(out) {}

  void Object(const Table& table, const std::vector<Cell>& row, int depth) {
    Opening bracket(*this, '{', '}', depth);
    for (std::size_t i = 0; i < table.columns.size(); ++i) {
      if (table.columns[i].show == Show::kTextOnly) continue;
      bracket.Item();
      JsonString(table.columns[i].key, out_);
      out_ << (indented_ ? ": " : ":");
      Value(row[i], depth + 1);
    }
  }

  void Array(const Table& table, int depth) {
    Opening bracket(*this, '[', ']', depth);
    for (const std::vector<Cell>& row : table.rows) {
      bracket.Item();
      Object(table, row, depth + 1);
    }
  }

 private:
  // Writes brackets, commas and line breaks around what comes between Item() calls.
  class Opening {
   public:
    Opening(JsonWriter& writer, char open, char close, int depth)
        : writer_(writer), close_(close), depth_(depth) {
      writer_.out_ << open;
    }
    Opening(const Opening&) = delete;
    Opening& operator=(const Opening&) = delete;
    ~Opening() {
      if (!first_) writer_.Break(depth_);
      writer_.out_ << close_;
    }
    void Item() {
      if (!first_) writer_.out_ << ',';
      first_ = false;
      writer_.Break(depth_ + 1);
    }

   private:
    JsonWriter& writer_;
    char close_;
    int depth_;
    bool first_ = true;
  };

  void Break(int depth) {
    if (indented_) out_ << "\n" << std::string(static_cast<std::size_t>(depth) * 2, ' ');
  }

  void Value(const Cell& cell, int depth) {
    if (const auto* text = std::get_if<std::string>(&cell.value)) {
      JsonString(*text, out_);
    } else if (const auto* integer = std::get_if<std::int64_t>(&cell.value)) {
      out_ << *integer;
    } else if (const auto* natural = std::get_if<std::uint64_t>(&cell.value)) {
      out_ << *natural;
    } else if (const auto* flag = std::get_if<bool>(&cell.value)) {
      out_ << (*flag ? "true" : "false");
    } else if (const auto* texts = std::get_if<std::vector<std::string>>(&cell.value)) {
      Opening bracket(*this, '[', ']', depth);
      for (const std::string& each : *texts) {
        bracket.Item();
        JsonString(each, out_);
      }
    } else if (const auto* pairs = std::get_if<std::map<std::string, std::string>>(&cell.value)) {
      Opening bracket(*this, '{', '}', depth);
      for (const auto& [key, value] : *pairs) {
        bracket.Item();
        JsonString(key, out_);
        out_ << (indented_ ? ": " : ":");
        JsonString(value, out_);
      }
    } else if (const Rows& rows = std::get<Rows>(cell.value); rows) {
      Array(*rows, depth);
    } else {
      out_ << "[]";
    }
  }

  bool indented_;
  std::ostream& out_;
};

}  // namespace

void PrintText(const Table& table, const TextStyle& style, std::ostream& out) {
  if (table.single)
    PrintRecord(table, style, out);
  else if (!table.rows.empty())
    PrintColumns(table, style, "", out);
}

void PrintJson(const Table& table, std::ostream& out) {
  JsonWriter writer(/*indented=*/true, out);
  if (table.single)
    writer.Object(table, table.rows.front(), 0);
  else
    writer.Array(table, 0);
  out << "\n";
}

void PrintJsonLines(const Table& table, std::ostream& out) {
  JsonWriter writer(/*indented=*/false, out);
  for (const std::vector<Cell>& row : table.rows) {
    writer.Object(table, row, 0);
    out << "\n";
  }
}

std::string FormatMillis(std::int64_t millis) {
  if (millis < 1000) return std::to_string(millis) + " ms";
  const auto two = [](std::int64_t amount, std::int64_t per, const char* large, const char* small) {
    std::string text = std::to_string(amount / per) + " " + large;
    if (amount % per != 0) text += " " + std::to_string(amount % per) + " " + small;
    return text;
  };
  const std::int64_t seconds = millis / 1000;
  if (seconds < 60) return std::to_string(seconds) + " s";
  if (seconds < 3600) return two(seconds, 60, "min", "s");
  if (seconds < 86400) return two(seconds / 60, 60, "h", "min");
  return two(seconds / 3600, 24, "d", "h");
}

std::string ShortUuid(std::string_view uuid) {
  const std::size_t first = uuid.find('-');
  if (first == std::string_view::npos) return std::string(uuid);
  return std::string(uuid.substr(0, uuid.find('-', first + 1)));
}

std::string ShortUser(std::string_view user) {
  constexpr std::size_t kDigits = 12;
  const std::size_t at = user.find('@');
  if (at == std::string_view::npos) return std::string(user);
  std::string_view realm = user.substr(at + 1);
  if (const std::size_t slash = realm.rfind('/'); slash != std::string_view::npos)
    realm.remove_prefix(slash + 1);
  for (const std::string_view end : {".scope", ".service"}) {
    if (realm.ends_with(end)) realm.remove_suffix(end.size());
  }
  std::string shorter(user.substr(0, at + 1));
  std::size_t digits = 0;
  for (const char c : realm) {
    digits = std::isxdigit(static_cast<unsigned char>(c)) ? digits + 1 : 0;
    if (digits <= kDigits) shorter += c;
  }
  return shorter;
}

std::string Printable(std::string_view text) {
  std::string printable;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    // C0, DEL, and C1 as UTF-8 writes it (C2 80 to C2 9F).
    const bool steers =
        byte < 0x20 || byte == 0x7f || (byte == 0xc2 && next >= 0x80 && next < 0xa0);
    if (!steers) {
      printable += text[i];
      continue;
    }
    char escaped[8];
    std::snprintf(escaped, sizeof escaped, "\\x%02x", byte == 0xc2 ? next : byte);
    printable += escaped;
    if (byte == 0xc2) ++i;
  }
  return printable;
}

std::string Emphasised(std::string_view text, bool colour) {
  if (!colour) return std::string(text);
  return "\033[1;31m" + std::string(text) + "\033[0m";
}

}  // namespace gpulease::ctl
