#!/usr/bin/env python3
"""The gates that every commit passes: format, sizes, includes, folders, tests.

    tests/gates/lint.py                          check the files that git tracks; one line per finding, exit 1 if any
    tests/gates/lint.py --root DIR               check every file of another tree (the gates' own tests do)
    tests/gates/lint.py --units compile_commands.json    list our compile units in it, for clang-tidy
"""

import argparse
import ast
import collections
import json
import pathlib
import re
import shutil
import subprocess
import sys

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 80

FRAME = {f"core/{name}" for name in ("base", "config", "device", "plan", "contracts", "engine")}
LIBRARY = {f"core/{name}" for name in ("kernels", "models", "optim", "io", "data", "data/chat", "data/examples",
                                       "data/records", "data/tokenizer")}
STRATEGIES = ("parallel", "memory", "offload")
CODE_ROOTS = ("core", "launcher", "examples", "tests", "benchmarks") + STRATEGIES
CPP_SUFFIXES = (".h", ".cc", ".cu")
SOURCE_SUFFIXES = CPP_SUFFIXES + (".py", ".sh", ".proto", ".cmake")

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)
UNFINISHED = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|X" r"XX)\b")
COVERS = re.compile(r"^// Covers: (.+)$", re.MULTILINE)


class Tree:
    """The files under one root, with what the gates ask of them."""

    def __init__(self, root, paths):
        self.root = root
        self.text = {}
        for path in sorted(paths):
            try:
                self.text[path] = (root / path).read_text(encoding="utf-8")
            except UnicodeDecodeError:
                pass  # a binary file: test data
        self.cpp = [path for path in self.text if path.endswith(CPP_SUFFIXES)]

    def sources(self):
        return [p for p in self.text if p.endswith(SOURCE_SUFFIXES) or p in ("dev", ".ci/run")]

    def includes(self, path):
        """(line, bracket, name) of each include of a file."""
        text = self.text[path]
        return [(line_of(text, m.start(1)), m.group(1), m.group(2)) for m in INCLUDE.finditer(text)]

    def own_includes(self, path):
        """(line, path) of each include of one of our files."""
        return [(line, name.removeprefix("palimpsest/")) for line, bracket, name in self.includes(path)
                if bracket == "<" and name.startswith("palimpsest/")]


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


def folder_of(path):
    return path.rpartition("/")[0]


# ---- sizes and marks ------------------------------------------------------------------------------------------------

def check_file_size(tree):
    for path in tree.sources():
        lines = tree.text[path].count("\n")
        if lines > MAX_FILE_LINES:
            yield path, 1, f"{lines} lines; at most {MAX_FILE_LINES}: split the file"


def blank_literals(text):
    """C++ with comments, strings and preprocessor lines replaced by blanks of the same shape."""
    pattern = re.compile(
        r'R"(?P<tag>[^\s()\\]{0,16})\(.*?\)(?P=tag)"'  # raw string
        r'|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"'
        r"|(?<![0-9a-zA-Z_])'(?:\\.|[^'\\\n])+'"  # a character, not a digit separator
        r"|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.DOTALL | re.MULTILINE)
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def cpp_functions(text):
    """(first line, last line, head) of every function body that lies in a namespace, a class or at the top."""
    text = blank_literals(text)
    inside = 0  # depth of braces within a function
    start, head_start = 0, 0
    for match in re.finditer(r"[{};]|\b(?:public|private|protected)\s*:", text):
        token = match.group()
        if inside:
            inside += {"{": 1, "}": -1}.get(token, 0)
            if not inside:
                yield line_of(text, start), line_of(text, match.start()), head
                head_start = match.end()
            continue
        if token == "{":
            head = " ".join(text[head_start:match.start()].split())
            if opens_function(head):
                inside = 1
                start = head_start + re.match(r"\s*", text[head_start:]).end()
                continue
        head_start = match.end()


def opens_function(head):
    without_template = re.sub(r"^template\s*<.*?>\s*(?=\w)", "", head)
    if re.match(r"(?:inline\s+)?namespace\b|(?:class|struct|union|enum)\b(?!.*\)\s*(?:const|noexcept)?$)|extern\b *$",
                without_template):
        return False
    return "(" in head and not head.endswith("=")


def python_functions(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.lineno, node.end_lineno, node.name


def check_function_size(tree):
    for path in tree.text:
        if path.endswith(CPP_SUFFIXES):
            functions = cpp_functions(tree.text[path])
        elif path.endswith(".py"):
            functions = python_functions(tree.text[path])
        else:
            continue
        for first, last, head in functions:
            if last - first + 1 > MAX_FUNCTION_LINES:
                yield path, first, f"'{head[:60]}' has {last - first + 1} lines; at most {MAX_FUNCTION_LINES}"


def check_unfinished(tree):
    for path, text in tree.text.items():
        if path.startswith("tests/data/"):
            continue
        for match in UNFINISHED.finditer(text):
            yield path, line_of(text, match.start()), f"'{match.group()}': finish it, or say it in docs/"


def check_format(tree):
    if not tree.cpp:
        return
    if not shutil.which("clang-format"):
        yield ".clang-format", 1, "clang-format is missing, so the format cannot be checked"
        return
    for begin in range(0, len(tree.cpp), 100):
        result = subprocess.run(
            ["clang-format", "--dry-run", "-Werror", *tree.cpp[begin:begin + 100]],
            cwd=tree.root, capture_output=True, text=True, check=False)
        found = collections.OrderedDict()
        for match in re.finditer(r"^(\S+?):(\d+):\d+: error: ", result.stderr, re.MULTILINE):
            found.setdefault(match.group(1), int(match.group(2)))
        for path, line in found.items():
            yield path, line, f"not formatted: clang-format -i {path}"
        if result.returncode and not found:
            yield ".clang-format", 1, f"clang-format failed: {result.stderr.strip()[:300]}"


# ---- includes -------------------------------------------------------------------------------------------------------

def check_include_form(tree):
    known = set(tree.text)
    for path in tree.cpp:
        # What ends in -inl.h is included once for each vector instruction set.
        if path.endswith(".h") and not path.endswith("-inl.h") and "#pragma once\n" not in tree.text[path]:
            yield path, 1, "a header starts with #pragma once"
        for line, bracket, name in tree.includes(path):
            if bracket == '"' or name.startswith(tuple(f"{root}/" for root in CODE_ROOTS)):
                yield path, line, f"write <palimpsest/...>, not {name}"
            if name in ("torch/torch.h", "torch/extension.h", "ATen/ATen.h"):
                yield path, line, f"{name} costs 12 seconds a unit: include the narrow ATen headers"
        for line, name in tree.own_includes(path):
            schema = re.sub(r"\.pb\.h$", ".proto", name)
            if name not in known and schema not in known:
                yield path, line, f"palimpsest/{name} does not exist"


def may_include(source, target):
    """Whether DESIGN's arrows let a file of the folder `source` include one of the folder `target`."""
    if source == target:
        return True
    root, target_root = source.split("/")[0], target.split("/")[0]
    if root in ("tests", "benchmarks"):
        return True
    if source == "":  # the umbrella header
        return target_root in ("core", "launcher") + STRATEGIES
    if source in FRAME:
        return target in FRAME
    if source in LIBRARY:
        return target in FRAME | LIBRARY
    if root in STRATEGIES:
        return target in FRAME or target_root == root
    if source == "launcher/compose":
        return target_root in ("core", "launcher") + STRATEGIES
    if root == "launcher":  # only the composition names concrete classes
        return target in FRAME or target_root == "launcher"
    return False


def check_arrows(tree):
    for path in tree.cpp:
        source = folder_of(path)
        if source.startswith("core/") and source not in FRAME | LIBRARY:
            yield path, 1, f"{source} is neither a folder of the frame nor of the library"
        for line, name in tree.own_includes(path):
            if source.split("/")[0] == "examples":
                if name != "palimpsest.h":
                    yield path, line, "examples include only <palimpsest/palimpsest.h>"
            elif not may_include(source, folder_of(name)):
                yield path, line, f"{source or 'the umbrella'} may not include {folder_of(name) or 'the umbrella'}"


def check_include_cycles(tree):
    state = {}  # path -> "open" or "done"

    def visit(path, trail):
        state[path] = "open"
        for line, name in tree.own_includes(path):
            if name not in tree.text:
                continue
            if state.get(name) == "open":
                cycle = trail[trail.index(name):] + [name]
                yield path, line, "include cycle: " + " -> ".join(cycle)
            elif name not in state:
                yield from visit(name, trail + [name])
        state[path] = "done"

    for path in tree.cpp:
        if path not in state:
            yield from visit(path, [path])


def check_folder_pairs(tree):
    edges = {}
    for path in tree.cpp:
        for line, name in tree.own_includes(path):
            source, target = folder_of(path), folder_of(name)
            if source and target and source != target:
                edges.setdefault((source, target), (path, line))
    for (source, target), (path, line) in edges.items():
        if source < target and (target, source) in edges:
            other, other_line = edges[target, source]
            yield path, line, f"{source} and {target} include each other (also {other}:{other_line})"


# ---- folders and tests ----------------------------------------------------------------------------------------------

def check_readmes(tree):
    files = collections.defaultdict(list)
    for path in tree.sources():
        if path.split("/")[0] in CODE_ROOTS + ("cmake",) and not path.startswith("tests/data/"):
            files[folder_of(path)].append(path.rpartition("/")[2])
    for folder, names in files.items():
        if folder.startswith(("tests/", "benchmarks/")) and folder.partition("/")[2] in files:
            continue  # mirrors a folder that is described there
        readme = tree.text.get(f"{folder}/README.md")
        if readme is None:
            yield f"{folder}/README.md", 1, "missing: every folder with sources says what lives in it"
            continue
        for name in names:
            stem = re.escape(name.rpartition(".")[0])
            # `foo.cc`, `foo.h` and `foo.{h,cc}` all name foo.cc.
            if not re.search(rf"(?<![\w.]){stem}(?!\w)", readme):
                yield f"{folder}/README.md", 1, f"does not name {name}"


def check_tests(tree):
    """foo.cc has tests/.../foo_test.cc, or a test there that says `// Covers: foo.cc`."""
    covered = set()
    for path in tree.cpp:
        if path.startswith("tests/") and path.endswith("_test.cc"):
            folder = folder_of(path).removeprefix("tests/")
            covered.add(f"{folder}/{path.rpartition('/')[2].removesuffix('_test.cc')}")
            for match in COVERS.finditer(tree.text[path]):
                for name in match.group(1).replace(",", " ").split():
                    unit = name if "/" in name else f"{folder}/{name}"
                    covered.add(unit.rpartition(".")[0])
                    if unit not in tree.text:
                        yield path, line_of(tree.text[path], match.start()), f"covers {name}, which does not exist"
    for path in tree.cpp:
        if path.endswith((".cc", ".cu")) and path.split("/")[0] in ("core", "launcher") + STRATEGIES:
            stem = path.rpartition(".")[0]
            if stem not in covered:
                yield path, 1, f"no test: add tests/{stem}_test.cc, or '// Covers: {path}' to the test that has it"


CHECKS = (check_format, check_file_size, check_function_size, check_unfinished, check_include_form, check_arrows,
          check_include_cycles, check_folder_pairs, check_readmes, check_tests)


def tracked_files(root):
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout
    return [path for path in listed.split("\0") if path and (root / path).is_file()]


def all_files(root):
    return [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()]


def compile_units(root, database):
    tracked = set(tracked_files(root))
    units = {str(pathlib.Path(entry["file"])) for entry in json.loads(pathlib.Path(database).read_text())}
    return sorted(unit for unit in units if unit.startswith(f"{root}/") and unit.removeprefix(f"{root}/") in tracked)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path)
    parser.add_argument("--units")
    arguments = parser.parse_args()
    home = pathlib.Path(__file__).resolve().parents[2]
    if arguments.units:
        print("\n".join(compile_units(home, arguments.units)))
        return 0
    root = arguments.root or home
    tree = Tree(root, all_files(root) if arguments.root else tracked_files(root))
    findings = [finding for check in CHECKS for finding in check(tree)]
    for path, line, message in findings:
        print(f"{path}:{line}: {message}")
    print(f"lint: {len(findings)} findings in {len(tree.text)} files" if findings
          else f"lint: {len(tree.text)} files are clean")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
