"""Translate a file or stdin, line by line: the command `vanilla translate`, whose --help has the options.

python examples/translate.py runs/mine/model --input test.en --output test.out
"""

from modeling_vanilla.cli.translate import main

if __name__ == "__main__":
    main()
