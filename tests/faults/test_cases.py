"""Every public function that is documented as collective is the call of a case in tests/faults."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADERS = sorted((ROOT / "include/banyan").glob("*.h"))
PROGRAMS = sorted((ROOT / "tests/faults").glob("test_*.c"))


def declared(header):
    """Public functions with the comment directly before each."""
    comment = ("", 0)
    text = header.read_text()
    for match in re.finditer(r"/\*(.*?)\*/|^BANYAN_API\b([^;]*);", text, re.S | re.M):
        if match[1] is not None:
            comment = (re.sub(r"\s+\*?\s*", " ", match[1]), match.end())
        else:
            name, parameters = re.search(r"(banyan_\w+)\((.*)", match[2], re.S).groups()
            own = text[comment[1]:match.start()].strip() == ""
            yield name, parameters, comment[0] if own else ""


def collective(functions):
    """Names of the collective functions; a function documented "As another" is what that one is. Functions with
    a communicator are collective unless they are local (collective.h)."""
    names = set()
    for name, (parameters, comment) in functions.items():
        like = re.match(r" ?As (banyan_\w+)", comment)
        if re.search(r"\bCollective\b|\b(is|are) collective\b", comment) or (like and like[1] in names):
            names.add(name)
        elif re.match(r"banyan_comm \*", parameters) and not re.search(r"\bLocal\b", comment):
            names.add(name)
        elif re.search(r"banyan_world \*(?!\*)", parameters) and "const banyan_world" not in parameters and \
                not re.search(r"\b(Local|Any thread)\b", comment):
            raise SystemExit(f"{name} has a world: its comment must say Collective, Local or Any thread")
    return names


def called(program):
    """Public functions that the calls of a program's cases make, through functions of the tests."""
    text = program.read_text()
    for include in re.findall(r'#include "((?:faults|mixed|cuda|support)/\w+\.h)"', text):
        text += (ROOT / "tests" / include).read_text()
    bodies = dict(re.findall(r"^(?:static )?(?:inline )?[\w ]+[ *](\w+)\([^;{}]*\)\n\{\n(.*?)^\}", text,
                             re.S | re.M))
    table = re.search(r"^static const job_case cases\[\] = \{\n(.*?)^\};", text, re.S | re.M)[1]
    waiting = re.findall(r'\.call = (\w+)|\{"\w+",\s*\w+,\s*(\w+)', table)
    waiting = [first or second for first, second in waiting]
    assert len(waiting) == len(re.findall(r'"\w+"', table)), program
    seen = set()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += re.findall(r"\b(\w+)\(", bodies.get(name, ""))
    return {name for name in seen if name.startswith("banyan_")}


functions = {name: rest for header in HEADERS for name, *rest in declared(header)}
cases = set().union(*map(called, PROGRAMS))
names = collective(functions)
assert len(names) > 50
missing = sorted(names - cases)
assert not missing, f"collective calls without a case in tests/faults: {', '.join(missing)}"
print(f"{len(names)} collective functions, each with a case")
