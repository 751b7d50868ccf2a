"""python -m ballast ARGS is the program: ballast ARGS."""

import os
import sys
from typing import NoReturn

from ._errors import Error
from ._find import program


def main() -> NoReturn:
    try:
        path = program()
    except Error as e:
        print(f"ballast: {e}", file=sys.stderr)
        sys.exit(e.code)
    os.execv(path, [path, *sys.argv[1:]])


if __name__ == "__main__":
    main()
