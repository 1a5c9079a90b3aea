"""`python -m modeling_vanilla` is the command `vanilla`."""

from vanilla_command import main

if __name__ == "__main__":
    main()
