"""`python -m modeling_vanilla` is the command `vanilla`."""

from vanilla_command import COMMANDS, main

__all__ = ["COMMANDS", "main"]

if __name__ == "__main__":
    main()
