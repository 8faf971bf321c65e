"""Prints the start.py of an image, which runs one module; the container's arguments are the module's."""

import sys

MODULES = {"cli": "gpuloom.cli.main", "simulation": "gpuloom.sim"}


def start_script(service: str) -> str:
    module = MODULES.get(service, f"services.{service}")
    return f'import runpy\n\nrunpy.run_module("{module}", run_name="__main__", alter_sys=True)\n'


if __name__ == "__main__":
    sys.stdout.write(start_script(sys.argv[1]))
