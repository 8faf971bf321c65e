"""The forms in which a command gives its answer."""

from enum import StrEnum
from typing import Annotated

import typer


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="table or json.")]
