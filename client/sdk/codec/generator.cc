// SPDX-License-Identifier: Apache-2.0
//
// protoc-gen-wire: the SDK's codec, made from the API's .proto files: for each file a header of
// plain structs and a source that encodes and decodes them with protozero. It runs at build time
// only; what it makes needs neither Protocol Buffers nor any type of theirs.
//
// It knows what the API uses and refuses the rest: proto3, singular and optional scalars, enums,
// messages, repeated messages, strings and uint64, map<string, string>, oneofs of scalars and
// strings.
#include <google/protobuf/compiler/code_generator.h>
#include <google/protobuf/compiler/plugin.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/printer.h>
#include <google/protobuf/io/zero_copy_stream.h>

#include <cctype>
#include <memory>
#include <string>
#include <vector>

namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::OneofDescriptor;
using google::protobuf::compiler::GeneratorContext;
using google::protobuf::io::Printer;

std::string Stem(const FileDescriptor* file) {
  std::string name = file->name();
  return name.substr(0, name.rfind(".proto"));
}

// MEMORY_KIND_DEVICE of MemoryKind: kDevice.
std::string ValueName(const EnumDescriptor* type, const std::string& value) {
  std::string prefix;
  for (char c : type->name()) {
    if (std::isupper(static_cast<unsigned char>(c)) && !prefix.empty()) prefix += '_';
    prefix += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  prefix += '_';
  std::string rest =
      value.compare(0, prefix.size(), prefix) == 0 ? value.substr(prefix.size()) : value;
  std::string name = "k";
  bool upper = true;
  for (char c : rest) {
    if (c == '_') {
      upper = true;
      continue;
    }
    name += static_cast<char>(upper ? std::toupper(static_cast<unsigned char>(c))
                                    : std::tolower(static_cast<unsigned char>(c)));
    upper = false;
  }
  return name;
}

std::string TypeName(const EnumDescriptor* type) {
  return type->containing_type() ? type->containing_type()->name() + "::" + type->name()
                                 : type->name();
}

struct Scalar {
  const char* type;     // of C++
  const char* initial;  // its default
  const char* wire;     // protozero::pbf_wire_type
  const char* get;      // expression over `reader`
  const char* add;      // of protozero::pbf_writer
  const char* is_set;   // condition with $field$: encode it
};

// Nothing when it is no scalar that the API uses.
const Scalar* ScalarOf(const FieldDescriptor* field) {
  static const Scalar kUint64 = {"std::uint64_t",       " = 0",       "varint",
                                 "reader.get_uint64()", "add_uint64", " != 0"};
  static const Scalar kInt64 = {"std::int64_t",       " = 0",      "varint",
                                "reader.get_int64()", "add_int64", " != 0"};
  static const Scalar kUint32 = {"std::uint32_t",       " = 0",       "varint",
                                 "reader.get_uint32()", "add_uint32", " != 0"};
  static const Scalar kInt32 = {"std::int32_t",       " = 0",      "varint",
                                "reader.get_int32()", "add_int32", " != 0"};
  static const Scalar kFixed64 = {"std::uint64_t",        " = 0",        "fixed64",
                                  "reader.get_fixed64()", "add_fixed64", " != 0"};
  // get_bool() reads one byte past a truncated input, and knows one-byte varints only.
  static const Scalar kBool = {"bool",     " = false", "varint", "reader.get_uint64() != 0",
                               "add_bool", ""};
  static const Scalar kString = {"std::string",  "",           "length_delimited",
                                 "Text(reader)", "add_string", ".size() != 0"};
  static const Scalar kBytes = {"std::string",         "",          "length_delimited",
                                "reader.get_string()", "add_bytes", ".size() != 0"};
  switch (field->type()) {
    case FieldDescriptor::TYPE_UINT64:
      return &kUint64;
    case FieldDescriptor::TYPE_INT64:
      return &kInt64;
    case FieldDescriptor::TYPE_UINT32:
      return &kUint32;
    case FieldDescriptor::TYPE_INT32:
      return &kInt32;
    case FieldDescriptor::TYPE_FIXED64:
      return &kFixed64;
    case FieldDescriptor::TYPE_BOOL:
      return &kBool;
    case FieldDescriptor::TYPE_STRING:
      return &kString;
    case FieldDescriptor::TYPE_BYTES:
      return &kBytes;
    default:
      return nullptr;
  }
}

bool IsEnum(const FieldDescriptor* field) { return field->type() == FieldDescriptor::TYPE_ENUM; }
bool IsMessage(const FieldDescriptor* field) {
  return field->type() == FieldDescriptor::TYPE_MESSAGE;
}
bool HasPresence(const FieldDescriptor* field) {
  return field->containing_oneof() != nullptr || (IsMessage(field) && !field->is_repeated());
}

// repeated uint64, which may come packed or one by one.
bool IsNumbers(const FieldDescriptor* field) {
  return field->is_repeated() && field->type() == FieldDescriptor::TYPE_UINT64;
}

// Empty, or why the field cannot be generated.
std::string Refusal(const FieldDescriptor* field) {
  const std::string name = field->full_name();
  if (field->is_map()) {
    const Descriptor* entry = field->message_type();
    if (entry->field(0)->type() != FieldDescriptor::TYPE_STRING ||
        entry->field(1)->type() != FieldDescriptor::TYPE_STRING) {
      return name + ": the only map that the codec knows is map<string, string>";
    }
    return "";
  }
  if (field->is_repeated() && !IsMessage(field) && !IsNumbers(field) &&
      field->type() != FieldDescriptor::TYPE_STRING) {
    return name + ": the codec knows repeated messages, strings and uint64 only";
  }
  if (field->real_containing_oneof() != nullptr && IsMessage(field)) {
    return name + ": the codec knows oneofs without messages only";
  }
  if (!ScalarOf(field) && !IsEnum(field) && !IsMessage(field)) {
    return name + ": the codec does not know the type " + field->type_name();
  }
  return "";
}

std::string ElementType(const FieldDescriptor* field) {
  if (IsMessage(field)) return field->message_type()->name();
  if (IsEnum(field)) return TypeName(field->enum_type());
  return ScalarOf(field)->type;
}

void PrintEnum(const EnumDescriptor* type, Printer& out) {
  out.Print("enum class $name$ : std::int32_t {\n", "name", type->name());
  for (int i = 0; i < type->value_count(); ++i) {
    out.Print("  $value$ = $number$,\n", "value", ValueName(type, type->value(i)->name()), "number",
              std::to_string(type->value(i)->number()));
  }
  out.Print("};\n\n");
}

void PrintStruct(const Descriptor* type, Printer& out) {
  out.Print("struct $name$ {\n", "name", type->name());
  out.Indent();
  for (int i = 0; i < type->enum_type_count(); ++i) PrintEnum(type->enum_type(i), out);
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    std::string declaration;
    if (field->is_map()) {
      declaration = "std::map<std::string, std::string> " + field->name();
    } else if (field->is_repeated()) {
      declaration = "std::vector<" + ElementType(field) + "> " + field->name();
    } else if (HasPresence(field)) {
      declaration = "std::optional<" + ElementType(field) + "> " + field->name();
    } else if (IsEnum(field)) {
      declaration = ElementType(field) + " " + field->name() + "{}";
    } else {
      declaration = ElementType(field) + " " + field->name() + ScalarOf(field)->initial;
    }
    out.Print("$declaration$;$oneof$\n", "declaration", declaration, "oneof",
              field->real_containing_oneof()
                  ? "  // oneof " + field->real_containing_oneof()->name()
                  : std::string());
  }
  out.Print(
      "\n"
      "// Appends the encoded message.\n"
      "void Append(std::string& out) const;\n"
      "// Merges an encoded message into this one; throws protozero::exception: see "
      "codec.h, Decode().\n"
      "void Merge(std::string_view bytes);\n"
      "friend bool operator==(const $name$&, const $name$&) = default;\n",
      "name", type->name());
  out.Outdent();
  out.Print("};\n\n");
}

void PrintAppend(const Descriptor* type, Printer& out) {
  out.Print("void $name$::Append([[maybe_unused]] std::string& out) const {\n", "name",
            type->name());
  out.Indent();
  if (type->field_count() > 0) out.Print("protozero::pbf_writer writer(out);\n");
  std::vector<const FieldDescriptor*> fields;
  for (int i = 0; i < type->field_count(); ++i) fields.push_back(type->field(i));
  for (const FieldDescriptor* field : fields) {
    std::map<std::string, std::string> names = {{"field", field->name()},
                                                {"number", std::to_string(field->number())}};
    if (field->is_map()) {
      out.Print(names,
                "for (const auto& [key, value] : $field$) {\n"
                "  protozero::pbf_writer entry(writer, $number$);\n"
                "  entry.add_string(1, key);\n"
                "  entry.add_string(2, value);\n"
                "}\n");
    } else if (IsMessage(field) && field->is_repeated()) {
      out.Print(names, "for (const auto& e : $field$) AppendMessage(writer, out, $number$, e);\n");
    } else if (IsMessage(field)) {
      out.Print(names, "if ($field$) AppendMessage(writer, out, $number$, *$field$);\n");
    } else if (IsNumbers(field)) {
      out.Print(names,
                "if (!$field$.empty()) "
                "writer.add_packed_uint64($number$, $field$.begin(), $field$.end());\n");
    } else if (field->is_repeated()) {
      out.Print(names,
                "for (const auto& element : $field$) writer.add_string($number$, element);\n");
    } else {
      names["add"] = IsEnum(field) ? "add_enum" : ScalarOf(field)->add;
      names["value"] = (HasPresence(field) ? "*" : "") + field->name();
      if (IsEnum(field)) names["value"] = "static_cast<std::int32_t>(" + names["value"] + ")";
      names["condition"] = HasPresence(field) ? field->name()
                           : IsEnum(field)    ? field->name() + " != " + ElementType(field) + "{}"
                                              : field->name() + ScalarOf(field)->is_set;
      out.Print(names, "if ($condition$) writer.$add$($number$, $value$);\n");
    }
  }
  out.Outdent();
  out.Print("}\n\n");
}

void PrintMergeNumbers(const FieldDescriptor* field, Printer& out) {
  const std::map<std::string, std::string> names = {{"field", field->name()},
                                                    {"number", std::to_string(field->number())}};
  out.Print(names,
            "case protozero::tag_and_type($number$, protozero::pbf_wire_type::length_delimited):\n"
            "  for (const std::uint64_t element : reader.get_packed_uint64()) "
            "$field$.push_back(element);\n"
            "  break;\n"
            "case protozero::tag_and_type($number$, protozero::pbf_wire_type::varint):\n"
            "  $field$.push_back(reader.get_uint64());\n"
            "  break;\n");
}

void PrintMergeField(const FieldDescriptor* field, Printer& out) {
  if (IsNumbers(field)) return PrintMergeNumbers(field, out);
  std::map<std::string, std::string> names = {{"field", field->name()},
                                              {"number", std::to_string(field->number())}};
  const bool delimited = IsMessage(field);
  names["wire"] = IsEnum(field) ? "varint" : delimited ? "length_delimited" : ScalarOf(field)->wire;
  out.Print(names, "case protozero::tag_and_type($number$, protozero::pbf_wire_type::$wire$):\n");
  out.Indent();
  if (field->is_map()) {
    out.Print(names, "MergeEntry(reader, $field$);\n");
  } else if (IsMessage(field) && field->is_repeated()) {
    out.Print(names, "$field$.emplace_back().Merge(View(reader));\n");
  } else if (IsMessage(field)) {
    out.Print(names,
              "if (!$field$) $field$.emplace();\n"
              "$field$->Merge(View(reader));\n");
  } else if (field->is_repeated()) {
    out.Print(names, "$field$.push_back(Text(reader));\n");
  } else {
    if (const OneofDescriptor* oneof = field->real_containing_oneof()) {
      for (int i = 0; i < oneof->field_count(); ++i) {
        if (oneof->field(i) != field) out.Print("$f$.reset();\n", "f", oneof->field(i)->name());
      }
    }
    names["get"] = IsEnum(field) ? "static_cast<" + ElementType(field) + ">(reader.get_int32())"
                                 : ScalarOf(field)->get;
    out.Print(names, "$field$ = $get$;\n");
  }
  out.Print("break;\n");
  out.Outdent();
}

void PrintMerge(const Descriptor* type, Printer& out) {
  out.Print(
      "void $name$::Merge(std::string_view bytes) {\n"
      "  protozero::pbf_reader reader(bytes.data(), bytes.size());\n"
      "  while (reader.next()) {\n",
      "name", type->name());
  if (type->field_count() == 0) {
    out.Print("    reader.skip();\n");
  } else {
    out.Print("    switch (reader.tag_and_type()) {\n");
    out.Indent();
    out.Indent();
    out.Indent();
    for (int i = 0; i < type->field_count(); ++i) PrintMergeField(type->field(i), out);
    out.Print("default:\n  reader.skip();\n");
    out.Outdent();
    out.Outdent();
    out.Outdent();
    out.Print("    }\n");
  }
  out.Print("  }\n}\n\n");
}

class WireGenerator : public google::protobuf::compiler::CodeGenerator {
 public:
  uint64_t GetSupportedFeatures() const override { return FEATURE_PROTO3_OPTIONAL; }

  bool Generate(const FileDescriptor* file, const std::string&, GeneratorContext* context,
                std::string* error) const override {
    std::vector<const Descriptor*> types;
    for (int i = 0; i < file->message_type_count(); ++i) {
      types.push_back(file->message_type(i));
      for (int j = 0; j < types.back()->field_count(); ++j) {
        *error = Refusal(types.back()->field(j));
        if (!error->empty()) return false;
      }
    }
    PrintHeader(file, types, context);
    PrintSource(file, types, context);
    return true;
  }

 private:
  static void PrintHeader(const FileDescriptor* file, const std::vector<const Descriptor*>& types,
                          GeneratorContext* context) {
    std::unique_ptr<google::protobuf::io::ZeroCopyOutputStream> stream(
        context->Open(Stem(file) + ".wire.h"));
    Printer out(stream.get(), '$');
    out.Print(
        "// Made by protoc-gen-wire from $file$. Do not edit.\n"
        "#pragma once\n\n"
        "#include <cstdint>\n#include <map>\n#include <optional>\n#include <string>\n"
        "#include <string_view>\n#include <vector>\n\n",
        "file", file->name());
    for (int i = 0; i < file->dependency_count(); ++i) {
      out.Print("#include \"$stem$.wire.h\"\n", "stem", Stem(file->dependency(i)));
    }
    out.Print("\nnamespace gpulease::wire {\n\n");
    for (int i = 0; i < file->enum_type_count(); ++i) PrintEnum(file->enum_type(i), out);
    for (const Descriptor* type : types) out.Print("struct $name$;\n", "name", type->name());
    out.Print("\n");
    for (const Descriptor* type : InOrder(types)) PrintStruct(type, out);
    for (int i = 0; i < file->service_count(); ++i) {
      for (int j = 0; j < file->service(i)->method_count(); ++j) {
        const auto* method = file->service(i)->method(j);
        out.Print(
            "struct $name$Method {\n"
            "  using Request = $request$;\n"
            "  using Response = $response$;\n"
            "  static constexpr std::string_view kPath = \"/$service$/$name$\";\n"
            "};\n\n",
            "name", method->name(), "request", method->input_type()->name(), "response",
            method->output_type()->name(), "service", file->service(i)->full_name());
      }
    }
    out.Print("}  // namespace gpulease::wire\n");
  }

  // Members of struct type must be complete: those that others contain come first.
  static std::vector<const Descriptor*> InOrder(const std::vector<const Descriptor*>& types) {
    std::vector<const Descriptor*> order;
    while (order.size() < types.size()) {
      for (const Descriptor* type : types) {
        auto done = [&](const Descriptor* other) {
          for (const Descriptor* known : order) {
            if (known == other) return true;
          }
          return other->file() != type->file();
        };
        if (done(type)) continue;
        bool ready = true;
        for (int i = 0; i < type->field_count(); ++i) {
          const FieldDescriptor* field = type->field(i);
          if (IsMessage(field) && !field->is_map()) ready = ready && done(field->message_type());
        }
        if (ready) order.push_back(type);
      }
    }
    return order;
  }

  static void PrintSource(const FileDescriptor* file, const std::vector<const Descriptor*>& types,
                          GeneratorContext* context) {
    std::unique_ptr<google::protobuf::io::ZeroCopyOutputStream> stream(
        context->Open(Stem(file) + ".wire.cc"));
    Printer out(stream.get(), '$');
    out.Print(
        "// Made by protoc-gen-wire from $file$. Do not edit.\n"
        "#include \"$stem$.wire.h\"\n\n"
        "#include \"client/sdk/codec/fields.h\"\n\n"
        "namespace gpulease::wire {\n\n",
        "file", file->name(), "stem", Stem(file));
    for (const Descriptor* type : types) {
      PrintAppend(type, out);
      PrintMerge(type, out);
    }
    out.Print("}  // namespace gpulease::wire\n");
  }
};

}  // namespace

int main(int argc, char** argv) {
  WireGenerator generator;
  return google::protobuf::compiler::PluginMain(argc, argv, &generator);
}
