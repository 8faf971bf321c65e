"""What a card costs, and how many hours a month has where prices are told by the month."""

from gpuloom.clients.gpu_prices import GpuPrices


class KnownPrices(GpuPrices):
    def __init__(self, usd_per_gpu_hour: float | None, hours_per_month: int) -> None:
        super().__init__(usd_per_gpu_hour)
        self.hours_per_month = hours_per_month
