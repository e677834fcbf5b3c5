"""Every public header stands alone, in C and in C++, and every public function says what it does. The values
that headers define as macros serve both languages, without a warning, and are the same in both."""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADERS = sorted((ROOT / "include/banyan").glob("*.h"))
STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{ROOT}/include"]
GCC = [("gcc", "c99"), ("gcc", "c17"), ("g++", "c++11"), ("g++", "c++17")]
CLANG = [("clang", "c99"), ("clang++", "c++11"), ("clang++", "c++17")] if shutil.which("clang++") else []
# Macros that are values of structs, besides _INIT's, as they are used.
VALUES = {f"BANYAN_{name}": "DLDataType" for name in
          ("F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E8M0", "I32", "I64", "U8", "U32")}
VALUES |= {"BANYAN_HOST": "DLDevice", "BANYAN_CUDA(3)": "DLDevice", "BANYAN_IN_SOURCE": "banyan_chunk",
           "BANYAN_TB(5)": "banyan_program_by", "BANYAN_TB_GROUP(NULL)": "banyan_program_by"}
found = []


def compiles(compiler, standard, code, what):
    done = subprocess.run([compiler, f"-std={standard}", *STRICT, "-fsyntax-only", "-x",
                           "c++" if "++" in standard else "c", "-"],
                          input=code, capture_output=True, text=True)
    if done.returncode != 0:
        found.append(f"{what} by {compiler} -std={standard}:\n{done.stderr}")


def undocumented(header):
    """Public functions with no comment above their group: a run of declarations without a blank line
    shares the comment in front of it."""
    for group in re.split(r"\n\s*\n", header.read_text()):
        names = re.findall(r"\b(banyan_\w+)\(", re.sub(r"/\*.*?\*/", "", group, flags=re.S))
        if "BANYAN_API" in group and "/*" not in group and names:
            yield from names


def values():
    """Every macro that is a struct's value, with the struct: BANYAN_X_INIT is banyan_x's."""
    text = "".join(header.read_text() for header in HEADERS)
    inits = re.findall(r"#define (BANYAN_\w+_INIT)\b", text)
    for name in re.findall(r"; /\* of this struct; (\w+) sets it", text):
        if name not in inits:
            found.append(f"a comment speaks of {name}, which is not defined")
    for name in re.findall(r"#define (BANYAN_\w+)[^\n]*BANYAN_VALUE\(", text):
        if not any(value.split("(")[0] == name for value in VALUES):
            found.append(f"{name} is a struct's value; this test does not know it")
    return {name: name.removesuffix("_INIT").lower() for name in inits} | VALUES


def used(values):
    """Code for both languages that uses each value where one may stand: for a static variable, for a
    local one, as a member, and in an assignment."""
    yield "#include <banyan/banyan.h>\nvoid use(void);\n"
    for number, (value, struct) in enumerate(values.items()):
        if value.endswith("_INIT"):
            yield f"static {struct} static_{number} = {value};\n"
    yield "void use(void)\n{\n"
    for number, (value, struct) in enumerate(values.items()):
        yield (f"    {struct} local_{number} = {value};\n"
               f"    struct {{ {struct} member; }} outer_{number} = {{{value}}};\n"
               f"    local_{number} = outer_{number}.member;\n"
               f"    (void)local_{number};\n")
        yield (f"    (void)static_{number};\n    local_{number} = ({struct}){value};\n" if value.endswith("_INIT")
               else f"    local_{number} = {value};\n")
    yield "}\n"


def compare(values):
    """Compare each value in C and C++, byte for byte except padding."""
    functions = [(f"value_{number}", value, struct) for number, (value, struct) in enumerate(values.items())]
    of_c = "#include <banyan/banyan.h>\n" + "".join(
        f"{struct} {name}(void);\n{struct} {name}(void)\n{{\n    {struct} value = {value};\n    return value;\n}}\n"
        for name, value, struct in functions)
    of_cxx = "#include <banyan/banyan.h>\n#include <cstdio>\n#include <cstring>\n" + "".join(
        f'extern "C" {struct} {name}(void);\n' for name, value, struct in functions)
    of_cxx += "int main()\n{\n    int differ = 0;\n" + "".join(
        f"""    {{
        {struct} in_c = {name}(), in_cxx = {value};
        __builtin_clear_padding(&in_c);
        __builtin_clear_padding(&in_cxx);
        if (std::memcmp(&in_c, &in_cxx, sizeof in_c) != 0)
            differ = 1, std::puts("{value} is one thing in C and another in C++");
    }}
""" for name, value, struct in functions) + "    return differ;\n}\n"
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "c.c").write_text(of_c)
        (folder / "cxx.cpp").write_text(of_cxx)
        for command in (["gcc", "-std=c17", *STRICT, "-c", "c.c"],
                        ["g++", "-std=c++11", *STRICT, "cxx.cpp", "c.o", "-o", "compare"], ["./compare"]):
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
            if done.returncode != 0:
                found.append(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")
                return


for path in HEADERS:
    for compiler, standard in GCC:
        compiles(compiler, standard, f"#include <banyan/{path.name}>\nint main(void);\n",
                 f"{path.name} does not stand alone")
    found += [f"{path.name}: {name} has no comment" for name in undocumented(path)]
all_values = values()
for compiler, standard in GCC + CLANG:
    compiles(compiler, standard, "".join(used(all_values)), "the headers' values are refused")
compare(all_values)
print("\n".join(found) or "all headers stand alone and are documented; their values are the same in C and C++")
sys.exit(1 if found else 0)
