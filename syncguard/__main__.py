"""``python -m syncguard``."""

from syncguard.cli import main

if __name__ == "__main__":
    main()
