"""The snippets of the language's page and the compiler's compile, and the compiler makes of them what the pages say."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ["BANYAN_BUILD"])
BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.M | re.S)
OPERATION = re.compile(r"^\s+[\d.]+\s+(.*)$")

HEAD = """#include <banyan/banyan.h>
#include <stdio.h>
#include <stdlib.h>
static void dump(void *context, const char *pass, const banyan_plan *plan)
{
    char *text;
    (void)context;
    if (banyan_plan_list(plan, 0, &text) == BANYAN_OK)
        printf("== %s\\n%s", pass, text);
    free(text);
}
#define IN(rank, i) banyan_program_input(program, rank, i, (i) + 1)
#define OUT(rank, i) banyan_program_output(program, rank, i, (i) + 1)
#define SCRATCH(i) banyan_program_slice(program, scratch, i, (i) + 1)
#define FAR(i) banyan_program_slice(program, far, i, (i) + 1)
"""
FUNCTION = """
static void snippet_%(number)d(void)
{
    banyan_program_options options = BANYAN_PROGRAM_OPTIONS_INIT;
    banyan_collective custom = {.kind = BANYAN_CUSTOM, .input_chunks = 8, .output_chunks = 8};
    banyan_program *program;
    banyan_plan *plan = NULL;
    options.dump = dump;
    %(options)s
    printf("=== %(number)d\\n");
    banyan_program_create("snippet", &custom, 4, &options, &program);
    banyan_chunk scratch = banyan_program_scratch(program, 0, 8), far = banyan_program_scratch(program, 1, 8);
    banyan_program_memory_channel *to = NULL, *back = NULL;
    banyan_program_port_channel *port_to = NULL, *port_back = NULL;
    (void)scratch, (void)far, (void)to, (void)back, (void)port_to, (void)port_back;
    %(channels)s
    {
%(code)s
    }
    if (banyan_program_compile(program, &plan) != BANYAN_OK)
        exit((fprintf(stderr, "snippet %(number)d: %%s\\n", banyan_last_error()), 1));
    banyan_plan_destroy(plan);
    banyan_program_destroy(program);
}
"""
CHANNELS = {
    "port_to": "port_to = banyan_program_port_channel_create(program, 1, 0);"
               "port_back = banyan_program_port_channel_create(program, 0, 1);",
    "to": "to = banyan_program_memory_channel_create(program, 1, 0);"
          "back = banyan_program_memory_channel_create(program, 0, 1);",
}


def snippets(text):
    """For every program that is run: its code, options, and the listings that follow it, by pass."""
    found = []
    for language, info, body in BLOCK.findall(text):
        words = info.split()
        if language == "c" and words[:1] == ["program"]:
            found.append((body, words[1:], {}))
        elif language == "text" and words:
            found[-1][2][words[0]] = body.split("\n")[:-1]
    return found


def source(found):
    functions = []
    for number, (code, options, _) in enumerate(found):
        set_options = [f"options.{word if '=' in word else word + ' = true'};" for word in options]
        channels = [make for name, make in CHANNELS.items() if re.search(rf"\b{name}\b", code)]
        functions.append(FUNCTION % {"number": number, "code": code, "options": " ".join(set_options),
                                     "channels": " ".join(channels)})
    calls = "".join(f"    snippet_{number}();\n" for number in range(len(found)))
    return HEAD + "".join(functions) + f"int main(void)\n{{\n{calls}    return 0;\n}}\n"


def operations(listing):
    """Lines of a listing that name a thread block or an operation."""
    lines = []
    for line in listing.split("\n"):
        if line.strip().startswith("thread block"):
            lines.append(line.strip())
        elif OPERATION.match(line):
            lines.append(OPERATION.match(line)[1].strip())
    return lines


def plain_snippets(text):
    """The other C on the page: statements, or macros."""
    return [body for language, info, body in BLOCK.findall(text)
            if language == "c" and not info.split()]


def build(folder, name, code):
    path = pathlib.Path(folder) / name
    path.with_suffix(".c").write_text(code)
    libraries = BUILD / "lib"
    subprocess.run(["cc", "-std=c17", "-Wall", "-Werror", "-Wno-unused-variable",
                    f"-I{ROOT / 'include'}", path.with_suffix(".c"), "-o", path, f"-L{libraries}",
                    f"-Wl,-rpath,{libraries}", "-lbanyan"], check=True)
    return path


if os.environ.get("BANYAN_SANITIZE"):
    print("skipped: snippets are not built with a sanitizer")
    sys.exit(77)

text = "".join((ROOT / "docs" / page).read_text() for page in ("language.md", "internals/compiler.md"))
found = snippets(text)
problems = []
with tempfile.TemporaryDirectory() as folder:
    output = subprocess.run([build(folder, "snippets", source(found))], check=True,
                            capture_output=True, text=True).stdout
    for number, printed in enumerate(output.split("=== ")[1:]):
        passes = {part.split("\n")[0]: operations(part) for part in printed.split("== ")[1:]}
        for name, expected in found[number][2].items():
            if passes.get(name) != expected:
                problems.append(f"snippet {number} after {name}:\n" + "\n".join(passes.get(name, [])))
    for number, code in enumerate(plain_snippets(text)):
        wrapped = code if code.startswith("#define") else \
            "void f(banyan_program *program);\nvoid f(banyan_program *program)\n{\n(void)program;\n{\n" + \
            code + "\n}\n}\n"
        build(folder, f"plain_{number}", "#include <banyan/banyan.h>\n#include <stdio.h>\n" + wrapped +
              "\nint main(void)\n{\n    return 0;\n}\n")
for example in (ROOT / "examples/collectives").glob("*.c"):
    if f"**[{example.name}]" not in text:
        problems.append(f"examples/collectives/{example.name} is not explained")
print("\n".join(problems) or f"{len(found)} snippets do what the pages say")
sys.exit(1 if problems else 0)
