"""Makes views of changed nodes again between calls, so that a call finds little left to do.

In turns well below a millisecond: a burst of changes keeps no call waiting. Decides nothing; whoever asks for
a view that is outdated gets it made at once, without this.
"""

import asyncio

from services.scheduler_extender.core.views.views import Views

NODES_A_TURN = 5


class ViewRefresher:
    def __init__(self, views: Views) -> None:
        self._views = views
        self._poked = asyncio.Event()
        self._settled = False
        views.on_poke(self._poked.set)

    async def run(self) -> None:
        while True:
            await self._poked.wait()
            if self._views.refresh(NODES_A_TURN):
                await asyncio.sleep(0)
            else:
                self._poked.clear()

    def unready_reason(self) -> str:
        """Once everything is listed: the views of a whole cluster take a second to make, but only once."""
        self._settled = self._settled or not self._views.outdated
        return "" if self._settled else "views of nodes are being made"
