"""Programming languages that programs can be written in."""

from __future__ import annotations

import dataclasses

from rl_sync.spelling import require_one_of


@dataclasses.dataclass(frozen=True)
class ProgramLanguage:
    """A programming language. `{folder}` in a command is the folder of the program's files.

    Attributes:
      file: the name of the file that holds the program.
      hello: a program that prints the line that it reads.
      run: the command that runs it; None for the interpreter that this project runs in.
      build: the command that makes the file `program` in the current folder; empty for none.
      fences: names of the language in front of code blocks, besides the name in the table.
      counts_reserved: whether address space that is reserved and not used counts as memory.
    """

    file: str
    hello: str
    run: tuple[str, ...] | None
    build: tuple[str, ...] = ()
    fences: tuple[str, ...] = ()
    counts_reserved: bool = True


_BUILT = ("{folder}/program",)

LANGUAGES: dict[str, ProgramLanguage] = {
    "python": ProgramLanguage("main.py", "print(input())", run=None, fences=("py", "python3")),
    "bash": ProgramLanguage(
        "main.sh",
        'read -r line; echo "$line"',
        run=("bash", "{folder}/main.sh"),
        fences=("sh", "shell"),
    ),
    "c": ProgramLanguage(
        "main.c",
        "#include <stdio.h>\nint main() { int c; while ((c = getchar()) != EOF) putchar(c); }",
        run=_BUILT,
        build=("gcc", "-O2", "-o", "program", "{folder}/main.c", "-lm"),
    ),
    "cpp": ProgramLanguage(
        "main.cpp",
        "#include <iostream>\nint main() { std::cout << std::cin.rdbuf(); }",
        run=_BUILT,
        build=("g++", "-O2", "-std=c++20", "-o", "program", "{folder}/main.cpp"),
        fences=("c++", "cc"),
    ),
    "javascript": ProgramLanguage(
        "main.js",
        "process.stdout.write(require('fs').readFileSync(0))",
        run=("node", "{folder}/main.js"),
        fences=("js", "node"),
        counts_reserved=False,
    ),
    "perl": ProgramLanguage(
        "main.pl", "print <STDIN>;", run=("perl", "{folder}/main.pl"), fences=("pl",)
    ),
    "ruby": ProgramLanguage(
        "main.rb", "puts gets", run=("ruby", "{folder}/main.rb"), fences=("rb",)
    ),
    "rust": ProgramLanguage(
        "main.rs",
        "fn main() { std::io::copy(&mut std::io::stdin(), &mut std::io::stdout()).unwrap(); }",
        run=_BUILT,
        build=("rustc", "-O", "-o", "program", "{folder}/main.rs"),
    ),
    "java": ProgramLanguage(
        "Main.java",
        "public class Main { public static void main(String[] a) throws Exception {"
        " System.in.transferTo(System.out); System.out.flush(); } }",
        run=("java", "{folder}/Main.java"),
        counts_reserved=False,
    ),
}


def language(name: str) -> ProgramLanguage:
    """Returns a language by its name.

    Raises:
      ValueError: there is none; the message names the nearest.
    """
    require_one_of("language of programs", name, LANGUAGES)
    return LANGUAGES[name]
