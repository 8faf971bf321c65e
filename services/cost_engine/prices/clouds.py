"""Which clouds are asked for prices: those that the settings name."""

from services.cost_engine.config import PricesConfig
from services.cost_engine.ports import PriceSource
from services.cost_engine.prices.aws import AwsPrices
from services.cost_engine.prices.azure import AzurePrices
from services.cost_engine.prices.gcp import GcpPrices


def price_sources(config: PricesConfig) -> list[PriceSource]:
    found: list[PriceSource] = []
    if config.aws_regions:
        found.append(AwsPrices(config.aws_regions))
    if config.gcp_regions and config.gcp_api_key:
        found.append(GcpPrices(config.gcp_regions, config.gcp_api_key))
    if config.azure_regions:
        found.append(AzurePrices(config.azure_regions))
    return found
